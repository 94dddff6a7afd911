"""Search, filters and deletion: what makes a store of a million runs usable, on both databases."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from databases import Database
from sample_receipts import receipt, request, token
from sqlalchemy import update

from llm_backend.compare import compare
from llm_backend.diagnose import diagnose
from llm_backend.errors import EncoreError, ReceiptNotFound
from llm_backend.receipt import Receipt
from llm_backend.store import Run, Selection, Store
from llm_backend.store.models import RunRow
from llm_backend.store.search import terms_of


@pytest.fixture
async def store(database: Database) -> AsyncIterator[Store]:
    store = await Store.open(database.url)
    yield store
    await store.close()


async def recorded(
    store: Store, question: str = "235 × 478?", answer: int = 7, chat_id: str = "chat", **begin: Any
) -> Run:
    given = receipt([token(answer)], asked=request(question=question))
    run = await store.begin(given.request, given.engine, chat_id=chat_id, **{"kind": "ask", **begin})
    return await store.finish(run.id, given, ttft_s=0.25, duration_s=2.5)


async def replayed(store: Store, reference: Run, candidate: Receipt, **begin: Any) -> Run:
    run = await store.begin(
        candidate.request,
        candidate.engine,
        **{"chat_id": "chat", "kind": "replay", "reference_run_id": reference.id, **begin},
    )
    run = await store.finish(run.id, candidate, ttft_s=None, duration_s=None)
    comparison = compare(await store.receipt_of(reference.id), candidate)
    diagnosis = diagnose(comparison, candidate, candidate, neighbours=None)
    await store.add_comparison(reference.id, run.id, comparison, diagnosis)
    return run


class TestSearch:
    @pytest.mark.parametrize(
        ("words", "found"),
        [
            ("equation", {0}),
            ("EQUATION roots", {0}),
            ("equa", {0}),
            ("quation", set()),
            ("方程", {1}),
            ("解方程", {1}),
            ("程", {1}),
            ("方解", set()),
            ("x²", {0, 1}),
            ("235", {2}),
            ('"; DROP TABLE runs; --235', set()),
            ("OR NOT NEAR", set()),
        ],
    )
    async def test_words_in_both_languages(self, store: Store, words: str, found: set[int]) -> None:
        asked = ["Roots of the equation x² = 2", "求解方程 x² = 2", "What is 235 × 478?"]
        made = [await recorded(store, question) for question in asked]
        assert {run.id for run in await store.runs(search=words)} == {made[index].id for index in found}

    async def test_pages_of_many_matches_newest_first(self, store: Store, database: Database) -> None:
        made = [await recorded(store, f"equation {number}") for number in range(7)]
        await recorded(store, "another thing")
        listed: list[str] = []
        while page := await store.runs(search="equation", limit=3, before=listed[-1] if listed else None):
            listed += [run.id for run in page]
        assert listed == [run.id for run in reversed(made)]

    @pytest.mark.parametrize("words", ["?", "  ×  ", "__"])
    async def test_nothing_to_search_for(self, store: Store, words: str) -> None:
        with pytest.raises(EncoreError, match="no word to search for"):
            await store.runs(search=words)

    async def test_imports_are_found_too(self, store: Store) -> None:
        run = await store.add_receipt(receipt(asked=request(question="Pythagoras")))
        assert [found.id for found in await store.runs(search="pythagoras")] == [run.id]

    def test_terms_hold_nothing_that_a_query_could_mean(self) -> None:
        terms = terms_of("It's a \\ \" ' test: a|b & c! 你好，世界 ﬁne")
        assert all(term.isalnum() for term in terms)
        assert {"你好", "世界", "界", "fine"} <= set(terms)


class TestFilters:
    async def test_by_verdict_model_and_day(self, store: Store, database: Database) -> None:
        reference = await recorded(store)
        same = await replayed(store, reference, await store.receipt_of(reference.id))
        other = await replayed(store, reference, receipt([token(99)], asked=request(question="235 × 478?")))
        assert [run.id for run in await store.runs(verdict="IDENTICAL")] == [same.id]
        assert [run.id for run in await store.runs(verdict="DIVERGED")] == [other.id]
        assert len(await store.runs(model=reference.model)) == 3
        assert await store.runs(model="nosuch") == []
        yesterday = datetime.now(UTC) - timedelta(days=1)
        async with database.connect() as connection:
            await connection.execute(update(RunRow).where(RunRow.id == same.id).values(started_at=yesterday))
        assert [run.id for run in await store.runs(day=yesterday.date())] == [same.id]
        assert [run.id for run in await store.runs(day=yesterday.date(), verdict="DIVERGED")] == []


class TestDeleting:
    async def test_a_chat_goes_with_its_replays_wherever_they_were_made(
        self, store: Store, database: Database
    ) -> None:
        """A teacher's replay of a student's question holds the student's words."""
        mine = await recorded(store, "my secret question", chat_id="student")
        await replayed(
            store, mine, receipt([token(8)], asked=request(question="my secret question")), chat_id="t"
        )
        other = await recorded(store, "kept", chat_id="t")
        deleted = await store.delete(Selection(chat_id="student"))
        assert (deleted.runs, deleted.receipts, deleted.kept_receipts, deleted.comparisons) == (2, 2, 0, 1)
        assert [run.id for run in await store.runs()] == [other.id]
        assert await store.runs(search="secret") == []
        with pytest.raises(ReceiptNotFound):
            await store.receipt(mine.digest or "")
        assert await database.sql("SELECT count(*) FROM receipt_bodies") == [(1,)]

    async def test_a_receipt_that_somebody_else_came_out_with_stays(self, store: Store) -> None:
        mine = await recorded(store, chat_id="student")
        theirs = await recorded(store, chat_id="other")
        assert mine.digest == theirs.digest
        deleted = await store.delete(Selection(chat_id="student"))
        assert (deleted.runs, deleted.receipts, deleted.kept_receipts) == (1, 0, 1)
        assert (await store.receipt_of(theirs.id)).digest == theirs.digest

    async def test_old_runs_go_and_new_and_running_ones_stay(self, store: Store, database: Database) -> None:
        old, new = await recorded(store, answer=1), await recorded(store, answer=2)
        running = await store.begin(request(), receipt().engine, chat_id="chat", kind="ask")
        long_ago = datetime.now(UTC) - timedelta(days=100)
        async with database.connect() as connection:
            await connection.execute(
                update(RunRow).where(RunRow.id.in_([old.id, running.id])).values(started_at=long_ago)
            )
        selection = Selection(before=datetime.now(UTC) - timedelta(days=90))
        assert await store.count(selection) == 1
        assert (await store.delete(selection)).runs == 1
        assert {run.id for run in await store.runs()} == {new.id, running.id}

    async def test_more_than_a_batch(self, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("llm_backend.store.retention.BATCH", 2)
        first = await recorded(store)
        for answer in range(3):
            await replayed(store, first, receipt([token(answer)], asked=request(question="235 × 478?")))
        for answer in range(4):
            await recorded(store, answer=20 + answer)
        assert (await store.delete(Selection(chat_id="chat"))).runs == 8
        assert await store.runs() == []
