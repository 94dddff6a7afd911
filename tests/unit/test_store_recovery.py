"""Runs of a process that died become interrupted receipts; runs of the living are left alone."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from databases import Database
from sample_receipts import ENGINE, receipt, request, tokens
from sqlalchemy import update

from llm_backend.receipt import Status
from llm_backend.store import Run, Store
from llm_backend.store.models import RunRow
from llm_backend.store.owner import is_gone, this_process
from llm_backend.store.runs import LOST_PROCESS
from llm_backend.store.store import SILENCE

TESTS = Path(__file__).parent.parent

RECORDER = """
import asyncio, sys
sys.path.insert(0, sys.argv[2])
from sample_receipts import ENGINE, request, tokens
from llm_backend.store import Store

async def main():
    store = await Store.open(sys.argv[1])
    run = await store.begin(request(), ENGINE, chat_id="chat", kind="ask")
    await store.append(run.id, 0, tokens([7, 8]), "t7t8")
    await store.append(run.id, 2, tokens([9]), "t9")
    print(run.id, flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


@pytest.fixture
async def store(database: Database) -> AsyncIterator[Store]:
    store = await Store.open(database.url)
    yield store
    await store.close()


@pytest.fixture
async def recorder(store: Store, database: Database) -> AsyncIterator[tuple[asyncio.subprocess.Process, str]]:
    """Another process in the middle of recording three tokens, and the id of its run."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        RECORDER,
        database.url,
        str(TESTS),
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    run_id = (await process.stdout.readline()).decode().strip()
    yield process, run_id
    if process.returncode is None:
        process.kill()
        await process.wait()


async def own(database: Database, run: Run, owner: str, silent_for: timedelta = timedelta()) -> None:
    """Make a run look like another process's, last heard of `silent_for` ago."""
    changed = {"owner": owner, "touched_at": datetime.now(UTC) - silent_for}
    async with database.connect() as connection:
        await connection.execute(update(RunRow).where(RunRow.id == run.id).values(changed))


async def running(store: Store) -> Run:
    run = await store.begin(request(), ENGINE, chat_id="chat", kind="ask")
    await store.append(run.id, 0, tokens([7, 8]), "t7t8")
    return run


def elsewhere() -> str:
    """An owner on a host that cannot be seen from here."""
    return " ".join(["elsewhere", *this_process().split(" ")[1:]])


async def test_a_killed_process_leaves_an_interrupted_receipt_of_what_had_arrived(
    store: Store, recorder: tuple[asyncio.subprocess.Process, str]
) -> None:
    process, run_id = recorder
    assert await store.recover() == []
    process.send_signal(signal.SIGKILL)
    await process.wait()

    (run,) = await store.recover()

    assert (run.id, run.status, run.completion_tokens) == (run_id, "interrupted", 3)
    kept = await store.receipt_of(run_id)
    assert kept == receipt(status=Status.INTERRUPTED, detail=LOST_PROCESS)
    assert await store.recover() == []


async def test_runs_of_this_process_are_not_touched(store: Store) -> None:
    run = await running(store)
    assert await store.recover() == []
    assert (await store.run(run.id)).status == "running"


async def test_a_pid_that_was_used_again_is_not_mistaken_for_the_owner(
    store: Store, database: Database
) -> None:
    run = await running(store)
    await own(database, run, " ".join([*this_process().split(" ")[:-1], "1"]))
    assert [found.id for found in await store.recover()] == [run.id]


@pytest.mark.parametrize(("silent_for", "lost"), [(SILENCE * 0.9, False), (SILENCE * 1.1, True)])
async def test_a_process_that_cannot_be_seen_counts_as_lost_after_long_silence(
    store: Store, database: Database, silent_for: timedelta, lost: bool
) -> None:
    run = await running(store)
    await own(database, run, elsewhere(), silent_for)
    assert [found.id for found in await store.recover()] == ([run.id] if lost else [])


async def test_tokens_after_a_lost_chunk_are_not_put_at_false_positions(
    store: Store, database: Database
) -> None:
    run = await running(store)
    await store.append(run.id, 5, tokens([1, 2]), "t1t2")
    await own(database, run, elsewhere(), SILENCE * 2)
    await store.recover()
    kept = (await store.receipt_of(run.id)).completion
    assert (kept.token_ids, kept.text) == ((7, 8), "t7t8")


async def test_text_without_token_ids_is_recovered_too(store: Store, database: Database) -> None:
    run = await store.begin(request(), ENGINE, chat_id="chat", kind="ask")
    for piece in ("It is ", "\0\u2028", "112330"):
        await store.append(run.id, 0, (), piece)
    await own(database, run, elsewhere(), SILENCE * 2)
    await store.recover()
    assert (await store.receipt_of(run.id)).completion.text == "It is \0\u2028112330"


async def test_a_run_that_died_before_its_first_token_is_kept_as_empty(
    store: Store, database: Database
) -> None:
    run = await store.begin(request(), ENGINE, chat_id="chat", kind="ask")
    await own(database, run, elsewhere(), SILENCE * 2)
    (found,) = await store.recover()
    assert (found.status, found.completion_tokens) == ("interrupted", 0)


async def test_two_processes_recovering_at_once_recover_each_run_once(
    store: Store, database: Database
) -> None:
    lost = [await running(store) for _ in range(5)]
    for run in lost:
        await own(database, run, elsewhere(), SILENCE * 2)
    other = await Store.open(database.url)
    found = [run.id for runs in await asyncio.gather(store.recover(), other.recover()) for run in runs]
    await other.close()
    assert sorted(found) == sorted(run.id for run in lost)


async def test_a_process_wrongly_taken_for_lost_still_finishes_its_run(
    store: Store, database: Database
) -> None:
    run = await running(store)
    mine = this_process()
    await own(database, run, elsewhere(), SILENCE * 2)
    await store.recover()
    await own(database, run, mine)
    ended = await store.finish(run.id, receipt(), ttft_s=None, duration_s=1.0)
    assert (ended.status, ended.digest) == ("complete", receipt().digest)


class TestOwner:
    def test_this_process_is_there(self) -> None:
        assert is_gone(this_process()) is False

    @pytest.mark.parametrize(
        ("part", "value", "gone"),
        [(0, "elsewhere", None), (1, "another-boot", True), (2, "pid:[1]", None), (4, "1", True)],
        ids=["host", "boot", "namespace", "start time"],
    )
    def test_each_part_of_the_name_counts(self, part: int, value: str, gone: bool | None) -> None:
        parts = this_process().split(" ")
        parts[part] = value
        assert is_gone(" ".join(parts)) is gone

    async def test_an_ended_process_is_gone(self) -> None:
        process = await asyncio.create_subprocess_exec("true")
        await process.wait()
        assert process.pid != os.getpid()
        parts = this_process().split(" ")
        parts[3] = str(process.pid)
        assert is_gone(" ".join(parts)) is True
