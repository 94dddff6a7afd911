"""A file of receipts is replayed whole, a few at a time, and what was broken off goes on where it was."""

from __future__ import annotations

import asyncio
import json
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from scripted_engine import Reply, Script, ScriptedEngine, serving

from llm_backend.batch import LOG_SUFFIX, BatchReplay
from llm_backend.batch_phrases import batch_text
from llm_backend.cli import main
from llm_backend.compare import Verdict
from llm_backend.diagnose import Cause
from llm_backend.engine.client import EngineClient
from llm_backend.errors import EncoreError, EngineNotReady
from llm_backend.exchange import export_receipts
from llm_backend.receipt import Message, Sampling
from llm_backend.record import build_request, record
from llm_backend.store import Store

QUESTIONS = 6
Batch = Callable[..., BatchReplay]


def asked(body: dict[str, Any]) -> int:
    """The number in the question."""
    return int(body["messages"][-1]["content"].split()[-1])


@pytest.fixture
async def file(engine: EngineClient, store: Store, engine_script: Script, tmp_path: Path) -> Path:
    """Receipts of questions 0 to 5, in this order."""
    engine_script.answer = lambda body: Reply(text=f"Number {asked(body)}.")
    for number in range(QUESTIONS):
        question = [Message(role="user", content=f"Say {number}")]
        asking = build_request("scripted", question, Sampling(max_tokens=64))
        async with record(engine, store, asking, chat_id="test") as recording:
            async for _ in recording:
                pass
    output = tmp_path / "all.jsonl"

    async def documents() -> Any:
        for digest in reversed([run.digest for run in await store.runs()]):
            assert digest is not None
            yield await store.export_line(digest)

    assert await export_receipts(documents(), output) == QUESTIONS
    engine_script.bodies.clear()
    return output


@pytest.fixture
def batch(engine: EngineClient, store: Store, file: Path) -> Batch:
    def make(**options: Any) -> BatchReplay:
        log = options.pop("log", file.with_name(file.name + LOG_SUFFIX))
        given: dict[str, Any] = {"concurrency": 1, "chat_id": "batch"} | options
        return BatchReplay(engine, store, file, log, **given)

    return make


def lines_of(file: Path) -> list[str]:
    return file.read_text(encoding="utf-8").splitlines()


def write_lines(file: Path, lines: list[str]) -> None:
    file.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def asked_of(script: Script) -> list[int]:
    return [asked(json.loads(body)) for body in script.bodies]


async def test_every_receipt_is_replayed_and_the_odd_ones_are_named(
    batch: Batch, engine_script: Script, store: Store
) -> None:
    def answer(body: dict[str, Any]) -> Reply:
        number = asked(body)
        return Reply(
            text=f"Number {number}.",
            fork_at=1 if number == 2 else None,
            drift=-0.25 if number == 4 else 0.0,
            status=400 if number == 5 else 200,
            error="no",
        )

    engine_script.answer = answer
    told: list[tuple[int, int]] = []
    report = await batch(on_progress=lambda *now: told.append(now)).run()
    assert (report.receipts, report.left, report.failed, report.refused) == (6, 0, 1, 0)
    assert report.verdicts == {
        Verdict.IDENTICAL: 3,
        Verdict.DRIFTED: 1,
        Verdict.DIVERGED: 1,
        Verdict.INCOMPARABLE: 0,
    }
    assert sum(report.causes.values()) == 2
    assert [outcome.verdict for outcome in report.notable] == [Verdict.DIVERGED, Verdict.DRIFTED, None]
    fork = report.notable[0]
    assert (fork.position, fork.cause in Cause) == (1, True)
    assert fork.run_id is not None
    assert (await store.run(fork.run_id)).chat_id == "batch"
    assert told == [(done, 6) for done in range(7)]
    said = batch_text(report)
    assert "6 receipts" in said
    assert "3 of 5 comparable came out the same" in said
    assert fork.digest[:19] in said


async def test_a_batch_whose_engine_died_goes_on_where_it_was(batch: Batch, engine_script: Script) -> None:
    healthy = engine_script.answer
    assert healthy is not None
    engine_script.answer = lambda body: Reply(status=503) if asked(body) == 3 else healthy(body)
    broken = batch()
    with pytest.raises(EngineNotReady):
        await broken.run()
    assert (broken.report().verdicts[Verdict.IDENTICAL], broken.report().left) == (3, 3)
    assert "3 not reached" in batch_text(broken.report())
    engine_script.answer = healthy
    engine_script.bodies.clear()
    report = await batch().run()
    assert asked_of(engine_script) == [3, 4, 5]
    assert (report.verdicts[Verdict.IDENTICAL], report.left, report.engines) == (6, 0, 1)


async def test_what_failed_is_tried_again_and_counted_once(batch: Batch, engine_script: Script) -> None:
    healthy = engine_script.answer
    assert healthy is not None
    engine_script.answer = lambda body: Reply(status=400, error="no") if asked(body) == 1 else healthy(body)
    assert (await batch().run()).failed == 1
    engine_script.answer = healthy
    engine_script.bodies.clear()
    report = await batch().run()
    assert asked_of(engine_script) == [1]
    assert (report.failed, report.verdicts[Verdict.IDENTICAL], report.notable) == (0, 6, ())


async def test_a_half_written_line_is_done_again(batch: Batch, file: Path, engine_script: Script) -> None:
    log = file.with_name(file.name + LOG_SUFFIX)
    await batch().run()
    whole = log.read_bytes()
    log.write_bytes(whole[:-20])
    engine_script.bodies.clear()
    report = await batch().run()
    assert asked_of(engine_script) == [5]
    assert report.verdicts[Verdict.IDENTICAL] == 6
    assert len(log.read_bytes().splitlines()) == 6


@pytest.mark.parametrize("content", ["a shopping list", '{"digest": "sha256:12"}\n', '{"a": 1}\n{"b": 2}\n'])
async def test_any_other_file_is_refused_and_left_as_it_is(
    batch: Batch, tmp_path: Path, engine_script: Script, content: str
) -> None:
    other = tmp_path / "other.txt"
    other.write_text(content)
    with pytest.raises(EncoreError, match="line 1, is not of a log of replays"):
        await batch(log=other).run()
    assert other.read_text() == content
    assert engine_script.bodies == []


async def test_two_do_not_write_one_log(batch: Batch, engine_script: Script) -> None:
    engine_script.answer = lambda body: Reply(text="One two three.", tokens_per_second=20)
    first = asyncio.create_task(batch().run())
    while not engine_script.bodies:
        await asyncio.sleep(0.01)
    with pytest.raises(EncoreError, match="Another replay is writing"):
        await batch().run()
    first.cancel()
    await asyncio.wait([first])
    assert (await batch().run()).left == 0, "a stopped batch gives the log back"


@pytest.mark.parametrize("concurrency", [1, 3])
async def test_no_more_than_asked_for_run_at_once(
    batch: Batch, engine_script: Script, concurrency: int
) -> None:
    most = 0

    def answer(body: dict[str, Any]) -> Reply:
        nonlocal most
        most = max(most, engine_script.in_flight)
        return Reply(text=f"Number {asked(body)}.", tokens_per_second=20)

    engine_script.answer = answer
    report = await batch(concurrency=concurrency).run()
    assert report.verdicts[Verdict.IDENTICAL] == 6
    assert most == concurrency - 1, "others in flight when one arrives"
    assert ("under the load of the others" in batch_text(report)) == (concurrency > 1)


async def test_lines_that_are_no_receipt_are_named_and_cost_nothing(batch: Batch, file: Path) -> None:
    first, *rest = lines_of(file)
    write_lines(file, [first, "{}", *rest, first])
    report = await batch().run()
    assert (report.receipts, report.refused, report.verdicts[Verdict.IDENTICAL]) == (6, 1, 6)
    assert "line 2" in batch_text(report)


async def test_memory_does_not_grow_with_the_file(
    engine: EngineClient, store: Store, file: Path, engine_script: Script, tmp_path: Path
) -> None:
    line = lines_of(file)[0]

    async def peak(lines: int) -> int:
        many = tmp_path / f"{lines}.jsonl"
        write_lines(many, [line] * lines)
        log = tmp_path / f"{lines}.log"
        tracemalloc.start()
        try:
            report = await BatchReplay(engine, store, many, log, concurrency=1, chat_id="batch").run()
            assert report.receipts == 1
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    await peak(1)  # what is built once and kept
    small, large = await peak(10), await peak(2000)
    size = (tmp_path / "2000.jsonl").stat().st_size
    assert size > 2_000_000
    assert large - small < size / 4


class TestCommand:
    @pytest.fixture
    def encore(
        self,
        tmp_path: Path,
        scripted_url: str,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> Callable[..., tuple[int, str, str]]:
        monkeypatch.setenv("ENCORE_RUN_DIR", str(tmp_path))
        monkeypatch.setenv("ENCORE_DATA_DIR", str(tmp_path / "data"))
        monkeypatch.setenv("ENCORE_ENGINE_URLS", scripted_url)

        def call(*argv: object) -> tuple[int, str, str]:
            code: object = 0
            try:
                main([str(word) for word in argv])
            except SystemExit as exit_:
                code = exit_.code
            captured = capsys.readouterr()
            assert "Traceback" not in captured.err
            return int(str(code or 0)), captured.out, captured.err

        return call

    def test_a_file_replays_to_one_summary_and_an_exit_code(
        self, encore: Callable[..., tuple[int, str, str]], engine_script: Script, tmp_path: Path
    ) -> None:
        engine_script.answer = lambda body: Reply(text=f"Number {asked(body)}.")
        for number in range(3):
            assert encore("ask", f"Say {number}")[0] == 0
        file = tmp_path / "three.jsonl"
        assert encore("export", "--all", file)[0] == 0
        code, out, _ = encore("replay", "--from", file, "--concurrency", "2")
        assert (code, "3 receipts: 3 ● Came out the same" in out) == (0, True)
        assert Path(f"{file}{LOG_SUFFIX}").read_text().count("IDENTICAL") == 3
        code, out, _ = encore("replay", "--from", file, "--format", "json")
        assert (code, json.loads(out)["verdicts"]["IDENTICAL"]) == (0, 3)
        engine_script.answer = lambda body: Reply(text="Another.")
        assert encore("replay", "--from", file, "--log", tmp_path / "again")[0] == 1

    @pytest.mark.parametrize(
        ("words", "problem"),
        [
            ([], "What shall be replayed?"),
            (["abc", "--from", "x"], "What shall be replayed?"),
            (["--from", "x", "--times", "2"], "repeat one receipt"),
            (["abc", "--concurrency", "2"], "for many receipts"),
            (["--from", "missing.jsonl"], "missing.jsonl cannot be read"),
        ],
    )
    def test_what_does_not_go_together_is_said(
        self, encore: Callable[..., tuple[int, str, str]], words: list[str], problem: str
    ) -> None:
        code, out, err = encore("replay", *words)
        assert (code, out) == (2, "")
        assert problem in err

    def test_an_engine_that_is_gone_ends_it_with_one_sentence(
        self, encore: Callable[..., tuple[int, str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        assert encore("ask", "Say 1")[0] == 0
        file = tmp_path / "one.jsonl"
        assert encore("export", "--all", file)[0] == 0
        with serving(ScriptedEngine()) as url:
            pass
        code, out, err = encore("replay", "--from", file, "--engine", url)
        assert (code, "1 not reached" in out, f"No engine answers at {url}" in err) == (2, True, True)
