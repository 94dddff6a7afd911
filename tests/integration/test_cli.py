"""`encore` as people call it: report on stdout, progress on stderr, diff's exit codes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from scripted_engine import DEFAULT_TEXT, Reply, Script

from llm_backend.cli import main
from llm_backend.exported import parse_receipt

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
    engine_script.enqueue(Reply(ending="close", ending_after=10))
    code, _, err = encore("ask", "Hello")
    assert code == 2
    assert "broke off after 10 tokens" in err
    assert json.loads(encore("list", "--format", "json")[1])[0]["status"] == "interrupted"


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
