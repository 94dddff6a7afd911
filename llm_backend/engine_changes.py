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

# A name for flags that are all compared one by one.
_HARMLESS = frozenset({"profile"})

# Flags whose effect a fact of its own tells: where both sides know it, the flag adds nothing.
_TOLD_BY = {
    "--attention-backend": "attention_backend",
    "--chat-template": "chat_template_digest",
    "--dtype": "dtype",
    "--enable-prefix-caching": "prefix_caching",
    "--enforce-eager": "enforce_eager",
    "--logprobs-mode": "logprobs_mode",
    "--max-model-len": "max_model_len",
    "--max-num-seqs": "max_num_seqs",
    "--model": "weights_digest",
    "--no-enable-prefix-caching": "prefix_caching",
    "--revision": "model_revision",
    "--seed": "engine_seed",
    "--served-model-name": "model",
    "--tensor-parallel-size": "tensor_parallel_size",
    "--tokenizer": "tokenizer_digest",
    "--tokenizer-revision": "tokenizer_digest",
}

_BIT_RELEVANT_FLAGS = frozenset(
    {
        "--attention-backend",
        "--attention-config",
        "--block-size",
        "--chat-template",
        "--compilation-config",
        "--dtype",
        "--enable-chunked-prefill",
        "--enable-prefix-caching",
        "--enforce-eager",
        "--hf-overrides",
        "--kv-cache-dtype",
        "--logprobs-mode",
        "--max-model-len",
        "--max-num-batched-tokens",
        "--max-num-seqs",
        "--no-enable-chunked-prefill",
        "--no-enable-prefix-caching",
        "--pipeline-parallel-size",
        "--quantization",
        "--speculative-config",
        "--tensor-parallel-size",
    }
)

# They size memory, name things or tell more; gpu-memory-utilization was measured to change no answer.
_HARMLESS_FLAGS = frozenset(
    {
        "--disable-log-stats",
        "--enable-force-include-usage",
        "--enable-per-request-metrics",
        "--enable-prompt-tokens-details",
        "--enable-server-load-tracking",
        "--fingerprint-mode",
        "--gpu-memory-utilization",
        "--host",
        "--max-logprobs",
        "--port",
        "--served-model-name",
        "--uvicorn-log-level",
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
        "VLLM_CPU_NUM_OF_RESERVED_CPU",
        "OMP_NUM_THREADS",
        "VLLM_FLOAT32_MATMUL_PRECISION",
    }
)

_HARMLESS_ENV = frozenset(
    {"OMP_WAIT_POLICY", "PYTHONHASHSEED", "VLLM_NO_USAGE_STATS", "VLLM_LOGGING_LEVEL", "DO_NOT_TRACK"}
)


class EngineChange(Frozen):
    """One fact that differs; values as text for people, None where the side did not say."""

    field: str
    """Name in `EngineFingerprint`; one environment variable is `env.NAME`, one flag `argv.--flag`."""
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
        elif field == "argv" and before and after:
            flags = _flag_changes(before, after)
            changes += (flag for flag in flags if not _told_by_a_fact(flag, reference, candidate))
        elif isinstance(before, tuple):
            changes.append(_listed(field, before, after))
        else:
            relevance = "unknown" if before is None or after is None else _relevance(field, seeded)
            changes.append(_change(field, before, after, relevance))
    return tuple(sorted(changes, key=lambda change: _ORDER.index(change.relevance)))


def _relevance(field: str, seeded: bool) -> Relevance:
    if field == _ONLY_WITHOUT_REQUEST_SEED:
        return "harmless" if seeded else "bit-relevant"
    if field in _HARMLESS:
        return "harmless"
    return "bit-relevant" if field in _BIT_RELEVANT else "unknown"


def _listed(field: str, before: tuple[str, ...], after: tuple[str, ...]) -> EngineChange:
    """Only what one side has and the other lacks: argument and CPU flag lists are long."""
    if not before or not after:
        return _change(field, ", ".join(before) or None, ", ".join(after) or None, "unknown")
    only_before = tuple((Counter(before) - Counter(after)).elements())
    only_after = tuple((Counter(after) - Counter(before)).elements())
    if not only_before and not only_after:  # same words in another order
        only_before, only_after = before, after
    relevance: Relevance = "bit-relevant" if field in _BIT_RELEVANT else "unknown"
    return _change(field, ", ".join(only_before), ", ".join(only_after), relevance)


def _flag_changes(before: tuple[str, ...], after: tuple[str, ...]) -> Iterable[EngineChange]:
    """One change per flag; a flag that only one side has is None on the other. Their order is no change."""
    old, new = _flags(before), _flags(after)
    for flag in sorted(old.keys() | new.keys()):
        if old.get(flag) == new.get(flag):
            continue
        relevance: Relevance = "unknown"
        if flag in _BIT_RELEVANT_FLAGS:
            relevance = "bit-relevant"
        elif flag in _HARMLESS_FLAGS:
            relevance = "harmless"
        yield _change(f"argv.{flag}", old.get(flag), new.get(flag), relevance)


def _told_by_a_fact(change: EngineChange, reference: EngineFingerprint, candidate: EngineFingerprint) -> bool:
    fact = _TOLD_BY.get(change.field.removeprefix("argv."))
    return fact is not None and None not in (getattr(reference, fact), getattr(candidate, fact))


def _flags(argv: tuple[str, ...]) -> dict[str, str]:
    """Each flag with its values, "on" where it stands alone; what precedes the first flag under ""."""
    grouped: dict[str, list[str]] = {}
    flag = ""
    for word in argv:
        if word.startswith("--"):
            flag, separator, value = word.partition("=")
            grouped.setdefault(flag, []).extend([value] if separator else [])
        else:
            grouped.setdefault(flag, []).append(word)
    return {name: " ".join(values) or "on" for name, values in grouped.items()}


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
