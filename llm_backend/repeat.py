"""Replay a receipt many times, alone and among neighbours, and tally what came back.

Every replay is recorded and compared as a single one is (`replay`). Cancelling or an engine error ends
the sweep; `Repetition.report` has what was measured until then, and the store keeps it as a finding
about the recorded run.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence

from llm_backend.check import Calibrations
from llm_backend.engine.client import EngineClient
from llm_backend.load import Load, LoadWatch, neighbours
from llm_backend.receipt import EngineFingerprint, Receipt
from llm_backend.replay import replay
from llm_backend.store import Run, Store
from llm_backend.tally import Outputs, Progress, Repeat, RepeatReport, Shape, Step


class Repetition:
    """A sweep: `await repetition.run()`; `repetition.report` at any time, also after it was cut short."""

    def __init__(
        self,
        engine: EngineClient,
        store: Store,
        reference: Run,
        *,
        times: int,
        counts: Sequence[int] = (0,),
        shape: Shape = Shape.MIXED,
        chat_id: str,
        on_progress: Callable[[Progress], None] | None = None,
        calibrations: Calibrations | None = None,
    ) -> None:
        self._engine = engine
        self._store = store
        self._reference = reference
        self._times = times
        self._counts = tuple(counts)
        self._shape = shape
        self._chat_id = chat_id
        self._on_progress = on_progress
        self._calibrations = calibrations
        self._steps: list[Step] = []
        self._done = 0

    @property
    def report(self) -> RepeatReport:
        """What was measured until now; steps without a finished replay are left out."""
        return RepeatReport(
            digest=self._reference.digest or "",
            times=self._times,
            planned=self._counts,
            steps=tuple(self._steps),
        )

    async def run(self) -> RepeatReport:
        """Measure everything. Raises what `replay` raises, and the `EngineError` of a failed neighbour."""
        recorded = await self._store.receipt_of(self._reference.id)
        identity = await self._engine.identity()
        self._started = time.monotonic()
        try:
            for count in self._counts:
                async with neighbours(
                    self._engine, identity, recorded.request, count=count, shape=self._shape
                ) as load:
                    await self._step(recorded, identity, load, count)
        finally:
            if self._steps:  # cancelled twice, it is kept all the same
                await asyncio.shield(self._store.add_finding(self._reference.id, self.report))
        return self.report

    async def _step(self, recorded: Receipt, identity: EngineFingerprint, load: Load, count: int) -> None:
        watch, outputs, repeats = LoadWatch(), Outputs(recorded), list[Repeat]()

        def on_tokens(done: int, total: int) -> None:
            watch.sample(load)
            self._tell(count, done, total)

        for attempt in range(self._times):
            load.check()
            result = await replay(
                self._engine,
                self._store,
                self._reference,
                chat_id=self._chat_id,
                on_tokens=on_tokens,
                calibrations=self._calibrations,
            )
            self._done += 1
            watch.note_running(result.run.neighbours)
            receipt = await self._store.receipt_of(result.run.id)
            if not result.comparison.reasons:  # another prompt's answer is no branch of this one
                outputs.add(receipt.completion)
            repeats.append(
                Repeat(
                    run_id=result.run.id,
                    digest=receipt.digest,
                    comparison=result.comparison,
                    diagnosis=result.diagnosis,
                )
            )
            one = identity.max_num_seqs == 1
            seen = watch.seen(asked=count, shape=self._shape, one_at_a_time=one)
            step = Step(load=seen, repeats=tuple(repeats), fork=outputs.fork())
            if attempt:
                self._steps.pop()
            self._steps.append(step)

    def _tell(self, count: int, tokens: int, recorded_tokens: int) -> None:
        if self._on_progress is None:
            return
        replays = self._times * len(self._counts)
        share = (self._done + min(1.0, tokens / max(1, recorded_tokens))) / replays
        elapsed = time.monotonic() - self._started
        left = elapsed * (1 - share) / share if share else None
        self._on_progress(Progress(count, self._done + 1, replays, tokens, recorded_tokens, left))
