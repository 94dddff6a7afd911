"""Several engines behind one chat: which of them answer, which count as the same, which one is asked next.

Work is spread over engines of one class only: engines whose fingerprints differ in nothing but facts that
are known to change no bit. The class in use is that of the first listed engine that answers, so another
class serves only while no engine of the first one does; every run records which engine served it. An
engine that fails is left out from the next look on (at most `MAX_AGE_S` later) and comes back by itself.

This is no balancer: it knows its own requests and what `/metrics` tells, once a second. For more than a
few replicas see docs/scaling.md.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from llm_backend.engine.client import EngineClient, EngineState
from llm_backend.engine_changes import engine_changes
from llm_backend.errors import EncoreError, EngineError
from llm_backend.receipt import EngineFingerprint

MAX_AGE_S = 1.0
"""How old a look at the engines may be when the next request is placed."""

LOOK_S = 3.0
"""An engine that does not answer its small requests within this many seconds is left out; a single
engine has as long as its client gives it."""


@dataclass(frozen=True, slots=True)
class Member:
    """One engine as it was last seen."""

    number: int
    """From 1, in the order of ENCORE_ENGINE_URLS; what pages and actions call it by."""
    client: EngineClient
    state: EngineState
    identity: EngineFingerprint | None = None
    """None unless it is ready."""
    running: int | None = None
    """Requests in flight; None where `/metrics` does not say."""
    same_class: bool = False
    """Whether new questions may go there."""

    @property
    def ready(self) -> bool:
        return self.state.kind == "ready" and self.identity is not None


class EnginePool:
    """Opened with clients it then owns; shared by all chats of a process."""

    def __init__(self, clients: Sequence[EngineClient]) -> None:
        self._clients = tuple(clients)
        self._mine: Counter[str] = Counter()
        """Requests of this process in flight, by URL."""
        self._lock = asyncio.Lock()
        self._looked_at = float("-inf")
        self.members = tuple(
            Member(number, client, EngineState("unreachable"))
            for number, client in enumerate(self._clients, start=1)
        )
        """As last seen; `look` refreshes them."""

    async def __aenter__(self) -> EnginePool:
        return self

    async def __aexit__(self, *_: object) -> None:
        for client in self._clients:
            await client.close()

    async def look(self, *, max_age_s: float | None = None) -> tuple[Member, ...]:
        """The engines as they are, at most `MAX_AGE_S` old; never raises for absent ones."""
        allowed = MAX_AGE_S if max_age_s is None else max_age_s
        async with self._lock:
            if time.monotonic() - self._looked_at >= allowed:
                numbered = enumerate(self._clients, start=1)
                seen = await asyncio.gather(*(self._see(number, client) for number, client in numbered))
                self.members = _with_classes(seen)
                self._looked_at = time.monotonic()
            return self.members

    async def state(self) -> EngineState:
        """Ready when any engine is, otherwise the first listed one's state. As it is now: the caller,
        `EngineWatch`, remembers it."""
        members = await self.look(max_age_s=0.0)
        return next((member.state for member in members if member.ready), members[0].state)

    def choose(self, prefer_url: str | None = None) -> EngineClient:
        """Where to send the next request: the engine at `prefer_url` if it is ready, else the least loaded.

        By the last look; with no engine ready, the first listed one, whose refusal says what is wrong.
        """
        for member in self.members:
            if member.ready and member.client.url == prefer_url:
                return member.client
        candidates = [member for member in self.members if member.same_class]
        if not candidates:
            return self._clients[0]
        return min(candidates, key=lambda member: (self._load(member), member.number)).client

    def numbered(self, number: object) -> EngineClient:
        """The engine that a page calls by `number`; raises `EncoreError` for what is none."""
        if not isinstance(number, int) or isinstance(number, bool) or not 1 <= number <= len(self._clients):
            raise EncoreError(
                f"There is no engine {number!r}.", f"The engines are numbered 1 to {len(self._clients)}."
            )
        return self._clients[number - 1]

    @contextmanager
    def using(self, client: EngineClient) -> Iterator[EngineClient]:
        """Count a request to `client` for as long as it lasts; what fails there is looked at anew."""
        self._mine[client.url] += 1
        try:
            yield client
        except EngineError:
            self._looked_at = float("-inf")
            raise
        finally:
            self._mine[client.url] -= 1

    def _load(self, member: Member) -> int:
        # What this process started since the last look is not in the engine's number yet.
        return max(member.running or 0, self._mine[member.client.url])

    async def _see(self, number: int, client: EngineClient) -> Member:
        try:
            async with asyncio.timeout(LOOK_S if len(self._clients) > 1 else None):
                state = await client.state()
                if state.kind != "ready":
                    return Member(number, client, state)
                identity, running = await asyncio.gather(client.identity(), client.running())
        except TimeoutError:
            return Member(number, client, EngineState("unreachable", f"silent for {LOOK_S:.0f} s"))
        except EngineError as error:
            return Member(number, client, EngineState("loading", error.problem))
        return Member(number, client, state, identity, running)


def same_class(one: EngineFingerprint, other: EngineFingerprint) -> bool:
    """Whether two engines count as the same: nothing differs but what is known to change no bit.

    What only one of them tells counts as a difference. Engines that do not tell what they compute on
    (no launch manifest) may differ in everything, so each is a class of its own.
    """
    return None not in (one.device, other.device) and all(
        change.relevance == "harmless" for change in engine_changes(one, other, seeded=True)
    )


def _with_classes(seen: Sequence[Member]) -> tuple[Member, ...]:
    first = next((member for member in seen if member.ready), None)
    return tuple(
        Member(
            member.number,
            member.client,
            member.state,
            member.identity,
            member.running,
            same_class=_in_class_of(first, member),
        )
        for member in seen
    )


def _in_class_of(first: Member | None, member: Member) -> bool:
    if first is None or first.identity is None or member.identity is None:
        return False
    return member.number == first.number or same_class(first.identity, member.identity)
