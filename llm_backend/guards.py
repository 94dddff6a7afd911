"""Guards: what must not change an answer, put to the test on this engine with this prompt.

Each compares a run with one thing changed against a run with nothing changed, and has a control: two
runs with nothing changed. All are replays of one receipt, recorded and compared as any replay is.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable

from llm_backend.altered import with_cache_salt, without_logprobs
from llm_backend.diagnose import diagnose
from llm_backend.engine.client import EngineClient
from llm_backend.load import FILLER, TASKS
from llm_backend.probes import (
    Guard,
    Guarded,
    GuardOutcome,
    GuardReason,
    judge_guard,
    most_neighbours,
)
from llm_backend.receipt import GenerationRequest, Message, Sampling
from llm_backend.record import build_request, record
from llm_backend.replay import ReplayResult, replay
from llm_backend.run import FRESH
from llm_backend.store import Run, Store

SAMPLE = f"{TASKS[1]}\n{FILLER * 36}{TASKS[1]}"
"""Asked where no receipt is given: about 670 tokens, so that most of it can come from the cache. With
these the CPU engine's probabilities moved by 0.02 to 0.08 nats on one core (on two by nothing), with 470
by nothing."""

TOKENS = 48
"""Of the answer to it."""

OnTokens = Callable[[int, int], None]
"""Called with tokens done and tokens in all, over all runs."""


async def ask_sample(engine: EngineClient, store: Store, *, chat_id: str) -> Run:
    """Record a greedy answer to guard. Raises what `record` raises."""
    asked = [Message(role="user", content=SAMPLE)]
    request = build_request((await engine.identity()).model, asked, Sampling(max_tokens=TOKENS))
    return await _first(engine, store, request, chat_id)


async def guard_replays(
    engine: EngineClient,
    store: Store,
    reference: Run,
    *,
    chat_id: str,
    on_tokens: OnTokens = lambda *_: None,
) -> tuple[Guard, Guard]:
    """The observer guard and the prefix-cache guard, by three to five replays of `reference`.

    The runs compared are all of now: what has changed since the recording plays no part. Raises what
    `record` raises.
    """
    engine_now = await engine.identity()
    recorded = await store.receipt_of(reference.id)
    caching = engine_now.prefix_caching is not False
    length = len(recorded.completion.tokens)
    total, done = length * (5 if caching else 3), 0

    async def again(base: Run, request: GenerationRequest) -> ReplayResult:
        nonlocal done
        result = await replay(
            engine,
            store,
            base,
            chat_id=chat_id,
            request=request,
            on_tokens=lambda now, _: on_tokens(done + now, total),
        )
        done += length
        return result

    base = (await again(reference, _uncached(recorded.request))).run
    control = await again(base, _uncached(recorded.request))
    bare = await again(base, without_logprobs(_uncached(recorded.request)))
    load = [base.neighbours, control.run.neighbours]
    outcome, reason = judge_guard(
        control.comparison, bare.comparison, engine_now, most_neighbours([*load, bare.run.neighbours])
    )
    observer = await _guard(store, Guarded.OBSERVER, outcome, reason, base, control, bare)
    if not caching:
        off = Guard(guarded=Guarded.PREFIX_CACHE, outcome=GuardOutcome.NOT_APPLICABLE, reason="cache_off")
        return observer, off
    await again(base, recorded.request)  # leaves the prompt in the cache
    cached = await again(base, recorded.request)
    outcome, reason = judge_guard(
        control.comparison, cached.comparison, engine_now, most_neighbours([*load, cached.run.neighbours])
    )
    guard = await _guard(store, Guarded.PREFIX_CACHE, outcome, reason, base, control, cached)
    return observer, _with_cache_told(guard)


async def cold_request(
    engine: EngineClient, store: Store, request: GenerationRequest, *, chat_id: str
) -> Guard:
    """Send `request` as the first to an engine that was just started, then twice more, and compare.

    Undecided, without sending anything, when the engine has served more than `FRESH` requests. Every
    prompt is kept out of the prefix cache, so that a warm run differs from the cold one in nothing
    else. Raises what `record` raises.
    """
    engine_now, served = await engine.identity(), await engine.served()
    if served is not None and served > FRESH:
        return Guard(
            guarded=Guarded.COLD_START,
            outcome=GuardOutcome.UNDECIDED,
            reason="not_fresh",
            served_before=served,
        )
    cold = await _first(engine, store, _uncached(request), chat_id)
    warm = await replay(engine, store, cold, chat_id=chat_id, request=_uncached(request))
    control = await replay(engine, store, warm.run, chat_id=chat_id, request=_uncached(request))
    load = most_neighbours([cold.neighbours, warm.run.neighbours, control.run.neighbours])
    outcome, reason = judge_guard(control.comparison, warm.comparison, engine_now, load)
    guard = await _guard(store, Guarded.COLD_START, outcome, reason, cold, control, warm)
    diagnosis = diagnose(
        warm.comparison,
        await store.receipt_of(cold.id),
        await store.receipt_of(warm.run.id),
        neighbours=load,
        first_after_start=True,
    )
    return guard.model_copy(update={"diagnosis": diagnosis, "served_before": served})


async def _first(engine: EngineClient, store: Store, request: GenerationRequest, chat_id: str) -> Run:
    async with record(engine, store, request, chat_id=chat_id) as recording:
        async for _ in recording:
            pass
    assert recording.run is not None
    return recording.run


async def _guard(
    store: Store,
    guarded: Guarded,
    outcome: GuardOutcome,
    reason: GuardReason | None,
    base: Run,
    control: ReplayResult,
    changed: ReplayResult,
) -> Guard:
    before, after = await store.receipt_of(base.id), await store.receipt_of(changed.run.id)
    return Guard(
        guarded=guarded,
        outcome=outcome,
        reason=reason,
        control=control.comparison,
        comparison=changed.comparison,
        diagnosis=changed.diagnosis,
        cached_prompt_tokens=(
            before.completion.cached_prompt_tokens,
            after.completion.cached_prompt_tokens,
        ),
        run_ids=(base.id, control.run.id, changed.run.id),
    )


def _with_cache_told(guard: Guard) -> Guard:
    """A hit and a miss must have happened, as the engine counts them; else their difference says nothing."""
    missed, hit = guard.cached_prompt_tokens
    if guard.outcome is GuardOutcome.UNDECIDED:
        return guard
    if missed is None or hit is None:
        return guard.model_copy(update={"outcome": GuardOutcome.UNDECIDED, "reason": "cache_not_told"})
    if missed:
        return guard.model_copy(update={"outcome": GuardOutcome.UNDECIDED, "reason": "always_cached"})
    if not hit:
        same = guard.outcome is GuardOutcome.SAME
        outcome = GuardOutcome.NOT_APPLICABLE if same else GuardOutcome.UNDECIDED
        return guard.model_copy(update={"outcome": outcome, "reason": "never_cached"})
    return guard


def _uncached(request: GenerationRequest) -> GenerationRequest:
    return with_cache_salt(request, uuid.uuid4().hex)
