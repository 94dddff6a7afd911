"""Replay: send a recorded request again and compare what comes back, token by token.

The recorded body goes out unchanged; today's settings, history and template play no part. If the
engine now renders another prompt from it, or another model answers, the comparison says so
(INCOMPARABLE) instead of passing for a divergence. An experiment may send an altered request instead
(`altered`): the comparison names what was changed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from llm_backend.check import Calibrations
from llm_backend.compare import Comparison, compare
from llm_backend.diagnose import Diagnosis, diagnose
from llm_backend.engine.client import EngineClient
from llm_backend.receipt import GenerationRequest, Receipt
from llm_backend.record import record
from llm_backend.store import Run, Store


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """A finished replay: the new run and how it compares with the recorded one."""

    run: Run
    comparison: Comparison
    diagnosis: Diagnosis
    comparison_id: str


async def replay(
    engine: EngineClient,
    store: Store,
    reference: Run,
    *,
    chat_id: str,
    on_tokens: Callable[[int, int], None] | None = None,
    request: GenerationRequest | None = None,
    calibrations: Calibrations | None = None,
) -> ReplayResult:
    """Replay `reference` on `engine` and store the new run and its comparison.

    `request` is sent instead of the recorded one: the same with one thing changed. `calibrations` may
    hold this engine's own drift, which says how near a near tie is.
    `on_tokens(done, recorded)` is called as tokens arrive. Cancelling stops the replay; the partial
    run is kept, without a comparison. Raises what `record` raises.
    """
    recorded = await store.receipt_of(reference.id)
    total = len(recorded.completion.tokens)
    recording = record(
        engine,
        store,
        request or recorded.request,
        chat_id=chat_id,
        kind="replay",
        reference_run_id=reference.id,
    )
    async with recording:
        async for _ in recording:
            if on_tokens is not None:
                on_tokens(len(recording.tokens), total)
    assert recording.run is not None
    assert recording.receipt is not None
    comparison, diagnosis = judge(recorded, recording.receipt, reference, recording.run, calibrations)
    comparison_id = await store.add_comparison(reference.id, recording.run.id, comparison, diagnosis)
    return ReplayResult(recording.run, comparison, diagnosis, comparison_id)


def judge(
    reference: Receipt,
    candidate: Receipt,
    reference_run: Run,
    candidate_run: Run,
    calibrations: Calibrations | None = None,
) -> tuple[Comparison, Diagnosis]:
    """Compare two receipts and explain the result with what is known about the load during both."""
    measured = calibrations.find(candidate.engine) if calibrations else None
    comparison = compare(reference, candidate, self_check=measured.near_tie if measured else None)
    starts = {reference_run.engine_start, candidate_run.engine_start}
    comparison = comparison.model_copy(update={"engine_restarted": len(starts - {None}) == 2})
    loads = [run.neighbours for run in (reference_run, candidate_run) if run.neighbours is not None]
    neighbours = max(loads) if loads else None
    return comparison, diagnose(
        comparison,
        reference,
        candidate,
        neighbours=neighbours,
        first_after_start={reference_run.first_after_start, candidate_run.first_after_start} == {True, False},
    )
