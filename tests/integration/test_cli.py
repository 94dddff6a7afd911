"""`encore` as people call it: report on stdout, progress on stderr, diff's exit codes."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from scripted_engine import DEFAULT_TEXT, Reply, Script

from llm_backend.access import open_store
from llm_backend.cli import main
from llm_backend.cli.base import ORDER
from llm_backend.config import load_settings
from llm_backend.exported import parse_receipt
from llm_backend.scoring import Check, CheckVerdict
from llm_backend.store import StoredFinding
from llm_backend.tally import RepeatReport

Encore = Callable[..., tuple[int, str, str]]


@pytest.fixture
def encore(
    scripted_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Encore:
    monkeypatch.setenv("ENCORE_DATA_DIR", str(tmp_path / "数据 data"))
    monkeypatch.setenv("ENCORE_RUN_DIR", str(tmp_path))
    monkeypatch.setenv("ENCORE_ENGINE_URLS", f"{scripted_url}/v1")

    def call(*argv: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as exit_:
            main(list(argv))
        captured = capsys.readouterr()
        assert "Traceback" not in captured.err
        return int(exit_.value.code or 0), captured.out, captured.err

    return call


def digest_of(encore: Encore) -> str:
    _, out, _ = encore("list", "--format", "json")
    return str(json.loads(out)[0]["digest"])


def test_ask_prints_the_answer_and_keeps_the_receipt(encore: Encore) -> None:
    code, out, err = encore("ask", "What is 235 times 478?", "--seed", "7")
    assert (code, out) == (0, DEFAULT_TEXT + "\n")
    assert "seed 7" in err
    code, out, _ = encore("show", digest_of(encore)[7:15], "--format", "json")
    assert code == 0
    assert parse_receipt(out).request.sampling.seed == 7


def test_replay_says_same_different_or_undecided(encore: Encore, engine_script: Script) -> None:
    encore("ask", "What is 235 times 478?")
    digest = digest_of(encore)
    code, out, _ = encore("replay", digest, "--times", "2")
    assert code == 0
    assert out.startswith("Alone: 2 of 2 identical, so at least 34 % (Wilson 95 %).")
    engine_script.enqueue(Reply(fork_at=31))
    code, out, _ = encore("replay", digest)
    assert code == 1
    assert "Different from token 31 on" in out
    engine_script.enqueue(Reply(prompt_suffix="!"))
    code, out, _ = encore("replay", digest)
    assert code == 2
    assert "be compared" in out


@pytest.mark.parametrize(
    "words",
    [("replay",), ("replay", "--times", "2"), ("check",), ("compare",), ("show",), ("fork",), ("list",)],
)
def test_reports_are_in_the_terminals_language_and_json_is_in_none(
    encore: Encore, engine_script: Script, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    engine_script.default = Reply(text="One two three four five six.")
    encore("ask", "Count", "--max-tokens", "64")
    named = {"list": [], "compare": [digest_of(encore)] * 2}.get(words[0], [digest_of(encore)])

    def in_chinese(language: str, format: str) -> bool:
        monkeypatch.setenv("LC_ALL", language)
        code, out, _ = encore(words[0], *named, *words[1:], "--format", format)
        assert (code, bool(out)) == (0, True)
        return re.search("[\u4e00-\u9fff]", out) is not None

    for format in ("text", "markdown"):
        assert in_chinese("zh_CN.UTF-8", format)
        assert not in_chinese("en_US.UTF-8", format)
    assert not in_chinese("zh_CN.UTF-8", "json")


def test_replays_among_neighbours_tell_the_load_and_the_forks(encore: Encore, engine_script: Script) -> None:
    engine_script.default = Reply(text="One two three four five six.", tokens_per_second=100)
    encore("ask", "Count", "--max-tokens", "64")
    digest = digest_of(encore)
    code, out, _ = encore("replay", digest, "--neighbours", "0,2", "--shape", "prefix", "--format", "json")
    alone, loaded = json.loads(out)["steps"]
    assert code == 0
    assert alone["load"]["asked"] == 0
    assert (loaded["load"]["asked"], loaded["load"]["shape"]) == (2, "prefix")
    assert loaded["load"]["most"] > 0
    engine_script.enqueue(Reply(text="One two three four six seven."))
    code, out, _ = encore("replay", digest, "--times", "2", "--format", "markdown")
    assert code == 1
    assert out.startswith("**Alone: 1 of 2 identical, so at least 9 % (Wilson 95 %).**")
    assert "2 different answers in 3 runs" in out


def test_a_broken_off_sweep_prints_what_it_has(encore: Encore, engine_script: Script) -> None:
    encore("ask", "Hello")
    engine_script.enqueue(Reply(), Reply(ending="close", ending_after=10))
    code, out, err = encore("replay", digest_of(encore), "--times", "3")
    assert code == 2
    assert "1 of 1 identical" in out
    assert "Stopped after 1 of 3 replays" in out
    assert "broke off after 10 tokens" in err


def test_drift_counts_only_when_asked_for(encore: Encore, engine_script: Script) -> None:
    encore("ask", "Hello")
    digest = digest_of(encore)
    engine_script.default = Reply(drift=0.01)
    assert encore("replay", digest)[0] == 1
    assert encore("replay", digest, "--level", "tokens")[0] == 0


def test_check_says_bit_exact_within_outside_or_undecided(encore: Encore, engine_script: Script) -> None:
    encore("ask", "Hello")
    digest = digest_of(encore)
    code, out, err = encore("check", digest)
    assert (code, err) == (0, "")
    assert "Bit-exact" in out
    engine_script.enqueue(Reply(drift=0.01), Reply(), Reply(drift=0.01))
    code, out, _ = encore("check", digest)
    assert code == 0
    assert "Within tolerance" in out
    engine_script.enqueue(Reply(drift=1.0))
    code, out, _ = encore("check", digest, "--format", "json")
    assert code == 1
    assert json.loads(out)["check"]["verdict"] == "OUTSIDE"
    engine_script.model = "another"
    code, out, _ = encore("check", digest, "--format", "markdown")
    assert code == 2
    assert "another model" in out


@pytest.mark.parametrize(("drift", "near"), [(0.03, True), (0.01, False)])
def test_a_self_check_says_how_near_a_near_tie_is(
    encore: Encore, engine_script: Script, drift: float, near: bool
) -> None:
    """Both tokens of the fork are 0.05 nats apart."""
    encore("ask", "Hello")
    digest = digest_of(encore)
    engine_script.enqueue(Reply(drift=drift), Reply(), Reply(drift=drift))
    assert encore("check", digest)[0] == 0
    engine_script.enqueue(Reply(fork_at=31))
    _, out, _ = encore("replay", digest)
    assert ("twice the largest difference of this engine's self-check" in out) is near
    assert ("Cause unknown" in out) is not near


def test_probe_says_what_it_tried_and_exits_by_what_it_found(encore: Encore, engine_script: Script) -> None:
    engine_script.default = Reply(seeded=True, cached_tokens=16)
    code, out, err = encore("probe")
    assert (code, err) == (0, "")
    assert "● Seed honoured" in out
    assert "● Recording probabilities: changed nothing" in out
    assert "Prompt tokens from the cache: 0, then 16." in out
    encore("ask", "Hello")
    engine_script.default = Reply()
    code, out, _ = encore("probe", digest_of(encore), "--format", "json")
    report = json.loads(out)
    assert code == 1
    assert report["seed"]["outcome"] == "IGNORED"
    assert [guard["outcome"] for guard in report["guards"]] == ["SAME", "UNDECIDED"]
    assert report["guards"][1]["reason"] == "cache_not_told"
    engine_script.default = Reply(seeded=True)
    code, out, _ = encore("probe", "--format", "markdown")
    assert code == 2
    assert "**? Prefix cache: undecided.**" in out


def test_what_a_sweep_and_a_check_found_is_kept_with_the_run(encore: Encore) -> None:
    encore("ask", "Hello")
    digest = digest_of(encore)
    encore("replay", digest, "--times", "2")
    encore("check", digest)

    async def kept() -> list[StoredFinding]:
        async with open_store(load_settings()) as store:
            return await store.findings((await store.run_by_digest_prefix(digest)).id)

    checked, repeated = (finding.found for finding in asyncio.run(kept()))
    assert isinstance(checked, Check)
    assert checked.verdict is CheckVerdict.BIT_EXACT
    assert isinstance(repeated, RepeatReport)
    assert [step.identical for step in repeated.steps] == [2]


def test_an_exported_receipt_can_be_compared_and_replayed_elsewhere(
    encore: Encore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encore("ask", "Hello")
    digest = digest_of(encore)
    file = tmp_path / "收据.json"
    assert encore("export", digest, str(file))[0] == 0
    assert encore("export", digest, str(file))[0] == 2, "never overwrites"
    monkeypatch.setenv("ENCORE_DATA_DIR", str(tmp_path / "fresh"))
    assert encore("compare", str(file), str(file))[0] == 0
    code, out, _ = encore("replay", str(file))
    assert code == 0
    assert "Came out the same" in out


def test_a_tampered_file_is_refused_by_its_digest(encore: Encore, tmp_path: Path) -> None:
    encore("ask", "Hello")
    file = tmp_path / "receipt.json"
    encore("export", digest_of(encore), str(file))
    file.write_text(file.read_text().replace("112330", "112331"))
    code, _, err = encore("show", str(file))
    assert code == 2
    assert "changed after it was recorded" in err


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (("ask", "hi", "--seed", "1.5"), "Use a whole number from -9223372036854775808"),
        (("ask", "hi", "--temperature", "3"), "from 0 to 2"),
        (("replay", "deadbeef"), "deadbeef"),
        (("show", "nonsense!"), "neither a file nor a digest"),
        (("replay", "deadbeef", "--neighbours", "many"), "whole numbers from 0 to 256"),
        (("replay", "deadbeef", "--shape", "round"), "'round' is not one of"),
        (("list", "--limit", "0"), "greater than or equal to 1"),
        (("frobnicate",), "No such command"),
    ],
)
def test_bad_usage_is_a_sentence_and_exit_code_2(encore: Encore, argv: tuple[str, ...], words: str) -> None:
    code, out, err = encore(*argv)
    assert code == 2
    assert out == ""
    assert words in err


def test_an_interrupted_answer_is_kept_and_undecided(encore: Encore, engine_script: Script) -> None:
    """RC-46"""
    engine_script.enqueue(Reply(ending="close", ending_after=10))
    code, _, err = encore("ask", "Hello")
    assert code == 2
    assert "broke off after 10 tokens" in err
    assert json.loads(encore("list", "--format", "json")[1])[0]["status"] == "interrupted"


def test_invalid_model_output_is_warned_of_wherever_the_run_is_shown(
    encore: Encore, engine_script: Script
) -> None:
    """RC-12: a whole row of NaN; the run cannot be checked or compared, and says why."""
    engine_script.default = Reply(logprobs="null_rows")
    code, _, err = encore("ask", "Hello")
    assert code == 0
    assert "Model output invalid: at 24 positions every probability was not a number (NaN)" in err
    digest = digest_of(encore)
    assert "model output invalid" in encore("list")[1]
    assert "Model output invalid: at 24 positions" in encore("show", digest)[1]
    for command in ("replay", "check"):
        code, out, _ = encore(command, digest)
        assert code == 2
        assert "the recorded run's model output was invalid (not a number) at 24 of its positions" in out


def test_doctor_tells_whether_a_question_could_be_asked(encore: Encore, engine_script: Script) -> None:
    code, out, _ = encore("doctor")
    assert code == 0
    assert "ready" in out
    engine_script.health = 503
    code, out, _ = encore("doctor", "--format", "json")
    assert code == 2
    assert json.loads(out)["state"]["kind"] == "loading"


def test_doctor_without_an_engine_is_undecided(encore: Encore) -> None:
    code, out, _ = encore("doctor", "--engine", "http://127.0.0.1:9")
    assert code == 2
    assert "unreachable" in out


def test_more_alternatives_than_the_engine_gives_is_refused_with_its_limit(
    encore: Encore, engine_script: Script
) -> None:
    """RC-14"""
    said = "Requested sample logprobs of 12, which is greater than max allowed: 5"
    engine_script.enqueue(Reply(status=400, error=said))
    code, _, err = encore("ask", "2+2?", "--top-logprobs", "12")
    assert code == 2
    assert "12 alternatives per token were asked for; this engine gives at most 5." in err
    assert json.loads(encore("list", "--format", "json")[1]) == []


def test_the_comparison_report_has_the_recorded_alternatives(encore: Encore, engine_script: Script) -> None:
    encore("ask", "2+2?")
    digest = digest_of(encore)
    engine_script.enqueue(Reply(drift=-0.001))
    code, out, _ = encore("replay", digest)
    assert code == 1
    assert "Recorded alternatives" in out
    assert "Total variation" in out
    _, out, _ = encore("compare", digest, digest_of(encore), "--format", "json")
    found = json.loads(out, parse_constant=pytest.fail)["distributions"]
    assert found["measured"] == found["positions"] > 0
    assert found["max_abs_diff"] == pytest.approx(0.001)
    assert found["largest"]["lower"] <= found["largest"]["upper"]


def test_without_alternatives_the_report_says_so(encore: Encore) -> None:
    encore("ask", "2+2?", "--top-logprobs", "0")
    digest = digest_of(encore)
    code, out, _ = encore("compare", digest, digest)
    assert code == 0
    assert "No alternatives were recorded" in out


def test_help_lists_every_command_the_everyday_ones_first(encore: Encore) -> None:
    code, out, _ = encore("--help")
    assert code == 0
    listed = [line.split()[1] for line in out.splitlines() if line.startswith("│ ") and line[2] != " "]
    assert [name for name in listed if not name.startswith("-")] == list(ORDER)


def test_the_answer_line_is_computed_or_compared_with_what_is_expected(
    encore: Encore, engine_script: Script
) -> None:
    """RC-50: arithmetic by itself, everything else by what the teacher types, which stays beside the run."""
    _, _, err = encore("ask", "What is 235 times 478?")
    assert "Answer 112330 · ✓ right: 235 × 478 = 112330" in err
    engine_script.enqueue(Reply(text="<think>\\boxed{5}</think>Half: \\boxed{\\frac{3}{8}}"))
    _, out, err = encore("ask", "Which part is left?", "--expect", "0.375", "--format", "json")
    assert "Answer \\frac{3}{8} · ✓ right: expected 0.375" in err
    assert "0.375" not in out, "what is expected is no part of the receipt"
    _, out, _ = encore("show", digest_of(encore))
    assert "Answer \\frac{3}{8} · ✓ right: expected 0.375" in out
    engine_script.enqueue(Reply(text="Seven."))
    _, _, err = encore("ask", "How many?", "--expect", "7")
    assert "No answer in a box · expected 7" in err
    engine_script.enqueue(Reply(text="Seven."))
    _, _, err = encore("ask", "How many?")
    assert "nswer" not in err


def test_too_long_an_expectation_is_refused_before_anything_is_asked(
    encore: Encore, engine_script: Script
) -> None:
    code, _, err = encore("ask", "How many?", "--expect", "7" * 1001)
    assert code == 2
    assert "1,000 characters" in err
    assert not engine_script.bodies


def test_equal_answers_in_other_words_are_a_line_of_their_own(encore: Encore, engine_script: Script) -> None:
    """RC-50: the verdict is on tokens and stays what it is."""
    engine_script.enqueue(
        Reply(text="It is \\boxed{0.5}."),
        Reply(text="So it must be \\boxed{\\frac12}."),
        Reply(text="It is \\boxed{0.7}."),
    )
    encore("ask", "Half of one?")
    digest = digest_of(encore)
    code, out, _ = encore("replay", digest)
    assert code == 1
    assert out.startswith("✕ Different from token")
    assert "= Words differ, answer the same: 0.5 and \\frac12." in out.splitlines()
    code, out, _ = encore("replay", digest, "--format", "json")
    assert code == 1
    assert json.loads(out)["answers"]["opinion"]["sameness"] == "DIFFERENT"
    others = json.loads(encore("list", "--format", "json")[1])
    code, out, _ = encore("compare", digest, str(others[1]["digest"]), "--format", "markdown")
    assert code == 1
    assert "Words differ, answer the same" in out
