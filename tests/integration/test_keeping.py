"""`encore list` with filters, `encore forget` and `encore prune`, as a user types them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from sample_receipts import receipt, request
from sqlalchemy import update

from llm_backend.cli import main
from llm_backend.store import Store
from llm_backend.store.models import RunRow

Encore = Callable[..., tuple[int, str, str]]


@pytest.fixture
def encore(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Encore:
    monkeypatch.setenv("ENCORE_DATA_DIR", str(tmp_path))

    def run(*argv: str) -> tuple[int, str, str]:
        try:
            main(list(argv))
            code = 0
        except SystemExit as ended:
            code = int(ended.code or 0)
        out, err = capsys.readouterr()
        return code, out, err

    return run


@pytest.fixture(autouse=True)
def _recorded(tmp_path: Path) -> None:
    """Two chats: one old run about triangles, one of today about primes."""

    async def record() -> None:
        store = await Store.open(f"sqlite+aiosqlite:///{tmp_path / 'encore.db'}")
        for chat, question in (("old", "Area of a triangle"), ("new", "Primes below 30")):
            given = receipt(asked=request(question=question))
            run = await store.begin(given.request, given.engine, chat_id=chat, kind="ask")
            await store.finish(run.id, given, ttft_s=None, duration_s=None)
        async with store._write() as connection:
            long_ago = datetime.now(UTC) - timedelta(days=100)
            await connection.execute(
                update(RunRow).where(RunRow.chat_id == "old").values(started_at=long_ago)
            )
        await store.close()

    asyncio.run(record())


def test_lists_what_is_asked_for(encore: Encore) -> None:
    today = datetime.now(UTC).date().isoformat()
    for argv in (("--search", "prime"), ("--day", today), ("--chat", "new")):
        code, out, _ = encore("list", *argv)
        assert code == 0
        assert "Primes below 30" in out
        assert "triangle" not in out
    assert "Primes" not in encore("list", "--verdict", "DIVERGED")[1]
    code, _, err = encore("list", "--search", "?")
    assert code == 2
    assert "no word to search for" in err


def test_forgets_a_chat_and_says_what_went(encore: Encore) -> None:
    code, out, err = encore("forget", "old", "--yes")
    assert code == 0
    assert "1 run of the chat old will be deleted" in err
    assert out == "Deleted 1 run, 1 receipt, 0 comparisons and 0 findings.\n"
    assert "triangle" not in encore("list")[1]
    assert encore("forget", "old", "--yes")[1] == "No run of the chat old is stored; nothing was deleted.\n"


def test_prunes_what_is_old(encore: Encore) -> None:
    assert "Deleted 1 run" in encore("prune", "--older-than", "90d", "--yes")[1]
    listed = encore("list")[1]
    assert "Primes" in listed
    assert "triangle" not in listed


def test_deletes_nothing_unasked(encore: Encore) -> None:
    code, _, err = encore("prune", "--older-than", "1d")
    assert code == 2
    assert "Say --yes" in err
    assert "triangle" in encore("list")[1]


@pytest.mark.parametrize("age", ["90", "-1d", "0d", "1m", "soon", ""])
def test_an_age_that_is_none(encore: Encore, age: str) -> None:
    code, _, err = encore("prune", "--older-than", age, "--yes")
    assert code == 2
    assert "is no age" in err
