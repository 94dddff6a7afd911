"""The check's verdicts, from recorded tokens and what a prefill says about them."""

from __future__ import annotations

import json
import math

import pytest
from sample_receipts import engine, receipt, request, token, tokens

from llm_backend.phrases import check_line, check_sentences
from llm_backend.receipt import GREEDY_BELOW, LOGPROB_FLOOR, Receipt, Sampling
from llm_backend.render import check_json, check_markdown, check_text
from llm_backend.scoring import (
    Calibration,
    Check,
    CheckVerdict,
    TokenScore,
    judge,
    must_be_most_likely,
    obstacles,
    score,
)
from llm_backend.strings import LANGUAGES, Language

SELF_CHECK = Calibration(engine="sha256:e", positions=128, largest=0.1)
"""A tolerance of 0.2 nats."""

RECORDED = receipt(tokens([7, 8, 9], [-0.5, -1.0, -0.25]))
SAMPLED = receipt(tokens([7, 8, 9], [-0.5, -1.0, -0.25]), asked=request(temperature=0.8))


def likely(*logprobs: float | None) -> list[TokenScore | None]:
    """Scores of tokens that are the most likely ones."""
    return [TokenScore(value, value, 1) for value in logprobs]


def checked(
    scores: list[TokenScore | None],
    recorded: Receipt = RECORDED,
    calibration: Calibration | None = SELF_CHECK,
) -> Check:
    return judge(recorded, recorded.engine, score(recorded.completion.tokens, scores), calibration)


class TestVerdict:
    def test_equal_to_the_bit_needs_no_tolerance(self) -> None:
        result = checked(likely(-0.5, -1.0, -0.25), calibration=None)
        assert result.verdict is CheckVerdict.BIT_EXACT
        assert (result.known, result.bit_equal, result.most_likely, result.unknown) == (3, 3, 3, 0)
        assert (result.tolerance, result.calibration) == (None, None)

    def test_one_bit_off_is_never_called_bit_exact(self) -> None:
        result = checked(likely(-0.5, math.nextafter(-1.0, 0.0), -0.25))
        assert result.verdict is CheckVerdict.WITHIN_TOLERANCE
        assert (result.bit_equal, result.tolerance) == (2, 0.2)

    def test_differences_are_measured_in_both_directions(self) -> None:
        result = checked(likely(-0.375, -1.125, -0.25))
        assert [position.difference for position in result.positions] == [0.125, -0.125, 0.0]
        assert (result.max_abs_logprob_diff, result.mean_abs_logprob_diff) == (0.125, 0.25 / 3)

    @pytest.mark.parametrize("off", [-0.25, 0.25])
    def test_one_position_beyond_the_tolerance_decides(self, off: float) -> None:
        result = checked(likely(-0.5, -1.0 + off, -0.25))
        assert result.verdict is CheckVerdict.OUTSIDE
        assert (result.first_outside, result.outside) == (1, 1)

    def test_at_the_tolerance_is_within_it(self) -> None:
        half = Calibration(engine="sha256:e", positions=128, largest=0.125)
        assert checked(likely(-0.5, -1.25, -0.25), calibration=half).verdict is CheckVerdict.WITHIN_TOLERANCE

    def test_an_engine_that_is_bit_exact_with_itself_tolerates_nothing(self) -> None:
        exact = Calibration(engine="sha256:e", positions=128, largest=0.0)
        result = checked(likely(-0.5, -1.0, math.nextafter(-0.25, 0.0)), calibration=exact)
        assert (result.verdict, result.first_outside) == (CheckVerdict.OUTSIDE, 2)


class TestMostLikely:
    def test_a_greedy_token_far_behind_the_most_likely_one_is_outside_though_its_logprob_agrees(self) -> None:
        """A forged receipt can carry the engine's own logprobs for tokens it would not have chosen."""
        forged = [*likely(-0.5), TokenScore(-1.0, -0.5, 2), *likely(-0.25)]
        result = checked(forged)
        assert (result.verdict, result.first_outside, result.most_likely) == (CheckVerdict.OUTSIDE, 1, 2)

    def test_a_greedy_token_behind_by_rounding_is_within_tolerance_but_not_bit_exact(self) -> None:
        result = checked([*likely(-0.5), TokenScore(-1.0, -0.9375, 2), *likely(-0.25)])
        assert result.verdict is CheckVerdict.WITHIN_TOLERANCE

    def test_a_tied_token_is_most_likely_whatever_its_rank(self) -> None:
        result = checked([*likely(-0.5), TokenScore(-1.0, -1.0, 2), *likely(-0.25)])
        assert (result.verdict, result.most_likely) == (CheckVerdict.BIT_EXACT, 3)

    def test_a_sampled_token_need_not_be(self) -> None:
        unlikely = [TokenScore(value, -0.0625, 40) for value in (-0.5, -1.0, -0.25)]
        assert checked(unlikely, SAMPLED).verdict is CheckVerdict.BIT_EXACT
        assert checked(unlikely, RECORDED).verdict is CheckVerdict.OUTSIDE

    def test_penalties_choose_other_tokens(self) -> None:
        assert must_be_most_likely(Sampling())
        assert must_be_most_likely(Sampling(temperature=GREEDY_BELOW / 2))
        assert not must_be_most_likely(Sampling(repetition_penalty=1.1))
        assert not must_be_most_likely(Sampling(temperature=0.8))


class TestUnknown:
    @pytest.mark.parametrize("value", [None, LOGPROB_FLOOR, math.nan, -math.inf])
    def test_unknown_on_either_side_is_never_a_difference(self, value: float | None) -> None:
        result = checked(likely(-0.5, value, -0.25))
        assert (result.verdict, result.known, result.unknown) == (CheckVerdict.BIT_EXACT, 2, 1)
        recorded = receipt(tokens([7, 8, 9], [-0.5, value if value != -math.inf else None, -0.25]))
        assert checked(likely(-0.5, -1.0, -0.25), recorded).known == 2

    def test_tokens_the_engine_could_not_be_asked_about_are_unknown(self) -> None:
        result = checked(likely(-0.5, -1.0))
        assert (result.verdict, result.known, result.unknown) == (CheckVerdict.BIT_EXACT, 2, 1)

    def test_nothing_known_is_not_a_pass(self) -> None:
        result = checked([None, None, None])
        assert result.verdict is CheckVerdict.UNCHECKABLE
        assert not result.passed


class TestObstacles:
    @pytest.mark.parametrize(
        ("recorded", "running", "kind"),
        [
            (RECORDED, engine(model="another"), "other_model"),
            (RECORDED, engine(weights_digest="sha256:other"), "other_weights"),
            (RECORDED, engine(max_model_len=5), "too_long"),
            (RECORDED, engine(logprobs_mode="processed_logprobs"), "other_logprobs"),
            (receipt(asked=request(prompt=())), engine(), "no_prompt_ids"),
            (receipt(tokens([7, 8], [None, LOGPROB_FLOOR])), engine(), "no_logprobs"),
            (receipt(()), engine(), "nothing_generated"),
            (receipt((), text="words"), engine(), "no_token_ids"),
        ],
    )
    def test_each_is_named(self, recorded: Receipt, running, kind: str) -> None:
        assert kind in [reason.kind for reason in obstacles(recorded, running)]

    def test_there_is_none_for_an_ordinary_receipt_up_to_a_full_context(self) -> None:
        assert obstacles(RECORDED, engine(max_model_len=6)) == ()
        assert obstacles(SAMPLED, engine()) == ()

    def test_values_after_temperature_cannot_be_had_for_a_prompt(self) -> None:
        processed = engine(logprobs_mode="processed_logprobs")
        for asked, kinds in ((request(), []), (request(temperature=0.8), ["other_logprobs"])):
            found = obstacles(receipt(asked=asked, engine=processed), processed)
            assert [reason.kind for reason in found] == kinds


class TestWords:
    def test_the_two_kinds_of_verdict_read_differently(self) -> None:
        exact, close = checked(likely(-0.5, -1.0, -0.25)), checked(likely(-0.5, -1.125, -0.25))
        assert str(check_line(exact)) == (
            "● Bit-exact — the engine gives the recorded probability, to the bit, at 3 of 3 positions."
        )
        assert str(check_line(close)) == (
            "◐ Within tolerance — 3 of 3 positions, at most 0.125 nats off; tolerance 0.2 nats."
        )
        assert not any("olerance" in line for line in check_sentences(exact))
        assert any("plausible, not proven" in line for line in check_sentences(close))

    @pytest.mark.parametrize("lang", LANGUAGES)
    @pytest.mark.parametrize(
        "result",
        [
            checked(likely(-0.5, -1.0, -0.25)),
            checked(likely(-0.5, -1.125, None), SAMPLED),
            checked([*likely(-0.5), TokenScore(-9.0, None, 700), *likely(-0.25)]),
            checked(likely(-0.5, -1.5, -0.25), calibration=SELF_CHECK.model_copy(update={"largest": 0.0})),
            checked([None]),
            Check(verdict=CheckVerdict.UNCHECKABLE, reasons=obstacles(receipt(()), engine(model="x"))),
        ],
        ids=["exact", "sampled", "outside", "outside_exact", "nothing_known", "refused"],
    )
    def test_every_result_can_be_said(self, result: Check, lang: Language) -> None:
        line = str(check_line(result, lang))
        assert check_text(result, lang).startswith(line)
        assert check_markdown(result, lang)
        document = json.loads(check_json(result, lang))
        assert document["summary"] == line
        assert document["check"]["verdict"] == result.verdict

    def test_what_changed_in_the_engine_goes_along(self) -> None:
        moved = judge(
            RECORDED,
            engine(vllm_version="0.32.0"),
            score(RECORDED.completion.tokens, likely(-0.5, -9.0, -0.25)),
            SELF_CHECK,
        )
        assert "vLLM version" in check_text(moved)
        assert "vLLM version" in check_markdown(moved)


def test_a_single_token_is_said_in_the_singular() -> None:
    alone = receipt([token(7, -0.5)])
    assert "1 of 1 position." in str(check_line(checked(likely(-0.5), alone)))
