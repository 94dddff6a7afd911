"""What differs between two engine fingerprints, and whether it can change the bits of an answer.

Only differences between two *known* values are called bit-relevant or harmless. A value known on one
side alone is listed as unknown: nothing shows that it changed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Literal

from llm_backend.receipt import EngineFingerprint, Frozen

Relevance = Literal["bit-relevant", "unknown", "harmless"]

_ORDER: tuple[Relevance, ...] = ("bit-relevant", "unknown", "harmless")

# Other code, other hardware, other shapes or other reduction orders: each moved bits when measured,
# or is documented to choose kernels.
_BIT_RELEVANT = frozenset(
    {
        "model",
        "model_revision",
        "weights_digest",
        "tokenizer_digest",
        "chat_template_digest",
        "config_digest",
        "vllm_version",
        "torch_version",
        "cuda_version",
        "driver_version",
        "device",
        "device_names",
        "cpu_model",
        "cpu_flags",
        "threads",
        "dtype",
        "max_model_len",  # LongRoPE models switch their factors with it
        "max_num_seqs",
        "tensor_parallel_size",
        "attention_backend",
        "enforce_eager",
        "batch_invariant",
        "prefix_caching",
        "logprobs_mode",
        "linear_kernel",
        "top_p_pinned",
        "attention_kernel",
    }
)

# vLLM's --seed does not reach requests that are greedy or carry their own seed.
_ONLY_WITHOUT_REQUEST_SEED = "engine_seed"

_BIT_RELEVANT_ENV = frozenset(
    {
        "VLLM_BATCH_INVARIANT",
        "VLLM_USE_FLASHINFER_SAMPLER",
        "VLLM_ATTENTION_BACKEND",
        "VLLM_CPU_OMP_THREADS_BIND",
        "OMP_NUM_THREADS",
        "VLLM_FLOAT32_MATMUL_PRECISION",
    }
)

_HARMLESS_ENV = frozenset({"PYTHONHASHSEED", "VLLM_NO_USAGE_STATS", "VLLM_LOGGING_LEVEL", "DO_NOT_TRACK"})


class EngineChange(Frozen):
    """One fact that differs; values as text for people, None where the side did not say."""

    field: str
    """Name in `EngineFingerprint`; one environment variable is `env.NAME`."""
    reference: str | None
    candidate: str | None
    relevance: Relevance


def engine_changes(
    reference: EngineFingerprint, candidate: EngineFingerprint, *, seeded: bool
) -> tuple[EngineChange, ...]:
    """Every difference, bit-relevant first; `seeded`: both requests are greedy or carry a seed."""
    changes: list[EngineChange] = []
    for field in EngineFingerprint.model_fields:
        before, after = getattr(reference, field), getattr(candidate, field)
        if before == after:
            continue
        if field == "env":
            changes += _env_changes(before, after)
        elif isinstance(before, tuple):
            changes.append(_listed(field, before, after))
        else:
            relevance = "unknown" if before is None or after is None else _relevance(field, seeded)
            changes.append(_change(field, before, after, relevance))
    return tuple(sorted(changes, key=lambda change: _ORDER.index(change.relevance)))


def _relevance(field: str, seeded: bool) -> Relevance:
    if field == _ONLY_WITHOUT_REQUEST_SEED:
        return "harmless" if seeded else "bit-relevant"
    return "bit-relevant" if field in _BIT_RELEVANT else "unknown"


def _listed(field: str, before: tuple[str, ...], after: tuple[str, ...]) -> EngineChange:
    """Only what one side has and the other lacks: argument and CPU flag lists are long."""
    if not before or not after:
        return _change(field, ", ".join(before) or None, ", ".join(after) or None, "unknown")
    if field == "argv":
        before, after = _arguments(before), _arguments(after)
    only_before = tuple((Counter(before) - Counter(after)).elements())
    only_after = tuple((Counter(after) - Counter(before)).elements())
    if not only_before and not only_after:  # same words in another order
        only_before, only_after = before, after
    relevance: Relevance = "bit-relevant" if field in _BIT_RELEVANT else "unknown"
    return _change(field, ", ".join(only_before), ", ".join(only_after), relevance)


def _arguments(argv: tuple[str, ...]) -> tuple[str, ...]:
    """Each flag with its values as one word: "--max-num-seqs 1"."""
    grouped: list[str] = []
    for word in argv:
        if grouped and not word.startswith("-"):
            grouped[-1] += f" {word}"
        else:
            grouped.append(word)
    return tuple(grouped)


def _env_changes(before: dict[str, str], after: dict[str, str]) -> Iterable[EngineChange]:
    """One change per variable. An engine that told no variable at all told nothing about any."""
    for name in sorted(before.keys() | after.keys()):
        old, new = before.get(name), after.get(name)
        if old == new:
            continue
        relevance: Relevance = "unknown"
        if before and after and name in _BIT_RELEVANT_ENV:
            relevance = "bit-relevant"
        elif before and after and name in _HARMLESS_ENV:
            relevance = "harmless"
        yield _change(f"env.{name}", old, new, relevance)


def _change(field: str, before: object, after: object, relevance: Relevance) -> EngineChange:
    return EngineChange(
        field=field,
        reference=None if before is None else str(before),
        candidate=None if after is None else str(after),
        relevance=relevance,
    )
