"""A recorded request with one thing changed, so that an experiment varies nothing else.

The body is what is sent: each function changes the one key (or the keys that only make sense
together) and keeps every other value and their order; `sampling` and `effective` follow the body.
"""

from __future__ import annotations

import json
from typing import Any

from llm_backend.errors import ReceiptInvalid
from llm_backend.receipt import GenerationRequest, Sampling


def with_seed(request: GenerationRequest, seed: int | None) -> GenerationRequest:
    """Another seed, or none at all."""
    return _with(request, {"seed": seed}, seed=seed)


def with_temperature(request: GenerationRequest, temperature: float) -> GenerationRequest:
    """Another temperature; below `receipt.GREEDY_BELOW` it is greedy decoding."""
    return _with(request, {"temperature": temperature}, temperature=temperature)


def with_max_tokens(request: GenerationRequest, max_tokens: int) -> GenerationRequest:
    """Another limit of the answer's length, in tokens."""
    return _with(request, {"max_tokens": max_tokens}, max_tokens=max_tokens)


def with_top_logprobs(request: GenerationRequest, top_logprobs: int) -> GenerationRequest:
    """Another number of alternatives recorded per token; logprobs are asked for in any case."""
    if request.endpoint == "/v1/completions":
        return _with(request, {"logprobs": top_logprobs}, top_logprobs=top_logprobs)
    keys = {"logprobs": True, "top_logprobs": top_logprobs}
    return _with(request, keys, top_logprobs=top_logprobs)


def without_logprobs(request: GenerationRequest) -> GenerationRequest:
    """No logprobs and no alternatives; token ids are still asked for."""
    # An engine refuses top_logprobs without logprobs.
    return _with(request, {"logprobs": None, "top_logprobs": None}, top_logprobs=0)


def without_stream(request: GenerationRequest) -> GenerationRequest:
    """The whole answer in one reply."""
    # An engine refuses stream_options without stream.
    return _with(request, {"stream": False, "stream_options": None})


def with_cache_salt(request: GenerationRequest, salt: str) -> GenerationRequest:
    """The prompt shares cached blocks only with requests of the same salt; a new one shares none."""
    return _with(request, {"cache_salt": salt})


def streams(request: GenerationRequest) -> bool:
    """Whether the answer is asked for piece by piece; taken for granted where the body is unreadable."""
    document = body_of(request)
    return document is None or bool(document.get("stream"))


def prompt_ids(request: GenerationRequest) -> tuple[int, ...]:
    """The token ids that are sent as the prompt; empty where messages or text are."""
    prompt = (body_of(request) or {}).get("prompt") if request.endpoint == "/v1/completions" else None
    ids = prompt if isinstance(prompt, list) else []
    return tuple(ids) if all(type(one) is int for one in ids) else ()


def body_of(request: GenerationRequest) -> dict[str, Any] | None:
    """The body as a JSON object, None if it is none (an imported receipt may hold anything)."""
    try:
        document = json.loads(request.body)
    except ValueError:
        return None
    return document if isinstance(document, dict) else None


def _with(request: GenerationRequest, keys: dict[str, Any], **sampling: Any) -> GenerationRequest:
    """`keys` set in the body, or left out where None; the fields of `sampling` set in the settings."""
    document = body_of(request)
    if document is None:
        raise ReceiptInvalid("The recorded request body is not a JSON object: nothing in it can be changed.")
    body = {key: value for key, value in (document | keys).items() if key not in keys or value is not None}
    changed = Sampling.model_validate(request.sampling.model_dump() | sampling)
    return request.model_copy(
        update={
            "body": json.dumps(body, ensure_ascii=False),
            "sampling": changed,
            "effective": changed.effective(),
        }
    )
