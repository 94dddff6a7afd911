"""The replay walls of this process: made in the chat, shown and driven by a page of their own.

A wall is known by an unguessable id. What is kept of it on disk are ids and counts; question and answers
stay in the receipts, so forgetting a chat forgets what its walls showed. While a wall runs, its page asks
for news; when nobody does any more, it is stopped: nobody would press Stop, and it is load on everyone.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
import uuid
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from llm_backend.access import open_calibrations
from llm_backend.answers import Sameness, boxed_answer
from llm_backend.compare import Verdict
from llm_backend.config import Settings
from llm_backend.errors import EncoreError, ReceiptNotFound
from llm_backend.receipt import EngineFingerprint, Frozen, GenerationRequest
from llm_backend.store import Run
from llm_backend.strings import Language, text
from llm_backend.ui import metrics
from llm_backend.wall import AnswerGroup, Card, WallPlan, WallPreset, read_wall_plan
from llm_backend.wall_run import WallRun

if TYPE_CHECKING:
    from llm_backend.ui.backend import Backend  # which holds the walls

log = logging.getLogger(__name__)

MOST_RUNNING = 3
"""Walls of one process that run at a time."""

KEPT = 32
"""Ended walls kept in memory; older ones are read from disk and store again."""

AWAY_S = 120.0
"""How long nobody may look at a running wall. Browsers ask once a minute for a page in the background."""

_ID = re.compile(r"[0-9a-f]{32}")


class _KeptGroup(Frozen):
    cards: tuple[int, ...]
    unsure: bool = False
    expected: Sameness | None = None


class _Kept(Frozen):
    """What a wall's file holds."""

    chat_id: str
    origin: str | None
    plan: WallPlan | None = None
    runs: tuple[str | None, ...] = ()
    groups: tuple[_KeptGroup, ...] = ()
    expected: str | None = None


@dataclass(slots=True)
class Wall:
    """One wall, whether it waits for its form, runs, or has ended."""

    id: str
    chat_id: str
    request: GenerationRequest
    origin: Run | None
    epoch: str = field(default_factory=lambda: uuid.uuid4().hex)
    """Another one after a restart: a page then begins anew."""
    state: Literal["setup", "running", "ended"] = "setup"
    plan: WallPlan | None = None
    engine: EngineFingerprint | None = None
    cards: list[Card] = field(default_factory=list)
    groups: list[AnswerGroup] = field(default_factory=list)
    expected: str | None = None
    problem: Exception | None = None
    preset: WallPreset = field(default_factory=WallPreset)
    task: asyncio.Task[None] | None = None
    looked_at: float = field(default_factory=time.monotonic)

    @property
    def question(self) -> str:
        return self.request.question


class Walls:
    """All walls of a process."""

    def __init__(self) -> None:
        self._walls: dict[str, Wall] = {}

    async def of_run(self, backend: Backend, run_id: str, chat_id: str) -> Wall:
        """A new wall about a recorded run; raises `ReceiptNotFound`."""
        origin = await backend.store.run(run_id)
        receipt = await backend.store.receipt_of(run_id)
        wall = Wall(uuid.uuid4().hex, chat_id, receipt.request, origin)
        await self._add(backend.settings, wall)
        return wall

    def of_question(self, request: GenerationRequest, chat_id: str) -> Wall:
        """A new wall about a question nobody has asked yet: its first card will record it."""
        wall = Wall(uuid.uuid4().hex, chat_id, request, None)
        self._remember(wall)
        return wall

    async def get(self, backend: Backend, wall_id: str) -> Wall:
        """Raises `ReceiptNotFound` for what is no wall."""
        if not _ID.fullmatch(wall_id):
            raise _no_such_wall()
        wall = self._walls.get(wall_id)
        if wall is None:
            wall = await _restored(backend, wall_id)
            self._remember(wall)
        return wall

    async def start(self, backend: Backend, wall: Wall, values: Mapping[str, Any], lang: Language) -> None:
        """Begin what the form asks for; raises `EncoreError` with one sentence for what cannot begin."""
        if wall.state != "setup":
            raise EncoreError(text("wall.problem.begun", lang))
        if backend.draining:
            raise EncoreError(text("health.stopping", lang))
        running = [other for other in self._walls.values() if other.state == "running"]
        if any(other.chat_id == wall.chat_id for other in running):
            raise EncoreError(text("wall.problem.chat", lang))
        if len(running) >= MOST_RUNNING:
            raise EncoreError(text("wall.problem.many", lang, n=MOST_RUNNING))
        wall.plan = read_wall_plan(values, wall.request.sampling, lang)
        run = WallRun(
            backend.store,
            backend.judging.judge,
            wall.plan,
            wall.request,
            chat_id=wall.chat_id,
            origin=wall.origin,
            calibrations=open_calibrations(backend.settings),
            on_run=metrics.count_run,
        )
        wall.cards, wall.groups = run.cards, run.groups
        wall.state, wall.looked_at = "running", time.monotonic()
        wall.task = backend.start(self._work(backend, wall, run))
        backend.start(_stop_when_alone(wall))

    async def stop(self, wall: Wall) -> None:
        """End a running wall; what is done is kept."""
        if wall.task is not None and not wall.task.done():
            wall.task.cancel()
            await asyncio.wait((wall.task,))

    async def _work(self, backend: Backend, wall: Wall, run: WallRun) -> None:
        try:
            await backend.engines.look()
            engine = backend.engines.choose(wall.origin.engine_url if wall.origin else "")
            wall.engine = await engine.identity()
            with backend.engines.using(engine):
                await run.run(engine)
        except EncoreError as error:
            wall.problem = error
        except Exception as error:
            wall.problem = error
            log.exception("a wall broke off")
        finally:
            for card in wall.cards:
                if not card.ended:
                    card.state = "not_run"
                    card.version += 1
            wall.expected = run.expected
            wall.state = "ended"
            await asyncio.shield(backend.start(_save(backend.settings, wall)))

    async def _add(self, settings: Settings, wall: Wall) -> None:
        self._remember(wall)
        await _save(settings, wall)

    def _remember(self, wall: Wall) -> None:
        ended = [other.id for other in self._walls.values() if other.state != "running"]
        for old in ended[: max(0, len(ended) - KEPT + 1)]:
            del self._walls[old]
        self._walls[wall.id] = wall


async def _stop_when_alone(wall: Wall) -> None:
    task = wall.task
    assert task is not None
    while not task.done():
        left = wall.looked_at + AWAY_S - time.monotonic()
        if left <= 0:
            task.cancel()
            return
        with suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(task), left)


def _no_such_wall() -> ReceiptNotFound:
    return ReceiptNotFound("There is no such wall.", "Make one with /wall in the chat.")


def _file(settings: Settings, wall_id: str) -> Path:
    return settings.data_dir / "walls" / f"{wall_id}.json"


async def _save(settings: Settings, wall: Wall) -> None:
    kept = _Kept(
        chat_id=wall.chat_id,
        origin=wall.origin.id if wall.origin else None,
        plan=wall.plan,
        runs=tuple(card.run_id for card in wall.cards),
        groups=tuple(
            _KeptGroup(cards=tuple(group.cards), unsure=group.unsure, expected=group.expected)
            for group in wall.groups
        ),
        expected=wall.expected,
    )
    await asyncio.to_thread(_write, _file(settings, wall.id), kept.model_dump_json())


def _write(file: Path, content: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    draft = file.with_suffix(".part")
    draft.write_text(content, encoding="utf-8")
    draft.replace(file)


async def _restored(backend: Backend, wall_id: str) -> Wall:
    """A wall from its file and its runs' receipts; a run that was forgotten leaves an empty card."""
    file = _file(backend.settings, wall_id)
    try:
        kept = _Kept.model_validate_json(await asyncio.to_thread(file.read_bytes))
    except (OSError, ValueError):
        raise _no_such_wall() from None
    first = kept.origin or next((run for run in kept.runs if run), None)
    if first is None:
        raise _no_such_wall()
    origin, receipt = await backend.store.run(first), await backend.store.receipt_of(first)
    wall = Wall(wall_id, kept.chat_id, receipt.request, origin, plan=kept.plan, expected=kept.expected)
    if kept.plan is None:
        return wall
    wall.state, wall.engine = "ended", receipt.engine
    for number, run_id in enumerate(kept.runs):
        wall.cards.append(await _restored_card(backend, number, run_id, wall.cards))
    wall.groups = [
        AnswerGroup(wall.cards[group.cards[0]].answer, list(group.cards), group.unsure, group.expected)
        for group in kept.groups
    ]
    return wall


async def _restored_card(backend: Backend, number: int, run_id: str | None, before: list[Card]) -> Card:
    card = Card(number, state="not_run", version=1)
    if run_id is None:
        return card
    try:
        run, receipt = await backend.store.run(run_id), await backend.store.receipt_of(run_id)
    except ReceiptNotFound:
        return card
    if number:
        first = before[0].run_id
        card.reference = await backend.store.receipt_of(first) if first else None
    card.run_id, card.seed, card.neighbours = run_id, run.seed, run.neighbours
    card.finish(receipt, receipt.digest)
    card.answer = boxed_answer(card.text)
    card.verdict = Verdict(run.verdict) if run.verdict else None
    return card
