"""A replay as the chat shows it: progress, then the verdict; nothing enters the conversation."""

from __future__ import annotations

import asyncio
from typing import Any

from llm_backend.access import calibrations
from llm_backend.replay import replay
from llm_backend.ui import metrics, panel
from llm_backend.ui.backend import backend
from llm_backend.ui.live_text import Pacer
from llm_backend.ui.session import ChatSession


class _Progress:
    """Tells the page how far a replay has come, at most ten times a second."""

    def __init__(self, run_id: str) -> None:
        self._run_id = run_id
        self._done = self._recorded = 0
        self.pacer = Pacer(self._send)

    def on_tokens(self, done: int, recorded: int) -> None:
        self._done, self._recorded = done, recorded
        self.pacer.poke()

    async def _send(self) -> int:
        await panel.tell("replaying", run=self._run_id, done=self._done, recorded=self._recorded)
        return 1


async def replay_in_chat(session: ChatSession, run_id: str) -> None:
    """Replay `run_id`; raises what `replay` raises. Whatever happens the page hears that it is over."""
    reference = await backend().store.run(run_id)
    progress = _Progress(run_id)
    await panel.tell("replaying", run=run_id, done=0, recorded=reference.completion_tokens or 0)
    ended: dict[str, Any] = {"comparison": None}
    try:
        async with progress.pacer:
            result = await replay(
                backend().engine,
                backend().store,
                reference,
                chat_id=session.chat_id,
                on_tokens=progress.on_tokens,
                calibrations=calibrations(backend().settings),
            )
        metrics.count_run(result.run)
        metrics.count_comparison(result.comparison)
        ended = {"comparison": result.comparison_id}
    except asyncio.CancelledError:
        ended = {"comparison": None, "stopped": True}
        raise
    finally:
        await panel.tell("replayed", run=run_id, **ended)
