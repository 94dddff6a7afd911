"""The seed probe: at a temperature above 0, the same seed must give the same tokens and another seed others.

Either half alone proves nothing: a server that drops the seed and falls back to a fixed one passes the
first, one that draws at random passes the second. Seed 0 is among those tried, because it is the one
that gets taken for "none". vLLM draws the noise from a generator of the request's own (CPU) or from a
hash of seed, position and token (GPU): neither depends on the other requests, but the probabilities
that the noise is added to may, so a probe beside others decides less (`probes.judge_seed`).
"""

from __future__ import annotations

import uuid
from collections.abc import Callable

from llm_backend.altered import with_cache_salt, with_seed
from llm_backend.engine.client import EngineClient
from llm_backend.errors import EngineRejected
from llm_backend.probes import SeedOutcome, SeedProbe, SeedTrial, chance_of, judge_seed, most_neighbours
from llm_backend.receipt import GenerationRequest, Message, Sampling
from llm_backend.record import build_request, record
from llm_backend.replay import replay
from llm_backend.store import Run, Store

SEEDS = (20250, 0)

PROMPT = "Write a long story about a river, a bridge and a lantern."
"""An open task: two draws part within a few tokens."""

TEMPERATURE = 1.0
"""With no filter on top, the recorded probabilities are those that the tokens are drawn with."""

TOKENS = 32
"""Long enough that the chance of two equal draws is about 1e-30 on the embedded model."""

OnTokens = Callable[[int, int], None]
"""Called with tokens done and tokens in all, over all runs."""


async def probe_seed(
    engine: EngineClient,
    store: Store,
    *,
    chat_id: str,
    tokens: int = TOKENS,
    on_tokens: OnTokens = lambda *_: None,
) -> SeedProbe:
    """Draw twice with each of `SEEDS`; the four runs are recorded in `chat_id`.

    A refusal is an undecided probe. Raises the other errors that `record` raises.
    """
    identity = await engine.identity()
    sampling = Sampling(seed=SEEDS[0], temperature=TEMPERATURE, max_tokens=tokens)
    request = build_request(identity.model, [Message(role="user", content=PROMPT)], sampling)
    known = {"temperature": TEMPERATURE, "engine": identity.digest}
    try:
        first = await _draw(engine, store, request, chat_id, lambda done: on_tokens(done, 4 * tokens))
        trials: list[SeedTrial] = []
        again = first
        for index, seeds in enumerate(((SEEDS[0], SEEDS[0]), SEEDS, (SEEDS[1], SEEDS[1])), start=1):
            reference = first if index < 3 else again

            def show(done: int, _: int, before: int = index * tokens) -> None:
                on_tokens(before + done, 4 * tokens)

            trial, again = await _trial(engine, store, reference, seeds, chat_id, show)
            trials.append(trial)
    except EngineRejected as error:
        return SeedProbe(outcome=SeedOutcome.UNDECIDED, reason="refused", detail=error.problem, **known)
    same, other, same_again = trials
    outcome, reason = judge_seed((same, same_again), other, identity)
    return SeedProbe(outcome=outcome, reason=reason, same_seed=(same, same_again), other_seed=other, **known)


async def _draw(
    engine: EngineClient,
    store: Store,
    request: GenerationRequest,
    chat_id: str,
    on_tokens: Callable[[int], None],
) -> Run:
    async with record(engine, store, _uncached(request), chat_id=chat_id) as recording:
        async for _ in recording:
            on_tokens(len(recording.tokens))
    assert recording.run is not None
    return recording.run


async def _trial(
    engine: EngineClient,
    store: Store,
    reference: Run,
    seeds: tuple[int, int],
    chat_id: str,
    on_tokens: OnTokens,
) -> tuple[SeedTrial, Run]:
    """Draw again with the second seed, compared with `reference`, which was drawn with the first."""
    recorded = await store.receipt_of(reference.id)
    request = _uncached(with_seed(recorded.request, seeds[1]))
    result = await replay(engine, store, reference, chat_id=chat_id, on_tokens=on_tokens, request=request)
    trial = SeedTrial(
        run_ids=(reference.id, result.run.id),
        seeds=seeds,
        comparison=result.comparison,
        diagnosis=result.diagnosis,
        neighbours=most_neighbours((reference.neighbours, result.run.neighbours)),
        chance=chance_of(recorded),
    )
    return trial, result.run


def _uncached(request: GenerationRequest) -> GenerationRequest:
    """The same prefill each time: a prompt from the cache is computed in another shape."""
    return with_cache_salt(request, uuid.uuid4().hex)
