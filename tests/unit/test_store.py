"""The store keeps what it was given, notices tampering, and refuses with a sentence."""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
import threading
from collections.abc import AsyncIterator
from contextlib import closing, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from databases import Database
from sample_receipts import ENGINE, receipt, request, token, tokens
from sqlalchemy import update

from llm_backend.compare import Verdict, compare
from llm_backend.diagnose import diagnose
from llm_backend.errors import ReceiptInvalid, ReceiptNotFound, StoreError
from llm_backend.receipt import Receipt, Status, TokenRecord, parse_receipt
from llm_backend.scoring import Calibration, Check, TokenScore, judge, score
from llm_backend.store import QUESTION_LENGTH, Run, Store
from llm_backend.store import store as store_module
from llm_backend.store.bodies import pack, unpack
from llm_backend.store.models import RunRow
from llm_backend.tally import Branch, ForkPoint, LoadSeen, Repeat, RepeatReport, Shape, Step

AWKWARD = "CRLF\r\n U+2028\u2028 nul\x00 𠮷×2 naïve 👩‍🔬"


@pytest.fixture
async def store(database: Database) -> AsyncIterator[Store]:
    store = await Store.open(database.url)
    yield store
    await store.close()


def url_of(file: Path) -> str:
    return f"sqlite+aiosqlite:///{file}"


async def recorded(store: Store, given: Receipt | None = None, *, chat_id: str = "chat", **begin: Any) -> Run:
    """A finished run of `given`."""
    given = given or receipt()
    run = await store.begin(given.request, given.engine, chat_id=chat_id, **{"kind": "ask", **begin})
    return await store.finish(run.id, given, ttft_s=0.25, duration_s=2.5)


class TestRoundTrip:
    @pytest.mark.parametrize(
        "given",
        [
            receipt(),
            receipt(asked=request(seed=2**63 - 1, temperature=0.8)),
            receipt(asked=request(seed=-(2**63), temperature=0.8)),
            receipt(asked=request(seed=None, question=AWKWARD), text=AWKWARD),
            receipt(
                [
                    TokenRecord(7, None, None),
                    TokenRecord(9, -0.0, b"\xf0\x9f"),
                    token(1, -1.0, top={1: -1.0, 2: None}),
                ]
            ),
            receipt([], status=Status.STOPPED),
        ],
        ids=["plain", "seed max", "seed min", "unicode", "nulls and bytes", "empty"],
    )
    async def test_a_receipt_comes_back_as_it_went_in(self, store: Store, given: Receipt) -> None:
        run = await recorded(store, given)
        assert run.digest == given.digest
        assert await store.receipt(given.digest) == given
        assert await store.receipt_of(run.id) == given
        assert await store.receipt_json(given.digest) == given.to_json()
        assert parse_receipt(await store.receipt_json(given.digest)) == given
        assert run.seed == given.request.sampling.seed

    async def test_a_window_of_tokens_is_plain_json(self, store: Store) -> None:
        given = receipt([token(id, -0.5, top={id: -0.5}) for id in range(10)])
        await recorded(store, given)
        window = await store.tokens(given.digest, 8, 99)
        assert window == json.loads(given.to_json())["receipt"]["completion"]["tokens"][8:]
        assert await store.tokens(given.digest, 20, 30) == []

    async def test_what_is_not_stored_is_not_found(self, store: Store) -> None:
        with pytest.raises(ReceiptNotFound, match="No receipt sha256:ffff"):
            await store.receipt("sha256:ffff")
        with pytest.raises(ReceiptNotFound, match="No run nowhere"):
            await store.run("nowhere")
        with pytest.raises(ReceiptNotFound, match="No comparison nowhere"):
            await store.comparison("nowhere")

    async def test_hashing_and_parsing_stay_off_the_event_loop(
        self, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Long answers take a second of pure computing; other chats must not wait for it."""
        threads: set[int] = set()
        for name in ("encode_receipt", "decode_receipt", "export_document", "token_dicts", "dump_chunk"):
            original = getattr(store_module, name)

            def spy(*arguments: Any, original: Any = original) -> Any:
                threads.add(threading.get_ident())
                return original(*arguments)

            monkeypatch.setattr(store_module, name, spy)
        run = await store.begin(request(), ENGINE, chat_id="chat", kind="ask")
        await store.append(run.id, 0, tokens([7]), "t7")
        digest = (await store.finish(run.id, receipt(), ttft_s=None, duration_s=None)).digest
        assert digest is not None
        await asyncio.gather(store.receipt(digest), store.receipt_json(digest), store.tokens(digest, 0, 1))
        assert threads
        assert threading.get_ident() not in threads


class TestRecording:
    async def test_a_run_is_there_from_its_beginning(self, store: Store) -> None:
        before = datetime.now(UTC)
        run = await store.begin(
            request(question="q" * 500, seed=7, temperature=0.8),
            ENGINE,
            chat_id="chat",
            kind="ask",
            neighbours=3,
            engine_url="http://127.0.0.1:8100",
        )
        assert await store.run(run.id) == run
        assert (run.status, run.digest, run.completion_tokens) == ("running", None, None)
        assert (run.model, run.seed, run.greedy, run.neighbours) == (ENGINE.model, 7, False, 3)
        assert run.question == "q" * QUESTION_LENGTH
        assert before <= run.started_at <= datetime.now(UTC)
        assert run.started_at.tzinfo is UTC

    async def test_the_last_user_message_is_the_question(self, store: Store) -> None:
        asked = request(question="last")
        chat = (*request(question="first").messages, *asked.messages)
        run = await store.begin(asked.model_copy(update={"messages": chat}), ENGINE, chat_id="c", kind="ask")
        assert run.question == "last"

    async def test_a_finished_run_has_its_receipts_facts_and_leaves_no_loose_tokens(
        self, store: Store, database: Database
    ) -> None:
        given = receipt(status=Status.STOPPED)
        run = await store.begin(given.request, ENGINE, chat_id="chat", kind="ask")
        await store.append(run.id, 0, tokens([7, 8]), "t7t8")
        assert await database.sql("SELECT start, text FROM run_tokens") == [(0, '"t7t8"')]
        ended = await store.finish(run.id, given, ttft_s=0.25, duration_s=2.5)
        assert (ended.status, ended.finish_reason, ended.completion_tokens) == ("stopped", None, 3)
        assert (ended.prompt_tokens, ended.fingerprint_digest) == (3, ENGINE.digest)
        assert (ended.ttft_s, ended.duration_s) == (0.25, 2.5)
        assert ended.tokens_per_second == pytest.approx(2 / 2.25)
        assert await database.sql("SELECT * FROM run_tokens") == []
        assert await database.sql("SELECT request, engine FROM runs") == [(None, None)]

    async def test_a_running_run_has_no_receipt_yet(self, store: Store) -> None:
        run = await store.begin(request(), ENGINE, chat_id="chat", kind="ask")
        with pytest.raises(ReceiptNotFound, match="still going"):
            await store.receipt_of(run.id)

    async def test_nothing_is_added_to_a_run_that_has_ended(self, store: Store) -> None:
        run = await recorded(store)
        with pytest.raises(StoreError, match="not running"):
            await store.append(run.id, 3, tokens([1]), "t1")
        with pytest.raises(StoreError, match="not running"):
            await store.finish(run.id, receipt([1]), ttft_s=None, duration_s=None)
        assert (await store.run(run.id)).digest == receipt().digest

    async def test_a_run_that_never_began_cannot_be_finished(self, store: Store, database: Database) -> None:
        with pytest.raises(StoreError, match="not running"):
            await store.finish("nowhere", receipt(), ttft_s=None, duration_s=None)
        assert await database.sql("SELECT * FROM receipts") == []

    async def test_a_replay_must_name_a_stored_reference(self, store: Store) -> None:
        with pytest.raises(StoreError, match=r"(?i)foreign key"):
            await store.begin(request(), ENGINE, chat_id="c", kind="replay", reference_run_id="nowhere")


class TestContentAddressing:
    async def test_runs_that_came_out_the_same_share_a_receipt(
        self, store: Store, database: Database
    ) -> None:
        first = await recorded(store)
        second = await recorded(store, kind="replay", reference_run_id=first.id)
        assert first.digest == second.digest
        assert first.id != second.id
        assert await database.sql("SELECT count(*) FROM receipts") == [(1,)]
        assert (await store.run_by_digest_prefix(first.digest or "")).id == first.id

    async def test_an_expected_answer_stands_beside_the_receipt(self, store: Store) -> None:
        first = await recorded(store)
        second = await recorded(store, kind="replay", reference_run_id=first.id)
        await store.expect(first.id, "1{,}250")
        assert (await store.run(first.id)).expected_answer == "1{,}250"
        assert (await store.run(second.id)).expected_answer is None
        assert (await store.receipt(first.digest or "")).digest == first.digest
        await store.expect(first.id, None)
        assert (await store.run(first.id)).expected_answer is None
        with pytest.raises(ReceiptNotFound):
            await store.expect("unknown", "1")

    async def test_an_import_becomes_a_run_that_can_be_replayed(self, store: Store) -> None:
        run = await store.add_receipt(receipt(asked=request(seed=2**63 - 1)))
        assert (run.kind, run.status, run.seed) == ("import", "complete", 2**63 - 1)
        assert await store.receipt_of(run.id) == receipt(asked=request(seed=2**63 - 1))

    async def test_importing_what_is_known_adds_nothing(self, store: Store) -> None:
        run = await recorded(store)
        assert await store.add_receipt(receipt()) == run
        assert len(await store.runs()) == 1


class TestDigestPrefix:
    async def test_any_sufficient_form_finds_the_run(self, store: Store) -> None:
        run = await recorded(store)
        assert run.digest is not None
        bare = run.digest.removeprefix("sha256:")
        for prefix in (run.digest, run.digest[:12], bare, bare[:4], bare[:6].upper(), f" {bare[:8]} "):
            assert (await store.run_by_digest_prefix(prefix)).id == run.id

    @pytest.mark.parametrize(
        "prefix", ["", "abc", "xyzw", "sha256:", "sha512:abcd", "ab%_", "a" * 65, "../abcd"]
    )
    async def test_what_is_no_digest_is_refused(self, store: Store, prefix: str) -> None:
        with pytest.raises(ReceiptNotFound, match="neither a file nor a digest") as refused:
            await store.run_by_digest_prefix(prefix)
        assert "4 to 64" in refused.value.advice

    async def test_unknown(self, store: Store) -> None:
        with pytest.raises(ReceiptNotFound, match="No receipt starts with abcd"):
            await store.run_by_digest_prefix("abcd")

    async def test_ambiguous(self, store: Store, database: Database) -> None:
        await recorded(store)
        for tail in ("0", "1"):
            await database.sql(
                "INSERT INTO receipts SELECT :digest, format, prompt_tokens, completion_tokens, "
                "finish_reason, fingerprint_digest, sampling_class, invalid_positions "
                "FROM receipts LIMIT 1",
                digest="sha256:abcd" + tail * 60,
            )
        with pytest.raises(ReceiptNotFound, match="More than one receipt starts with abcd") as refused:
            await store.run_by_digest_prefix("abcd")
        assert "more of its digits" in refused.value.advice


class TestTampering:
    """A row edited behind our back is refused wherever it is read, whatever was edited."""

    @pytest.mark.parametrize(
        ("old", "new"),
        [
            ('"text":"t7t8t9"', '"text":"t7t8t8"'),
            ('"logprob":-0.5', '"logprob":-0.25'),
            ('"id":9', '"id":8'),
            ('"finish_reason":"stop"', '"finish_reason":"length"'),
            ('"seed":"42"', '"seed":"43"'),
            ('"vllm_version":"0.26.0"', '"vllm_version":"0.32.0"'),
            ('"format":1', '"format":1 '),
        ],
    )
    async def test_an_edited_body(self, store: Store, database: Database, old: str, new: str) -> None:
        digest = (await recorded(store)).digest
        assert digest is not None
        ((body,),) = await database.sql("SELECT body FROM receipt_bodies")
        text = unpack(digest, body)
        assert old in text
        await database.sql("UPDATE receipt_bodies SET body = :body", body=pack(text.replace(old, new)))
        for read in (store.receipt(digest), store.receipt_json(digest), store.tokens(digest, 0, 1)):
            with pytest.raises(ReceiptInvalid, match=f"{digest[:19]} was altered"):
                await read

    async def test_a_body_that_is_none(self, store: Store, database: Database) -> None:
        digest = (await recorded(store)).digest
        assert digest is not None
        await database.sql("UPDATE receipt_bodies SET body = :body", body=b"nonsense")
        with pytest.raises(ReceiptInvalid, match="cannot be unpacked"):
            await store.receipt(digest)

    async def test_a_receipt_filed_under_anothers_digest(self, store: Store, database: Database) -> None:
        first, second = await recorded(store), await recorded(store, receipt([1]))
        await database.sql(
            "UPDATE receipt_bodies SET body = (SELECT body FROM receipt_bodies WHERE digest = :digest)",
            digest=second.digest,
        )
        with pytest.raises(ReceiptInvalid):
            await store.receipt_of(first.id)
        assert await store.receipt_of(second.id) == receipt([1])


class TestListing:
    async def test_newest_first_by_chat_and_in_pages(self, store: Store) -> None:
        made = [await recorded(store, receipt([id]), chat_id=f"chat {id % 2}") for id in range(6)]
        newest_first = [run.id for run in reversed(made)]
        assert [run.id for run in await store.runs()] == newest_first
        assert [run.id for run in await store.runs("chat 0")] == newest_first[1::2]
        first_page = await store.runs(limit=4)
        second_page = await store.runs(limit=4, before=first_page[-1].id)
        assert [run.id for run in (*first_page, *second_page)] == newest_first
        assert await store.runs("no such chat") == []

    async def test_runs_of_one_instant_are_all_listed_once(self, store: Store, database: Database) -> None:
        made = {(await recorded(store, receipt([id]))).id for id in range(5)}
        await database.sql("UPDATE runs SET started_at = (SELECT min(started_at) FROM runs)")
        listed: list[str] = []
        while page := await store.runs(limit=2, before=listed[-1] if listed else None):
            listed += [run.id for run in page]
        assert len(listed) == 5
        assert set(listed) == made

    async def test_replays_can_be_left_out(self, store: Store) -> None:
        asked = await recorded(store)
        await recorded(store, kind="replay", reference_run_id=asked.id)
        assert len(await store.runs()) == 2
        assert [run.id for run in await store.runs(replays=False)] == [asked.id]


class TestComparisons:
    async def compared(self, store: Store, reference: Run, candidate: Receipt) -> tuple[Run, str]:
        run = await recorded(store, candidate, kind="replay", reference_run_id=reference.id)
        comparison = compare(receipt(), candidate)
        diagnosis = diagnose(comparison, receipt(), candidate, neighbours=12)
        return run, await store.add_comparison(reference.id, run.id, comparison, diagnosis)

    async def test_all_that_was_measured_comes_back(self, store: Store) -> None:
        reference = await recorded(store)
        candidate = receipt([token(7, -0.4), TokenRecord(99, None, b"\xf0")], text="x")
        run, identifier = await self.compared(store, reference, candidate)
        found = await store.comparison(identifier)
        assert found.comparison == compare(receipt(), candidate)
        assert found.diagnosis == diagnose(found.comparison, receipt(), candidate, neighbours=12)
        assert (found.reference_run_id, found.candidate_run_id) == (reference.id, run.id)
        assert found.verdict == "DIVERGED"

    async def test_newest_first_from_either_side(self, store: Store) -> None:
        reference = await recorded(store)
        first_run, first = await self.compared(store, reference, receipt())
        _, second = await self.compared(store, reference, receipt([1]))
        assert [found.id for found in await store.comparisons(reference.id)] == [second, first]
        assert [found.id for found in await store.comparisons(first_run.id)] == [first]

    async def test_a_replay_carries_its_latest_verdict(self, store: Store) -> None:
        reference = await recorded(store)
        run, _ = await self.compared(store, reference, receipt([1]))
        assert (await store.run(run.id)).verdict == Verdict.DIVERGED.value
        assert (await store.run(reference.id)).verdict is None


def chain(forks: int) -> ForkPoint:
    """As many answers as there are forks, each leaving the recorded one at another position."""
    fork: ForkPoint | None = None
    for position in reversed(range(forks)):
        away = Branch(token=token(99), runs=1, recorded=False)
        along = Branch(token=token(7), runs=forks - position, recorded=True, fork=fork)
        fork = ForkPoint(position=position, branches=(along, away))
    assert fork is not None
    return fork


class TestFindings:
    def repeated(self, fork: ForkPoint | None = None) -> RepeatReport:
        candidate = receipt([7, 99])
        comparison = compare(receipt(), candidate)
        diagnosis = diagnose(comparison, receipt(), candidate, neighbours=4)
        repeat = Repeat(run_id="r", digest="sha256:d", comparison=comparison, diagnosis=diagnosis)
        step = Step(load=LoadSeen(asked=4, shape=Shape.SAME, most=4), repeats=(repeat,), fork=fork)
        alone = step.model_copy(update={"load": LoadSeen(asked=0, shape=None), "fork": None})
        return RepeatReport(digest="sha256:d", times=3, planned=(0, 4), steps=(alone, step))

    def checked(self) -> Check:
        positions = score(receipt().completion.tokens, [TokenScore(-0.5, -0.25, 2), None])
        calibration = Calibration(engine="sha256:e", positions=128, largest=0.2)
        return judge(receipt(), ENGINE, positions, calibration)

    async def test_all_that_was_found_comes_back_newest_first(self, store: Store) -> None:
        run = await recorded(store)
        first = await store.add_finding(run.id, self.repeated(chain(3)))
        second = await store.add_finding(run.id, self.checked())
        assert [(kept.id, kept.run_id, kept.found) for kept in await store.findings(run.id)] == [
            (second, run.id, self.checked()),
            (first, run.id, self.repeated(chain(3))),
        ]
        assert [kept.id for kept in await store.findings(run.id, limit=1)] == [second]
        assert [kept.id for kept in await store.findings(run.id, kind="repeat", limit=1)] == [first]

    async def test_a_hundred_answers_that_all_differ_are_no_deeper_than_two(self, store: Store) -> None:
        run = await recorded(store)
        await store.add_finding(run.id, self.repeated(chain(100)))
        (kept,) = await store.findings(run.id)
        assert isinstance(kept.found, RepeatReport)
        assert kept.found.steps[1].distinct == 101

    async def test_belong_to_a_stored_run(self, store: Store) -> None:
        other = await recorded(store, receipt([1]))
        assert await store.findings(other.id) == []
        with pytest.raises(StoreError):
            await store.add_finding("nowhere", self.checked())


class TestConcurrentWriters:
    """Two app processes on one file: nobody loses a run, nobody is told that the file is busy."""

    async def test_opening_a_new_database_at_once(self, database: Database) -> None:
        stores = await asyncio.gather(*(Store.open(database.url) for _ in range(4)))
        await asyncio.gather(*(recorded(store, receipt([number])) for number, store in enumerate(stores)))
        assert len(await stores[0].runs()) == 4
        await asyncio.gather(*(store.close() for store in stores))

    async def test_many_runs_through_two_stores(self, store: Store, database: Database) -> None:
        other = await Store.open(database.url)

        async def write(number: int) -> Run:
            through = (store, other)[number % 2]
            given = receipt([number, number + 1])
            run = await through.begin(given.request, given.engine, chat_id="chat", kind="ask")
            await through.append(run.id, 0, given.completion.tokens[:1], "a")
            await through.append(run.id, 1, given.completion.tokens[1:], "b")
            return await through.finish(run.id, given, ttft_s=None, duration_s=None)

        runs = await asyncio.gather(*(write(number) for number in range(40)))
        await other.close()
        assert len({run.id for run in runs}) == 40
        assert {run.id for run in await store.runs(limit=100)} == {run.id for run in runs}
        for run in runs:
            assert (await store.receipt_of(run.id)).digest == run.digest
        assert await database.sql("SELECT * FROM run_tokens") == []

    async def test_the_same_receipt_from_both_at_once(self, store: Store, database: Database) -> None:
        other = await Store.open(database.url)
        runs = await asyncio.gather(*(recorded(through) for through in (store, other) * 5))
        await other.close()
        assert len({run.digest for run in runs}) == 1
        assert await database.sql("SELECT count(*) FROM receipts") == [(1,)]

    async def test_a_cancelled_write_leaves_nothing_half_done(self, store: Store, database: Database) -> None:
        run = await store.begin(request(), ENGINE, chat_id="chat", kind="ask")
        async with database.connect() as blocker:
            if database.url.startswith("sqlite"):
                await blocker.execute(update(RunRow).values(question="mine"))
            else:
                await blocker.exec_driver_sql("LOCK TABLE runs")
            appending = asyncio.create_task(store.append(run.id, 0, tokens([7]), "t7"))
            async with asyncio.timeout(5):
                while store._engine.pool.checkedout() == 0:
                    await asyncio.sleep(0)
            appending.cancel()
            with pytest.raises(asyncio.CancelledError):
                await appending
        await store.append(run.id, 0, tokens([8]), "t8")
        assert await database.sql("SELECT text FROM run_tokens") == [('"t8"',)]

    @pytest.mark.parametrize("pause_s", [0, 0.0005, 0.001, 0.002, 0.004])
    async def test_a_write_cancelled_at_any_moment_keeps_no_lock(
        self, database: Database, pause_s: float
    ) -> None:
        """Stop pressed in the wrong millisecond used to lock the database for everybody."""
        store = await Store.open(database.url, busy_timeout_s=2)
        for moment in range(20):
            writing = asyncio.create_task(store.begin(request(), ENGINE, chat_id="chat", kind="ask"))
            await asyncio.sleep(pause_s)
            for _ in range(moment):
                await asyncio.sleep(0)
            writing.cancel()
            with suppress(asyncio.CancelledError):
                await writing
            await store.begin(request(), ENGINE, chat_id="chat", kind="ask")
        await store.close()


class TestRefusals:
    """What SQLite says, in sentences; PostgreSQL's refusals are in test_store_postgres.py."""

    @pytest.fixture
    def file(self, tmp_path: Path) -> Path:
        return tmp_path / "encore.db"

    @pytest.fixture
    def database(self, file: Path) -> Database:
        return Database(url_of(file))

    async def test_locked(self, database: Database, file: Path) -> None:
        store = await Store.open(database.url, busy_timeout_s=0)
        with closing(sqlite3.connect(file)) as blocker:
            blocker.execute("BEGIN IMMEDIATE")
            with pytest.raises(StoreError, match="another process holds its lock"):
                await recorded(store)
            assert await store.runs() == []  # reading goes on
        await recorded(store)
        await store.close()

    async def test_disk_full(self, store: Store, database: Database) -> None:
        async with store._engine.connect() as connection:
            pages = await connection.exec_driver_sql("PRAGMA page_count")
            await connection.exec_driver_sql(f"PRAGMA max_page_count = {pages.scalar_one() + 1}")
        run = await store.begin(request(), ENGINE, chat_id="chat", kind="ask")
        with pytest.raises(StoreError, match="disk is full"):
            await store.finish(run.id, receipt(text=os.urandom(50_000).hex()), ttft_s=None, duration_s=None)
        assert (await store.run(run.id)).status == "running"
        assert await database.sql("SELECT * FROM receipts") == []

    async def test_read_only(self, store: Store, file: Path) -> None:
        run = await recorded(store)
        readable = await Store.open(f"sqlite+aiosqlite:///file:{file}?mode=ro&uri=true")
        assert await readable.receipt_of(run.id) == receipt()
        with pytest.raises(StoreError, match="read-only") as refused:
            await recorded(readable)
        assert "ENCORE_DATABASE_URL" in refused.value.advice
        await readable.close()

    async def test_a_file_that_is_no_database(self, tmp_path: Path) -> None:
        (tmp_path / "notes.db").write_text("dear diary " * 100)
        with pytest.raises(StoreError, match="not an Encore database"):
            await Store.open(url_of(tmp_path / "notes.db"))

    async def test_a_folder_that_cannot_be_made(self, tmp_path: Path) -> None:
        (tmp_path / "taken").write_text("")
        with pytest.raises(StoreError, match="cannot be reached"):
            await Store.open(url_of(tmp_path / "taken" / "encore.db"))

    @pytest.mark.parametrize(
        ("url", "says"),
        [
            ("encore.db", "not usable"),
            ("sqlite:///encore.db", "not usable"),
            ("nosuch://x", "not usable"),
            ("not a url", "not usable"),
        ],
    )
    async def test_an_unusable_url(self, url: str, says: str) -> None:
        with pytest.raises(StoreError, match=says) as refused:
            await Store.open(url)
        assert "sqlite+aiosqlite" in refused.value.advice

    async def test_a_database_of_a_newer_encore(self, store: Store, database: Database) -> None:
        await database.sql("UPDATE alembic_version SET version_num = '9999'")
        with pytest.raises(StoreError, match="another version of Encore"):
            await Store.open(database.url)

    async def test_in_memory_databases_work(self) -> None:
        store = await Store.open("sqlite+aiosqlite://")
        assert (await recorded(store)).status == "complete"
        await store.close()
