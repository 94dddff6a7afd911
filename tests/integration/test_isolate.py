"""`encore isolate` on engines that flip for one scripted reason: that reason is found, and no other."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from scripted_engine import Reply, Script

from llm_backend.cli import main
from llm_backend.config import Settings
from llm_backend.engine.client import EngineClient
from llm_backend.isolate import Climb, Plan
from llm_backend.isolate_phrases import conclusion, isolation_markdown, isolation_text
from llm_backend.ladder import LIVE, Finding, Isolation, Rung
from llm_backend.receipt import Message, Sampling
from llm_backend.record import build_request, record
from llm_backend.store import Run, Store

ANSWER = "One two three four five six seven eight nine ten."
SAME, OTHER = Reply(text=ANSWER), Reply(text=ANSWER, fork_at=4)

Body = dict[str, Any]
Climber = Callable[..., Any]


def flips_when(flips: Callable[[Body], bool]) -> Callable[[Body], Reply]:
    return lambda body: OTHER if flips(body) else SAME


@pytest.fixture
def climb(engine: EngineClient, store: Store, engine_script: Script, tmp_path: Path) -> Climber:
    """Record an answer, then climb while the engine answers by the request's body."""

    async def run(
        answer: Callable[[Body], Reply], *, go_on: bool = False, sampling: Sampling | None = None, **plan: Any
    ) -> Isolation:
        engine_script.answer = answer
        reference = await ask(engine, store, sampling or Sampling(seed=7, max_tokens=64))
        wanted = Plan(**{"rungs": LIVE, "times": 3, "neighbours": 2, "go_on": go_on} | plan)
        settings = Settings(data_dir=tmp_path, run_dir=tmp_path)
        return await Climb(settings, engine, store, reference, wanted, chat_id="test").run()

    return run


async def ask(engine: EngineClient, store: Store, sampling: Sampling) -> Run:
    request = build_request("scripted", [Message(role="user", content="Count to ten.")], sampling)
    async with record(engine, store, request, chat_id="test") as recording:
        async for _ in recording:
            pass
    assert recording.run is not None
    return recording.run


def findings(report: Isolation) -> dict[Rung, Finding]:
    return {tried.rung: tried.finding for tried in report.tried}


@pytest.mark.parametrize(
    ("flips", "culprit"),
    [
        (lambda body: body.get("ignore_eos") is None and len(body["messages"][0]["content"]) > 99, None),
        (lambda body: "cache_salt" in body, Rung.CACHE_COLD),
        (lambda body: not body.get("logprobs"), Rung.LOGPROBS),
        (lambda body: not body["stream"], Rung.STREAM),
        (lambda body: body.get("seed") != 7, Rung.SEED),
    ],
)
async def test_the_one_thing_that_flips_it_is_named(
    climb: Climber, flips: Callable[[Body], bool], culprit: Rung | None
) -> None:
    report = await climb(flips_when(flips))
    assert [tried.rung for tried in report.decisive] == ([culprit] if culprit else [])
    assert report.complete
    said = " ".join(conclusion(report))
    if culprit is None:
        assert report.outcome == "not_flipped"
        assert "Nothing that was tried flips it: 8 rungs are not shown to matter" in said
        assert "excludes none" in said
    else:
        assert report.outcome == "flipped"
        assert report.tried[-1].rung is culprit, "it stops at the first"
        assert said.startswith("What flips it:")
        assert "0 of 3; without that: 3 of 3" in said
        later = [rung for rung in LIVE if LIVE.index(rung) > LIVE.index(culprit)]
        assert [one.rung for one in report.not_tried if one.why == "flipped"] == later


async def test_load_flips_it_and_the_load_is_proven(climb: Climber, engine_script: Script) -> None:
    steady = [replace(reply, tokens_per_second=200) for reply in (SAME, OTHER)]
    report = await climb(lambda _: steady[engine_script.in_flight > 0], times=2, neighbours=4)
    (found,) = report.decisive
    assert found.rung is Rung.LOADED
    assert found.load is not None
    assert found.load.most > 0
    assert found.tally.equal_receipt < found.tally.n


async def test_all_goes_on_and_names_every_rung_that_flips(climb: Climber) -> None:
    report = await climb(flips_when(lambda body: "cache_salt" in body or not body["stream"]), go_on=True)
    named = [tried.rung for tried in report.decisive]
    assert named == [Rung.CACHE_COLD, Rung.CACHE_WARM, Rung.STREAM]
    assert not report.not_tried


async def test_another_seed_is_no_finding_where_it_draws_another_answer(climb: Climber) -> None:
    sampled = Sampling(seed=7, temperature=0.8, max_tokens=64)
    report = await climb(lambda body: Reply(text=ANSWER, seeded=True), sampling=sampled)
    assert report.outcome == "not_flipped"
    (seed,) = [tried for tried in report.tried if tried.rung is Rung.SEED]
    assert seed.drawn_anew
    assert (seed.tally.equal_receipt, seed.tally.repeats) == (0, 2)


async def test_what_does_not_repeat_with_nothing_changed_is_steadied_by_the_rung_that_helps(
    climb: Climber,
) -> None:
    """An engine whose sampling ignores the seed: greedy repeats, nothing else does."""
    turn = alternating()

    def answer(body: Body) -> Reply:
        return next(turn) if body.get("temperature") else SAME

    sampled = Sampling(seed=7, temperature=0.8, max_tokens=64)
    report = await climb(answer, sampling=sampled, rungs=(Rung.ALONE, Rung.STREAM, Rung.SAMPLING))
    assert findings(report)[Rung.ALONE] is Finding.UNSTEADY
    assert [tried.rung for tried in report.decisive] == [Rung.SAMPLING]
    assert conclusion(report)[0].startswith(
        "With nothing changed it does not repeat; with this it did: greedy"
    )


async def test_a_difference_that_nothing_explains_is_called_unexplained(climb: Climber) -> None:
    turn = alternating()
    report = await climb(lambda _: next(turn), rungs=(Rung.ALONE, Rung.LOGPROBS, Rung.STREAM))
    assert not report.decisive
    assert report.outcome == "flipped"
    assert conclusion(report)[0].startswith("Unexplained: it does not repeat though nothing is changed")


async def test_a_flip_that_stays_when_the_change_is_undone_is_not_the_rungs(climb: Climber) -> None:
    """An engine that changes for good while a rung is tried."""
    broken: list[Body] = []

    def answer(body: Body) -> Reply:
        if not body["stream"]:
            broken.append(body)
        return OTHER if broken else SAME

    report = await climb(answer, rungs=(Rung.ALONE, Rung.STREAM))
    assert findings(report) == {Rung.ALONE: Finding.REPRODUCES, Rung.STREAM: Finding.UNATTRIBUTED}
    assert conclusion(report)[0].startswith("Unexplained:")


async def test_a_recorded_result_that_only_comes_back_uncached_is_restored(
    engine: EngineClient, store: Store, engine_script: Script, tmp_path: Path
) -> None:
    """Recorded cold; every later request finds the prompt cached and answers otherwise."""
    engine_script.default = SAME
    reference = await ask(engine, store, Sampling(seed=7, max_tokens=64))
    seen: set[str] = set()

    def answer(body: Body) -> Reply:
        salt = body.get("cache_salt", "")
        cold = bool(salt) and salt not in seen
        seen.add(salt)
        return SAME if cold else OTHER

    engine_script.answer = answer
    plan = Plan(rungs=LIVE, times=3, neighbours=1)
    settings = Settings(data_dir=tmp_path, run_dir=tmp_path)
    report = await Climb(settings, engine, store, reference, plan, chat_id="test").run()
    assert findings(report)[Rung.ALONE] is Finding.ANOTHER_RESULT
    assert report.tried[-1].rung is Rung.CACHE_COLD
    assert report.tried[-1].finding is Finding.RESTORES


async def test_what_cannot_be_compared_is_undecided_and_not_tried_on(climb: Climber) -> None:
    first = iter([SAME])
    report = await climb(lambda _: next(first, Reply(text=ANSWER, prompt_suffix="!")))
    assert report.outcome == "undecided"
    assert [tried.rung for tried in report.tried] == [Rung.ALONE]
    assert {one.why for one in report.not_tried} == {"incomparable"}


async def test_a_warm_cache_that_was_not_warm_is_not_tried(climb: Climber) -> None:
    report = await climb(lambda _: Reply(text=ANSWER, cached_tokens=0))
    assert [(one.rung, one.why) for one in report.not_tried] == [(Rung.CACHE_WARM, "nothing_cached")]


async def test_cancelling_keeps_what_was_measured(
    engine: EngineClient, store: Store, engine_script: Script, tmp_path: Path
) -> None:
    engine_script.default = SAME
    reference = await ask(engine, store, Sampling(seed=7, max_tokens=64))
    third = asyncio.Event()
    climb = Climb(
        Settings(data_dir=tmp_path, run_dir=tmp_path),
        engine,
        store,
        reference,
        Plan(rungs=LIVE, times=2, neighbours=1),
        chat_id="test",
        on_progress=lambda now: third.set() if now.rung is Rung.LOGPROBS else None,
    )
    task = asyncio.create_task(climb.run())
    await asyncio.wait_for(third.wait(), 20)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    report = climb.report
    assert [tried.rung for tried in report.tried][:3] == list(LIVE[:3])
    assert not report.complete
    assert "Stopped before the end" in isolation_text(report)
    assert Rung.SEED in {one.rung for one in report.not_tried if one.why == "stopped"}


def alternating() -> Iterator[Reply]:
    while True:
        yield SAME
        yield OTHER


class TestCommand:
    @pytest.fixture
    def encore(
        self,
        scripted_url: str,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> Callable[..., tuple[int, str, str]]:
        monkeypatch.setenv("ENCORE_DATA_DIR", str(tmp_path))
        monkeypatch.setenv("ENCORE_RUN_DIR", str(tmp_path))
        monkeypatch.setenv("ENCORE_ENGINE_URLS", scripted_url)

        def call(*argv: str) -> tuple[int, str, str]:
            with pytest.raises(SystemExit) as exit_:
                main(list(argv))
            captured = capsys.readouterr()
            assert "Traceback" not in captured.err
            return int(exit_.value.code or 0), captured.out, captured.err

        return call

    def test_the_exit_code_says_whether_something_flipped_it(
        self, encore: Callable[..., tuple[int, str, str]], engine_script: Script
    ) -> None:
        engine_script.default = Reply(text=ANSWER)
        encore("ask", "Count", "--max-tokens", "64")
        _, out, _ = encore("list", "--format", "json")
        digest = json.loads(out)[0]["digest"]
        code, out, _ = encore("isolate", digest, "--times", "2", "--neighbours", "1", "--format", "json")
        document = json.loads(out)
        assert (code, document["outcome"]) == (0, "not_flipped")
        engine_script.answer = flips_when(lambda body: not body["stream"])
        code, out, _ = encore("isolate", digest, "--times", "2", "--rungs", "stream,logprobs")
        assert code == 1
        assert "✕ without streaming (stream false): flips it." in out
        assert "What flips it: without streaming" in out
        assert "neighbours" not in out.split("What flips it")[0]
        code, out, err = encore("isolate", digest, "--rungs", "stream,lunar")
        assert (code, out) == (2, "")
        assert "'lunar', which is no rung" in err

    def test_markdown_says_the_same(self, encore: Callable[..., tuple[int, str, str]]) -> None:
        report = Isolation(digest="sha256:0", level="logprobs", times=3)
        assert isolation_markdown(report).startswith("**Undecided")
        assert "无法判定" in isolation_markdown(report, "zh-CN")
