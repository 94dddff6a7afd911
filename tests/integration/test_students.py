"""Many students on one app process: nothing lost, nothing mixed up, and a queue that is told."""

from __future__ import annotations

import asyncio
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from chat_client import ChatClient
from scripted_engine import Reply, Script, ScriptedEngine, serving

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def students():
    """benchmarks/students.py, which measures longer what is shown here shortly."""
    spec = importlib.util.spec_from_file_location("students", ROOT / "benchmarks" / "students.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["students"] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def one_at_a_time(students, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Script, str]]:
    engine = ScriptedEngine(Script(at_once=1))
    with (
        serving(engine) as engine_url,
        students.app_process(engine_url, tmp_path_factory.mktemp("app")) as (url, _),
    ):
        yield engine.script, url


@pytest.mark.parametrize(
    ("language", "one", "two"),
    [
        ("en-US", "One answer is ahead of yours", "2 answers are ahead of yours"),
        ("zh-CN", "前面还有 1 个", "前面还有 2 个"),
    ],
)
async def test_who_waits_for_an_engine_that_serialises_is_told_the_place(
    one_at_a_time: tuple[Script, str], language: str, one: str, two: str
) -> None:
    script, url = one_at_a_time
    script.default = Reply(text="word " * 60 + "end", tokens_per_second=20)
    async with (
        ChatClient(url, language=language) as first,
        ChatClient(url, language=language) as second,
        ChatClient(url, language=language) as third,
    ):
        asked = []
        for page in (first, second, third):
            await page.ready()
            asked.append(asyncio.create_task(page.ask("Why?")))
            sent = len(script.bodies)
            while len(script.bodies) == sent:  # in this order, and on the engine
                await asyncio.sleep(0.01)
        await second.until(lambda: any(one in said for said in second.answers()), "one is ahead")
        await third.until(lambda: any(two in said for said in third.answers()), "two are ahead")
        assert len(first.answers()) == 1, "who is served sees no queue"
        await third.until(lambda: any(one in said for said in third.answers()), "it moves up")
        for page, answer in zip((first, second, third), await asyncio.gather(*asked), strict=True):
            assert answer.endswith("end")
            assert len(page.answers()) == 1, "the notice is gone"


async def test_thirty_students_lose_nothing_and_get_their_own_answers(students, tmp_path: Path) -> None:
    """The delay is measured in `make bench`: this machine's neighbours decide it as well."""
    report = await students.measure(tmp_path, seconds=10, tokens=100)
    assert report.asked >= students.STUDENTS
    assert (report.lost, report.mixed_up) == (0, 0), report.said_instead
