"""Whether the application can do its work now, for load balancers and people on call.

Ready means that a token can be generated, not that a port is open. An answer under way proves it for
nothing. Only when none has come for `PROOF_S` is the engine asked for one token, by one request at a
time however many probes ask, so that a health check is never load: on a strict engine that serves one
sequence at a time it waits its turn like everybody else, and says so.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from dataclasses import dataclass

from llm_backend.engine_pool import EnginePool
from llm_backend.errors import EngineError
from llm_backend.strings import Language, text
from llm_backend.ui.engine_watch import EngineStatus, EngineWatch, status_sentence

PROOF_S = 30.0
"""How long one token proves that the engine generates; also the least time between two trials."""

WAIT_S = 3.0
"""How long one health check waits for a trial: less than what load balancers usually allow (5 s)."""

TRIAL_S = 60.0
"""How long a trial may take before the engine counts as stuck."""


@dataclass(frozen=True, slots=True)
class Health:
    """`ready`: a question asked now would be answered. `sentence`: what is wrong, empty when ready."""

    ready: bool
    status: EngineStatus
    sentence: str = ""


class HealthCheck:
    """Shared by everything that asks; see the module's docstring."""

    def __init__(self, engines: EnginePool, watch: EngineWatch) -> None:
        self._engines = engines
        self._watch = watch
        self._trial: asyncio.Task[None] | None = None
        self._tried_at = float("-inf")
        self._failure: EngineError | None = None

    async def look(self, lang: Language) -> Health:
        """Never raises; returns within `WAIT_S` and the few seconds an engine has to say that it is there."""
        status = await self._watch.status()
        if not status.ready:
            self._failure = None  # what comes back has its proof still to give
            self._tried_at = float("-inf")
            for member in self._engines.members:
                member.client.generated_at = float("-inf")
            return Health(False, status, status_sentence(status, lang))
        if self._proved():
            return Health(True, status)
        if self._trial is None and time.monotonic() - self._tried_at >= PROOF_S:
            self._trial = asyncio.create_task(self._try())
        if self._trial is not None:
            with suppress(TimeoutError):
                await asyncio.wait_for(asyncio.shield(self._trial), WAIT_S)
        if self._proved():
            return Health(True, status)
        if self._failure is not None and self._trial is None:
            return Health(False, status, self._failure.diagnostics())
        return Health(False, status, text("health.no_token_yet", lang, seconds=f"{self._trying():.0f}"))

    async def close(self) -> None:
        """End a trial under way."""
        if self._trial is not None:
            self._trial.cancel()
            await asyncio.gather(self._trial, return_exceptions=True)

    def _proved(self) -> bool:
        now = time.monotonic()
        return any(
            now - member.client.generated_at < PROOF_S for member in self._engines.members if member.ready
        )

    def _trying(self) -> float:
        return time.monotonic() - self._tried_at

    async def _try(self) -> None:
        self._tried_at = time.monotonic()
        try:
            await self._engines.choose().generate_one(TRIAL_S)
            self._failure = None
        except EngineError as error:
            self._failure = error
        finally:
            self._trial = None
