"""`encore verify` on the scripted engine: what passes, what fails, what stays open, and what is kept."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from sample_receipts import engine as fingerprint
from scripted_engine import Reply, Script

from llm_backend.cli import main
from llm_backend.engine.manifest import Manifest, write_manifest

Encore = Callable[..., tuple[int, str, str]]

STEADY = Reply(
    text="One two three four five six seven eight nine ten eleven twelve, and the same again from the start.",
    tokens_per_second=400,
    seeded=True,
    cached_tokens=4,
)
"""A well-behaved engine, slow enough that neighbours and the measured replay overlap."""

SUITE = """
name = "tiny"
max_tokens = 32
[[prompts]]
name = "count"
text = "Count to ten."
"""


@pytest.fixture
def suite(tmp_path: Path) -> str:
    file = tmp_path / "tiny.toml"
    file.write_text(SUITE, encoding="utf-8")
    return str(file)


@pytest.fixture
def encore(
    scripted_url: str,
    engine_script: Script,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Encore:
    engine_script.default = STEADY
    monkeypatch.setenv("ENCORE_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("ENCORE_RUN_DIR", str(tmp_path))
    monkeypatch.setenv("ENCORE_ENGINE_URLS", scripted_url)
    monkeypatch.setenv("LC_ALL", "C.UTF-8")

    def call(*argv: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as exit_:
            main(list(argv))
        captured = capsys.readouterr()
        assert "Traceback" not in captured.err
        return int(exit_.value.code or 0), captured.out, captured.err

    return call


def verify(encore: Encore, *argv: str) -> tuple[int, dict[str, Any]]:
    code, out, err = encore("verify", *argv, "--format", "json")
    assert out, err
    return code, json.loads(out)


def outcomes(report: dict[str, Any]) -> dict[tuple[str, int | None], str]:
    return {(f["kind"], f["neighbours"]): f["outcome"] for f in report["findings"]}


def test_a_suite_is_asked_and_everything_that_can_be_is_checked(
    encore: Encore, suite: str, engine_script: Script
) -> None:
    # Answers far longer than the pauses between them, on a busy machine too: the load must be seen.
    engine_script.default = replace(STEADY, tokens_per_second=80)
    code, report = verify(encore, suite, "--times", "2", "--neighbours", "0,2")
    found = outcomes(report)
    assert found["alone", 0] == "passed"
    assert found["load", 2] == "passed"
    assert found["instant", None] == "passed"
    assert found["observer", None] == "passed"
    assert found["restart", None] == "not_applicable", "Encore did not start it"
    assert found["identity", None] == "undecided", "it does not tell who it is"
    assert found["seed", None] == "passed"
    assert code == 2
    cells = {(c["neighbours"], c["greedy"]): (c["same"], c["runs"]) for c in report["cells"]}
    assert cells[0, True] == cells[2, True] == (2, 2)
    assert report["cases"][0]["answer_tokens"] == 21
    engine_script.default = STEADY
    code, report = verify(encore, suite, "--times", "1", "--neighbours", "0", "--anonymous")
    assert (code, report["outcome"]) == (0, "passed")


def test_an_engine_that_drops_the_seed_fails(encore: Encore, suite: str, engine_script: Script) -> None:
    engine_script.default = replace(STEADY, seeded=False)
    code, report = verify(encore, suite, "--times", "1", "--neighbours", "0", "--anonymous")
    assert code == 1
    assert [f["kind"] for f in report["findings"] if f["outcome"] == "failed"] == ["seed"]


def test_an_answer_that_depends_on_being_watched_fails(
    encore: Encore, suite: str, engine_script: Script
) -> None:
    engine_script.default = replace(STEADY, observed_fork_at=3)
    code, report = verify(encore, suite, "--times", "1", "--neighbours", "0", "--anonymous")
    assert code == 1
    assert outcomes(report)["observer", None] == "failed"


def test_a_fork_under_load_fails_with_its_place(encore: Encore, suite: str, engine_script: Script) -> None:
    alone = ("verify", suite, "--times", "1", "--neighbours", "0", "--format", "junit")
    engine_script.enqueue(STEADY, replace(STEADY, fork_at=4))
    code, out, _ = encore(*alone)
    assert code == 1
    failure = ElementTree.fromstring(out).find("testsuite[@name='Repeats alone']/testcase/failure")
    assert failure is not None
    assert "Different from token 4 on" in failure.get("message", "")


def test_a_load_that_is_not_there_is_undecided(encore: Encore, suite: str, engine_script: Script) -> None:
    """Answers of one token: neighbours are between answers nearly all the time."""
    engine_script.default = Reply(text="x")
    code, report = verify(encore, suite, "--times", "1", "--neighbours", "3", "--anonymous")
    assert outcomes(report)["load", 3] == "undecided"
    assert code != 0


def test_an_engine_that_tells_who_it_is_passes(
    encore: Encore, suite: str, scripted_url: str, engine_script: Script, tmp_path: Path
) -> None:
    facts = fingerprint(
        model="scripted",
        chat_template_digest="sha256:template",
        vllm_version=engine_script.version,
        torch_version="2",
        device="cpu",
        cpu_model="none",
        cpu_flags=("avx2",),
        threads=1,
        profile="strict",
        argv=("--seed", "42"),
        dtype="bfloat16",
        max_model_len=engine_script.max_model_len,
        tensor_parallel_size=1,
        enforce_eager=True,
        prefix_caching=False,
    )
    manifest = Manifest(
        url=scripted_url,
        pid=None,
        start_id="1",
        started_at=datetime.now(UTC),
        log_file="",
        fingerprint=facts,
    )
    write_manifest(tmp_path / "manifest.json", manifest)
    _, report = verify(encore, suite, "--times", "1", "--neighbours", "0", "--no-restart")
    found = outcomes(report)
    assert found["identity", None] == "passed"
    assert found["cache", None] == "not_applicable", "it is off"
    assert report["engine"]["profile"] == "strict"


def test_an_engine_that_dies_leaves_a_partial_report(
    encore: Encore, suite: str, engine_script: Script, tmp_path: Path
) -> None:
    engine_script.enqueue(STEADY, STEADY, replace(STEADY, ending="close", ending_after=3))
    html = tmp_path / "report.html"
    code, out, _ = encore("verify", suite, "--times", "3", "--neighbours", "0", "--write", str(html))
    assert code == 2
    assert out.startswith("? Undecided")
    assert "Partial: the engine failed before everything was measured." in out
    assert "broke off after 3 tokens" in out
    assert "Only 1 of 3 replays were made." in out
    assert "Partial" in html.read_text(encoding="utf-8")


def test_ctrl_c_keeps_what_was_measured(
    encore: Encore, suite: str, engine_script: Script, tmp_path: Path, scripted_url: str
) -> None:
    engine_script.default = replace(STEADY, tokens_per_second=40)
    environ = os.environ | {"PYTHONUNBUFFERED": "1"}
    command = [sys.executable, "-m", "llm_backend", "verify", suite, "--times", "900", "--neighbours", "0"]
    asked = subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        deadline = time.monotonic() + 60
        while len(engine_script.bodies) < 4:
            assert time.monotonic() < deadline
            assert asked.poll() is None
            time.sleep(0.05)
        asked.send_signal(signal.SIGINT)
        out, err = asked.communicate(timeout=60)
    finally:
        asked.kill()
    assert asked.returncode == 2, err
    assert "Partial: it was stopped by hand" in out
    assert "of 900 replays were made." in out
    assert "Traceback" not in err


def test_a_prompt_that_does_not_fit_is_skipped_with_a_sentence(
    encore: Encore, suite: str, engine_script: Script
) -> None:
    engine_script.max_model_len = 40
    _, out, _ = encore("verify", suite, "--times", "1", "--neighbours", "0")
    assert "count/greedy was skipped: the prompt takes " in out
    assert "and this engine's context holds 40." in out
    assert "– none asked" in out


def test_the_next_day_is_held_against_the_baseline(
    encore: Encore, suite: str, engine_script: Script, tmp_path: Path
) -> None:
    file = tmp_path / "基线.json"
    quiet = (suite, "--times", "1", "--neighbours", "0", "--anonymous")
    code, report = verify(encore, *quiet, "--save-baseline", str(file))
    assert (code, report["outcome"]) == (0, "passed"), outcomes(report)
    assert encore("verify", *quiet, "--save-baseline", str(file))[0] == 2, "never overwritten"

    engine_script.version = "0.0.1-scripted"
    code, report = verify(encore, *quiet, "--baseline", str(file))
    (finding,) = (f for f in report["findings"] if f["kind"] == "baseline")
    assert (code, finding["outcome"]) == (0, "passed")
    first = finding["changes"][0]
    assert (first["field"], first["relevance"]) == ("vllm_version", "bit-relevant")

    engine_script.default = replace(STEADY, text=STEADY.text.replace("five", "six"))
    code, out, _ = encore("verify", *quiet, "--baseline", str(file))
    assert code == 1
    assert "✕ failed: count/greedy: Against the baseline" in out
    assert "The engine is not the one that was recorded: vLLM version" in out


def test_a_baseline_that_was_altered_is_refused(encore: Encore, suite: str, tmp_path: Path) -> None:
    file = tmp_path / "baseline.json"
    file.write_text("{}", encoding="utf-8")
    code, out, err = encore("verify", suite, "--baseline", str(file))
    assert (code, out) == (2, "")
    assert "is not an Encore baseline" in err


def test_no_baseline_is_kept_of_an_engine_that_failed(
    encore: Encore, suite: str, engine_script: Script, tmp_path: Path
) -> None:
    file = tmp_path / "baseline.json"
    engine_script.enqueue(STEADY, replace(STEADY, fork_at=4))
    code, _, err = encore("verify", suite, "--times", "1", "--neighbours", "0", "--save-baseline", str(file))
    assert code == 1
    assert "was not written" in err
    assert not file.exists()


def test_an_engine_whose_output_is_no_number_fails_and_gives_no_baseline(
    encore: Encore, suite: str, engine_script: Script, tmp_path: Path
) -> None:
    """RC-12: invalid output that repeats is not a clean baseline."""
    file = tmp_path / "baseline.json"
    engine_script.default = replace(STEADY, logprobs="null_rows")
    code, out, err = encore(
        "verify", suite, "--times", "1", "--neighbours", "0", "--save-baseline", str(file)
    )
    assert code == 1
    assert "The model's output was invalid" in out
    assert "was not written" in err
    assert not file.exists()


def test_receipts_are_verified_as_they_were_recorded(encore: Encore, engine_script: Script) -> None:
    encore("ask", "Hello", "--max-tokens", "16")
    digest = json.loads(encore("list", "--format", "json")[1])[0]["digest"]
    _, report = verify(encore, digest[7:19], "--times", "2", "--neighbours", "0", "--anonymous")
    assert report["suite"] == "receipts"
    assert report["cases"][0]["digest"] == digest
    assert outcomes(report)["alone", 0] == "passed"


def test_every_format_can_be_written_at_once(encore: Encore, suite: str, tmp_path: Path) -> None:
    names = ("r.txt", "r.json", "r.xml", "r.md", "r.html")
    wanted = [part for name in names for part in ("--write", str(tmp_path / name))]
    _, out, err = encore(
        "verify", suite, "--times", "1", "--neighbours", "0", "--lang", "zh-CN", "--format", "html",
        "--output", str(tmp_path / "o.html"), *wanted,
    )  # fmt: skip
    assert out == "", "it went to --output"
    assert all(name in err for name in names)
    assert (tmp_path / "r.txt").read_text(encoding="utf-8").startswith("? 无法判定")
    assert json.loads((tmp_path / "r.json").read_text(encoding="utf-8"))["outcome"] == "undecided"
    assert ElementTree.parse(tmp_path / "r.xml").getroot().tag == "testsuites"
    assert (tmp_path / "r.md").read_text(encoding="utf-8").startswith("# 验收报告")
    assert (tmp_path / "r.html").read_bytes() == (tmp_path / "o.html").read_bytes()
    assert not list(tmp_path.glob("*.tmp"))
    assert not list(tmp_path.glob(".*.tmp"))


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (("--write", "report.pdf"), "does not end in one of .txt .json .xml .md .html"),
        (("--write", "no/such/folder/r.html"), "cannot be written"),
        (("a.toml", "b.toml"), "A suite is verified by itself"),
        (("none.toml",), "cannot be read: No such file"),
        (("deadbeef",), "deadbeef"),
        (("--neighbours", "few"), "whole numbers from 0 to 256"),
        (("--times", "0"), "greater than or equal to 1"),
        (("--format", "pdf"), "'pdf' is not one of"),
        (("--engine", "http://127.0.0.1:9"), "No engine answers"),
    ],
)
def test_bad_usage_is_a_sentence_before_anything_is_asked(
    encore: Encore, engine_script: Script, argv: tuple[str, ...], words: str
) -> None:
    code, out, err = encore("verify", *argv)
    assert (code, out) == (2, "")
    assert words in err
    assert not engine_script.bodies
