"""A replay wall: one question's runs side by side, folded so that a page can follow them live.

A card holds one run. Where it parts from the first card is decided by token ids, position by position as
they arrive; text only shows it. Nothing here costs more per token the longer an answer has become.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal

from llm_backend.answers import Sameness
from llm_backend.compare import Verdict, logprob_margin
from llm_backend.config import SEED_MAX, SEED_MIN
from llm_backend.diff import token_window
from llm_backend.errors import EncoreError, SettingsError
from llm_backend.receipt import Frozen, Receipt, Sampling, Status, TokenRecord
from llm_backend.sampling import parse_sampling
from llm_backend.strings import Language, text

MOST_CARDS = 24
"""More than that cannot be read from the back of a room, and all of them at once are load."""

CLASSROOM_TEMPERATURE = 0.8
"""Offered for seeds of a run that was greedy, where a seed plays no part: what Phi-4-mini-reasoning's
model card recommends."""


class WallKind(StrEnum):
    REPLAYS = "replays"
    """The recorded request again and again, unchanged."""
    SEEDS = "seeds"
    """The same question with other seeds."""


class WallPlan(Frozen):
    """What a wall is to run."""

    kind: WallKind
    count: int
    """Replays beside the recorded run; seeds with the first run's own among them."""
    first_seed: int | None = None
    """Seeds follow one another from here; None for replays."""
    temperature: float | None = None
    """None: as recorded."""
    together: bool = True
    """All at once, which is load; or one after the other."""


class WallPreset(Frozen):
    """What the form begins with."""

    kind: WallKind = WallKind.REPLAYS
    count: int = 6


def read_count(typed: object, kind: WallKind, lang: Language = "en") -> int:
    """How many a wall takes; raises `EncoreError` with the allowed range."""
    least = 1 if kind is WallKind.REPLAYS else 2
    digits = str(typed).strip()
    good = digits.isascii() and digits.isdecimal() and len(digits) < 4 and least <= int(digits) <= MOST_CARDS
    if not good:
        raise EncoreError(text("wall.problem.count", lang, least=least, most=MOST_CARDS))
    return int(digits)


def read_wall_plan(values: Mapping[str, Any], sampling: Sampling, lang: Language = "en") -> WallPlan:
    """What the wall's form sent, about a run with the settings `sampling`.

    Raises `EncoreError`, or `SettingsError` for a seed or a temperature, with one sentence each.
    """
    if values.get("kind") not in list(WallKind):
        raise EncoreError(text("wall.problem.kind", lang))
    kind = WallKind(values["kind"])
    count, together = read_count(values.get("count"), kind, lang), values.get("order") != "turns"
    if kind is WallKind.REPLAYS:
        return WallPlan(kind=kind, count=count, together=together)
    wanted = {"seed": values.get("seed"), "temperature": values.get("temperature")}
    try:
        read = parse_sampling(wanted, sampling)
    except SettingsError as error:
        raise EncoreError(text("wall.problem.settings", lang, problem=error.diagnostics())) from None
    if read.greedy:
        raise EncoreError(text("wall.problem.greedy", lang))
    plan = WallPlan(
        kind=kind,
        count=count,
        first_seed=read.seed,
        temperature=read.temperature,
        together=together,
    )
    if max(seeds_of(plan)) > SEED_MAX:
        raise EncoreError(text("wall.problem.last_seed", lang, most=SEED_MAX, least=SEED_MIN))
    return plan


def seeds_of(plan: WallPlan) -> list[int]:
    """The seeds of a wall of seeds, one after the other; -1 means "no seed" to the engine and is left out."""
    assert plan.first_seed is not None
    first = plan.first_seed
    return [seed for seed in range(first, first + plan.count + 1) if seed != -1][: plan.count]


CardState = Literal["waiting", "running", "complete", "stopped", "interrupted", "refused", "not_run"]


@dataclass(frozen=True, slots=True)
class Fork:
    """Where a card's tokens part from the first card's."""

    position: int
    characters: int
    """Of the card's text that come before it, in UTF-16 code units, as browsers count."""
    recorded: str | None
    """The first card's token there, for reading; None where its answer had ended."""
    token: str | None
    """This card's."""
    margin: float | None
    """The first card's, in nats; None where it is not known."""


@dataclass(slots=True)
class Card:
    """One run on the wall, as far as it has come."""

    number: int
    seed: int | None = None
    reference: Receipt | None = None
    """The first card's receipt; None for the first card itself."""
    state: CardState = "waiting"
    run_id: str | None = None
    digest: str | None = None
    pieces: list[str] = field(default_factory=list)
    """The text as it arrived; a page says how many of them it knows."""
    tokens: list[TokenRecord] = field(default_factory=list)
    same: int = 0
    """Leading tokens equal to the first card's."""
    fork: Fork | None = None
    answer: str | None = None
    verdict: Verdict | None = None
    """Of a replay that ended."""
    neighbours: int | None = None
    problem: Exception | None = None
    version: int = 0
    """Grows with every change."""

    @property
    def text(self) -> str:
        return "".join(self.pieces)

    @property
    def ended(self) -> bool:
        return self.state not in ("waiting", "running")

    @property
    def comparable(self) -> bool:
        """Whether both sides have token ids; text is never compared instead."""
        return self.reference is not None and bool(self.reference.completion.tokens and self.tokens)

    def feed(self, tokens: Sequence[TokenRecord], piece: str) -> None:
        """What one chunk of the stream added."""
        self.state = "running"
        if piece:
            self.pieces.append(piece)
        self.tokens.extend(tokens)
        self._advance()
        self.version += 1

    def finish(self, receipt: Receipt, digest: str) -> None:
        """The run has ended and is stored; what its receipt says is what counts."""
        completion = receipt.completion
        self.digest = digest
        if not self.pieces and completion.text:
            self.pieces = [completion.text]
        if len(self.tokens) < len(completion.tokens):
            self.tokens = list(completion.tokens)
        self._advance()
        recorded = self.reference.completion.tokens if self.reference and self.comparable else ()
        if self.fork is None and len(self.tokens) < len(recorded) and _ended_itself(receipt):
            # An answer that ended where the other goes on has chosen the end instead of a token.
            self._set_fork(len(self.tokens))
        self.state = completion.status.value
        self.version += 1

    def _advance(self) -> None:
        if self.reference is None or self.fork is not None:
            return
        recorded = self.reference.completion.tokens
        if not recorded:
            return
        while self.same < min(len(recorded), len(self.tokens)):
            if recorded[self.same].id != self.tokens[self.same].id:
                self._set_fork(self.same)
                return
            self.same += 1
        if len(self.tokens) > len(recorded) and _ended_itself(self.reference):
            self._set_fork(len(recorded))

    def _set_fork(self, position: int) -> None:
        assert self.reference is not None
        recorded = self.reference.completion.tokens
        self.fork = Fork(
            position=position,
            characters=self._characters_before(position),
            recorded=_shown(recorded, position),
            token=_shown(self.tokens, position),
            margin=logprob_margin(recorded[position]) if position < len(recorded) else None,
        )

    def _characters_before(self, position: int) -> int:
        """Once per card: the ids say where; this says which character that is on screen."""
        written = self.text
        head = b"".join(token.bytes or b"" for token in self.tokens[:position]).decode(errors="ignore")
        if not written.startswith(head):
            assert self.reference is not None
            pairs = zip(written, self.reference.completion.text, strict=False)
            same = next((index for index, (one, other) in enumerate(pairs) if one != other), len(written))
            head = written[:same]
        return len(head.encode("utf-16-le")) // 2


def _ended_itself(receipt: Receipt) -> bool:
    """Where it was cut, nobody knows what would have followed."""
    completion = receipt.completion
    return completion.status is Status.COMPLETE and completion.finish_reason != "length"


def _shown(tokens: Sequence[TokenRecord], position: int) -> str | None:
    if position >= len(tokens):
        return None
    shown: str = token_window(tokens, position, position + 1)[0]["text"]
    return shown


@dataclass(slots=True)
class AnswerGroup:
    """Cards whose answers have the same value."""

    answer: str | None
    """Of the first of them, verbatim; None for answers without a complete box."""
    cards: list[int] = field(default_factory=list)
    unsure: bool = False
    """Whether it could not be told that the value differs from another group's."""
    expected: Sameness | None = None
    """Whether it has the value computed for an arithmetic question; None where nothing was computed."""


def by_size(groups: Sequence[AnswerGroup]) -> list[AnswerGroup]:
    """The most frequent first; what has no answer comes last."""
    return sorted(groups, key=lambda group: (group.answer is None, -len(group.cards), min(group.cards)))
