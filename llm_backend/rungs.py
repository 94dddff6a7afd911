"""The request of each rung on a running engine: the recorded one with one thing changed."""

from __future__ import annotations

import uuid

from llm_backend.altered import (
    body_of,
    streams,
    with_cache_salt,
    with_seed,
    with_temperature,
    with_top_logprobs,
    without_logprobs,
    without_stream,
)
from llm_backend.config import SEED_MAX
from llm_backend.ladder import Rung
from llm_backend.receipt import EngineFingerprint, GenerationRequest

TRIAL_TEMPERATURE, TRIAL_SEED, TRIAL_LOGPROBS = 0.8, 42, 5
"""What a rung sets where the recorded request says nothing that could be changed."""

Changed = dict[str, str | None]
"""What was set, by name; None where it was left out."""


def change(rung: Rung, request: GenerationRequest, salt: str) -> tuple[GenerationRequest, Changed]:
    """The recorded request with the rung's one thing changed, and that thing by name.

    `salt`: of the prompt cache that the warm rung's replays share.
    """
    sampling = request.sampling
    match rung:
        case Rung.CACHE_COLD:
            return with_cache_salt(request, uuid.uuid4().hex), {"cache_salt": "new"}
        case Rung.CACHE_WARM:
            return with_cache_salt(request, salt), {"cache_salt": "shared"}
        case Rung.LOGPROBS if _asks_for_logprobs(request):
            return without_logprobs(request), {"logprobs": None}
        case Rung.LOGPROBS:
            return with_top_logprobs(request, TRIAL_LOGPROBS), {"top_logprobs": str(TRIAL_LOGPROBS)}
        case Rung.STREAM:
            return without_stream(request), {"stream": "false"}
        case Rung.SAMPLING if not sampling.greedy:
            return with_temperature(request, 0.0), {"temperature": "0"}
        case Rung.SAMPLING:
            sampled = with_temperature(request, TRIAL_TEMPERATURE)
            seed = TRIAL_SEED if sampling.seed is None else sampling.seed
            changed: Changed = {"temperature": str(TRIAL_TEMPERATURE), "seed": str(seed)}
            return with_seed(sampled, seed), changed
        case Rung.SEED:
            seed = other_seed(sampling.seed)
            return with_seed(request, seed), {"seed": str(seed)}
    return request, {}


def other_seed(seed: int | None) -> int:
    """The next seed; never -1, which vLLM takes for none."""
    if seed is None:
        return TRIAL_SEED
    return next(other for other in (seed + 1, seed + 2, seed - 1) if other != -1 and other <= SEED_MAX)


def draws_anew(rung: Rung, request: GenerationRequest) -> bool:
    """Whether the rung asks for another draw, so that another answer says nothing."""
    seed_decides = not request.sampling.greedy and request.sampling.seed is not None
    return rung in (Rung.SAMPLING, Rung.SEED) and (rung is Rung.SAMPLING or seed_decides)


def obstacle(rung: Rung, request: GenerationRequest, engine: EngineFingerprint) -> str | None:
    """Why this engine or request has no such rung; a key of `isolate.why.…`."""
    if rung in (Rung.CACHE_COLD, Rung.CACHE_WARM) and engine.prefix_caching is False:
        return "no_prefix_cache"
    if rung is Rung.STREAM and not streams(request):
        return "not_streamed"
    return None


def _asks_for_logprobs(request: GenerationRequest) -> bool:
    return bool((body_of(request) or {}).get("logprobs"))
