"""What people read: verdicts as measurements, every format from the same facts, nothing unescaped."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from rich.cells import cell_len
from sample_receipts import ENGINE, engine, receipt, request, token, tokens

from llm_backend import render
from llm_backend.compare import Comparison, Verdict, compare
from llm_backend.diagnose import Cause, Diagnosis, diagnose
from llm_backend.phrases import SHAPES, measurements, notes, run_summary, verdict_line, verdict_name
from llm_backend.receipt import EngineFingerprint, Receipt, Status, TokenRecord
from llm_backend.run import Run
from llm_backend.strings import LANGUAGES, Language

NOTHING = Diagnosis(cause=Cause.NONE)

RUN = Run(
    id="a" * 32,
    chat_id="chat",
    kind="ask",
    question="What is\n235 times 478?",
    started_at=datetime(2026, 12, 1, 3, 5, tzinfo=UTC),
    status="complete",
    model=ENGINE.model,
    seed=42,
    greedy=True,
    digest="sha256:7c19e0" + "0" * 58,
    ttft_s=0.1,
    duration_s=11.2,
    completion_tokens=312,
    prompt_tokens=20,
    finish_reason="stop",
)


def ids(count: int, start: int = 0) -> list[int]:
    return list(range(start, start + count))


def fork_at_31() -> Comparison:
    top = {1: math.log(0.42), 2: math.log(0.42) - 0.0241}
    before = [*tokens(ids(31, 100)), token(1, math.log(0.42), text="1", top=top), token(5)]
    after = [*tokens(ids(31, 100), [-0.5] * 30 + [-0.587]), token(2, math.log(0.41), text="2"), token(5)]
    return compare(receipt(before), receipt(after))


def said(reference: Receipt, candidate: Receipt, lang: Language = "en") -> str:
    return str(verdict_line(compare(reference, candidate), lang))


class TestVerdictLine:
    def test_identical(self) -> None:
        same = receipt(tokens(ids(312)))
        assert said(same, same) == "● Came out the same — 312 of 312 tokens, probabilities bit-equal."
        assert said(same, same, "zh-CN") == "● 完全一致 — 312 / 312 个词元相同，概率逐位相等。"

    def test_identical_without_probabilities_does_not_claim_them(self) -> None:
        bare = receipt([TokenRecord(1)])
        assert "probabilities were not recorded" in said(bare, bare)

    def test_identical_with_some_unknown_probabilities_counts_the_known(self) -> None:
        line = said(receipt(tokens([1, 2, 3], [-0.5, None, -0.5])), receipt(tokens([1, 2, 3])))
        assert "bit-equal at the 2 positions where both are known" in line

    def test_identical_over_what_exists_does_not_claim_the_rest(self) -> None:
        line = said(receipt(), receipt([7, 8], status=Status.STOPPED))
        assert line == "● Same as far as it goes — 2 of 3 tokens, probabilities bit-equal."

    def test_both_cut_at_the_same_length_came_out_the_same(self) -> None:
        cut = receipt(finish_reason="length")
        assert said(cut, cut).startswith("● Came out the same — 3 of 3 tokens")

    def test_drifted(self) -> None:
        """RC-18: not called different, and how far it moved."""
        moved = [-0.5] * 118 + [-0.53] + [-0.5] * 193
        line = said(receipt(tokens(ids(312))), receipt(tokens(ids(312), moved)))
        assert line == "◐ Same words, probabilities moved — up to 0.03 nats, first at token 118."

    def test_diverged_at_a_near_tie(self) -> None:
        assert str(verdict_line(fork_at_31())) == (
            '✕ Different from token 31 on — recorded "1" (42.0 %), replayed "2" (41.0 %): a near tie.'
        )
        assert str(verdict_line(fork_at_31(), "zh-CN")).startswith("✕ 从第 31 个词元起不同 — ")

    def test_diverged_where_one_side_ended(self) -> None:
        assert said(receipt([7]), receipt([7, 8])) == (
            '✕ Different from token 1 on — recorded the end of the answer, replayed "t8" (60.7 %).'
        )

    def test_unknown_probabilities_are_left_out_not_shown_as_zero(self) -> None:
        line = said(receipt([TokenRecord(7, None, b"a")]), receipt([TokenRecord(8, -9999.0, b"b")]))
        assert line == '✕ Different from token 0 on — recorded "a", replayed "b".'

    def test_incomparable_names_every_reason(self) -> None:
        line = said(receipt(), receipt(engine=engine(model="smol"), asked=request(prompt=(1, 2))))
        assert line == (
            "? Can't be compared — another model answered: smol instead of microsoft/Phi-4-mini-reasoning; "
            "the prompt differs from its token 2 on (3 tokens recorded, 2 replayed)."
        )

    def test_other_messages_without_prompt_ids(self) -> None:
        line = said(receipt(), receipt(asked=request(question="Who are you?", prompt=())))
        assert line == "? Can't be compared — other messages were sent."

    @pytest.mark.parametrize("lang", LANGUAGES)
    @pytest.mark.parametrize("verdict", list(Verdict))
    def test_every_verdict_has_a_shape_and_a_name(self, verdict: Verdict, lang: Language) -> None:
        assert verdict_name(verdict.value, lang=lang).startswith(SHAPES[verdict] + " ")

    def test_shapes_differ(self) -> None:
        assert len(set(SHAPES.values())) == len(Verdict)


def test_a_mismatch_is_a_measurement() -> None:
    assert measurements(fork_at_31()) == [
        "Margin between the two most likely tokens there: 0.0241 nats.",
        "The recorded run gave the replayed token 41.0 %.",
        "Drift before it: up to 0.087 nats, first at token 30, at 1 of 31 positions.",
    ]


def test_a_fork_without_drift_says_so_and_what_each_side_thought_of_the_other() -> None:
    top = {1: math.log(0.6), 2: math.log(0.3)}
    before = receipt([token(7), token(1, top[1], top=top)])
    after = receipt([token(7), token(2, top[2], top=top)])
    assert measurements(compare(before, after))[1:] == [
        "The replay gave the recorded token 60.0 %.",
        "The recorded run gave the replayed token 30.0 %.",
        "No drift before it: 1 position bit-equal.",
    ]


class TestNotes:
    def test_unknown_probabilities_are_counted(self) -> None:
        (note,) = notes(compare(receipt(tokens([7, 8], [-0.5, None])), receipt([7, 8])))
        assert note.startswith("1 position has no known probability on one side")

    def test_moved_alternatives_under_equal_tokens(self) -> None:
        before, after = (receipt([token(7, -0.5, top={8: value})]) for value in (-2.0, -2.1))
        (note,) = notes(compare(before, after))
        assert "alternatives the engine listed differ from token 0 on" in note

    def test_other_tokens_that_spell_the_same_text(self) -> None:
        before = receipt([token(1, text="ab"), token(2, text="c")])
        after = receipt([token(3, text="a"), token(4, text="bc")])
        assert "The two texts read the same." in notes(compare(before, after))

    def test_both_cut_at_the_limit(self) -> None:
        cut = receipt(finish_reason="length")
        assert notes(compare(cut, cut)) == [
            "Both were cut off at the token limit; nothing is known beyond it."
        ]

    def test_a_stopped_run_says_how_far_it_was_compared(self) -> None:
        """RC-33"""
        (note,) = notes(compare(receipt(), receipt([7, 8], status=Status.STOPPED)))
        assert note == "The replayed run was stopped by hand: it can be compared only over its 2 tokens."

    def test_an_interrupted_reference_is_warned_about(self) -> None:
        """RC-46"""
        (note,) = notes(compare(receipt([7], status=Status.INTERRUPTED), receipt()))
        assert note == "The recorded run was interrupted: it can be compared only over its 1 token."

    def test_other_endings_after_the_same_tokens(self) -> None:
        (note,) = notes(compare(receipt(), receipt(finish_reason="repetition")))
        assert "finished by itself" in note
        assert "ended with the reason repetition" in note

    def test_text_fallback_says_whether_the_texts_agree(self) -> None:
        assert notes(compare(receipt([], text="a"), receipt([], text="a"))) == [
            "Compared by their text instead: the two texts read the same."
        ]
        assert notes(compare(receipt([], text="a b"), receipt([], text="a c"))) == [
            "Compared by their text instead: the two texts differ from character 2 on."
        ]

    def test_other_logprobs_modes(self) -> None:
        (note,) = notes(compare(receipt(), receipt(engine=engine(logprobs_mode="raw_logits"))))
        assert "only tokens were compared" in note


class TestComparison:
    def pair(self) -> tuple[Comparison, Diagnosis]:
        before = receipt([token(1, -0.1, text="|*")])
        after = receipt([token(2, -0.2, text="2")], engine=engine(vllm_version="0.32.0"))
        comparison = compare(before, after)
        return comparison, diagnose(comparison, before, after, neighbours=3)

    def test_text_has_verdict_reason_and_engine_changes(self) -> None:
        lines = render.comparison_text(*self.pair()).splitlines()
        assert lines[0].startswith("✕ Different from token 0 on")
        assert lines[1] == (
            "  The engine is not the one that was recorded: vLLM version 0.26.0 then, 0.32.0 now, "
            "which can change an answer."
        )
        assert lines[-1].split() == ["vLLM", "version", "0.26.0", "0.32.0", "yes"]

    def test_an_environment_variable_is_called_by_its_own_name(self) -> None:
        before, after = (receipt(engine=engine(env={"OMP_NUM_THREADS": count})) for count in "24")
        assert "  OMP_NUM_THREADS  2" in render.comparison_text(compare(before, after), NOTHING)

    def test_markdown_escapes_what_tokens_hold(self) -> None:
        markdown = render.comparison_markdown(*self.pair())
        assert '"\\|\\*"' in markdown
        assert "| vLLM version | 0.26.0 | 0.32.0 | yes |" in markdown

    def test_json_is_strict_and_complete(self) -> None:
        comparison, diagnosis = self.pair()
        document = json.loads(render.comparison_json(comparison, diagnosis))
        assert document["summary"] == str(verdict_line(comparison))
        assert Comparison.model_validate(document["comparison"]) == comparison
        assert Diagnosis.model_validate(document["diagnosis"]) == diagnosis

    def test_chinese_columns_line_up_on_the_terminal(self) -> None:
        before = receipt(engine=engine(vllm_version="0.26.0", dtype="float32"))
        after = receipt(engine=engine(vllm_version="0.32.0", dtype="bfloat16"))
        lines = render.comparison_text(compare(before, after), NOTHING, "zh-CN").splitlines()
        table = [line for line in lines if "0.26.0" in line or "float32" in line]
        starts = {
            cell_len(line[: line.index(value)])
            for line, value in zip(table, ("0.26.0", "float32"), strict=True)
        }
        assert len(starts) == 1

    def test_an_identical_pair_says_nothing_about_a_fork(self) -> None:
        assert len(render.comparison_text(compare(receipt(), receipt()), NOTHING).splitlines()) == 1


class TestRuns:
    def test_summary(self) -> None:
        assert run_summary(RUN) == "seed 42 · greedy · 312 tokens · 28.0 tok/s · 7c19e0"
        assert run_summary(RUN, "zh-CN") == "种子 42 · 贪心 · 312 个词元 · 28.0 词元/秒 · 7c19e0"

    @pytest.mark.parametrize(
        ("changed", "part"),
        [
            ({"seed": None, "greedy": False}, "no seed · sampled"),
            ({"finish_reason": "length"}, "was cut off at the token limit"),
            ({"status": "stopped", "finish_reason": None}, "was stopped by hand"),
            ({"status": "interrupted", "finish_reason": None}, "was interrupted"),
            ({"completion_tokens": 1}, "1 token ·"),
        ],
    )
    def test_what_is_unusual_is_said(self, changed: dict[str, object], part: str) -> None:
        assert part in run_summary(replace(RUN, **changed))

    def test_a_running_run_has_neither_tokens_nor_digest(self) -> None:
        running = replace(RUN, status="running", digest=None, completion_tokens=None, finish_reason=None)
        assert run_summary(running) == "seed 42 · greedy · is still running"

    @pytest.mark.parametrize("changed", [{"ttft_s": None}, {"duration_s": 0.05}, {"completion_tokens": 0}])
    def test_a_speed_that_cannot_be_told_is_left_out(self, changed: dict[str, object]) -> None:
        assert replace(RUN, **changed).tokens_per_second is None

    def test_a_line_is_one_line_whatever_was_asked(self) -> None:
        line = render.run_line(replace(RUN, question="a\nb\x1b[31m" + "c" * 300))
        assert "\n" not in line
        assert "\x1b" not in line
        assert line.startswith("7c19e0000000  2026-12-01 03:05  seed 42")
        assert line.endswith("…")
        assert line.count("7c19e0") == 1

    def test_replays_show_their_verdict(self) -> None:
        line = render.run_line(replace(RUN, kind="replay", verdict="DIVERGED"))
        assert "✕ Came out different" in line

    def test_an_empty_list_says_what_to_do(self) -> None:
        assert "encore ask" in render.runs_text([])

    def test_markdown_is_a_table(self) -> None:
        header, rule, row = render.runs_markdown([replace(RUN, question="a | b")]).splitlines()
        assert header.count("|") == rule.count("|") == row.replace("\\|", "").count("|")

    def test_json_keeps_every_digit_of_a_seed(self) -> None:
        (entry,) = json.loads(render.runs_json([replace(RUN, seed=2**63 - 1)]))
        assert entry["seed"] == "9223372036854775807"
        assert entry["started_at"] == "2026-12-01T03:05:00+00:00"


class TestReceipt:
    def test_settings_show_what_was_sent_and_what_it_became(self) -> None:
        shown = render.receipt_text(receipt(asked=request(top_k=40)))
        assert "42 (effective: none)" in shown
        assert "40 (effective: 0)" in shown

    def test_text_disarms_control_characters_of_the_answer(self) -> None:
        shown = render.receipt_text(receipt(text="one\ntwo\x1b]0;title\x07"))
        assert "one\ntwo\\x1b]0;title\\x07" in shown

    def test_markdown_fences_cannot_be_closed_by_the_answer(self) -> None:
        shown = render.receipt_markdown(receipt(text="```\n# not a heading\n````"))
        assert shown.endswith("`````text\n```\n# not a heading\n````\n`````")

    def test_lost_tokens_are_reported(self) -> None:
        """RC-13"""
        assert "3 recorded, but the engine counted 5" in render.receipt_text(receipt(reported_tokens=5))
        assert "but the engine counted" not in render.receipt_text(receipt(reported_tokens=3))

    def test_prompt_tokens_from_the_cache_are_counted(self) -> None:
        shown = render.receipt_text(receipt(cached_prompt_tokens=16))
        assert "prompt tokens from the cache  16" in shown

    def test_an_interruption_says_why(self) -> None:
        broken = receipt(status=Status.INTERRUPTED, detail="the connection was closed")
        assert "was interrupted: the connection was closed" in render.receipt_text(broken)

    def test_an_empty_answer_is_said_to_be_empty(self) -> None:
        assert render.receipt_text(receipt([])).endswith("(nothing was generated)")

    def test_times_come_from_the_run(self) -> None:
        shown = render.receipt_text(receipt(), replace(RUN, neighbours=3))
        assert "100 ms" in shown
        assert "11.2 s" in shown

    @pytest.mark.parametrize("lang", LANGUAGES)
    def test_every_format_renders_in_both_languages(self, lang: Language) -> None:
        for shown in (
            render.receipt_text(receipt(), RUN, lang),
            render.receipt_markdown(receipt(), RUN, lang),
        ):
            assert receipt().digest.removeprefix("sha256:") in shown


class TestFingerprint:
    def test_unknown_facts_are_named_as_unknown(self) -> None:
        rows = dict(render.fingerprint_rows(EngineFingerprint(model="m")))
        assert rows["model"] == "m"
        assert set(rows.values()) == {"m", "unknown (the engine did not tell)"}

    def test_values_in_words(self) -> None:
        rows = dict(
            render.fingerprint_rows(
                engine(
                    batch_invariant=True, enforce_eager=False, argv=("--seed", "1"), env={"B": "2", "A": "1"}
                )
            )
        )
        assert rows["batch-invariant"] == "yes"
        assert rows["eager mode"] == "no"
        assert rows["launch arguments"] == "--seed 1"
        assert rows["environment"] == "A=1 B=2"

    def test_formats(self) -> None:
        assert "0.26.0" in render.fingerprint_text(ENGINE)
        assert "| vLLM version | 0.26.0 |" in render.fingerprint_markdown(ENGINE)
        assert json.loads(render.fingerprint_json(ENGINE))["digest"] == ENGINE.digest
