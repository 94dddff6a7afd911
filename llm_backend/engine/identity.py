"""From a launch to an `EngineFingerprint`: what was asked for, what the probe found, what the log says.

Where the engine's own log states a value that is effective, it wins over the flag that was passed;
what neither tells stays None.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from llm_backend.engine import strict_gemm
from llm_backend.engine.gpu import Gpu
from llm_backend.engine.profiles import Device, Row, arguments
from llm_backend.receipt import EngineFingerprint

_ENV_PREFIXES = ("VLLM_", "NCCL_", "OMP_", "KMP_", "MKL_", "CUBLAS", "CUDA_", "TORCH", "PYTORCH_", "TRITON_")
_ENV_NAMES = ("LD_PRELOAD", "NVIDIA_TF32_OVERRIDE", "PYTHONHASHSEED", *strict_gemm.SWITCHES)
_ENV_IRRELEVANT = re.compile(
    # secrets; then places, ports, logging and telemetry, which cannot change a bit of an answer
    r"KEY|TOKEN|SECRET|PASSWORD|_HOME$|_ROOT$|_PATH$|_DIR$|_PORT$|_IP$|LOGGING|USAGE|TRACK|VISIBLE_DEVICES"
)

_CONFIG_LINE = "Initializing a V1 LLM engine"
_ATTENTION = re.compile(r"Using (\w+) attention backend")
_CORES = re.compile(r"core ids=\[([\d, ]*)\]")


def relevant_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Variables of the engine's environment that can change the bits of an answer; never a secret."""
    return {
        name: value
        for name, value in sorted(environ.items())
        if (name.startswith(_ENV_PREFIXES) or name in _ENV_NAMES) and not _ENV_IRRELEVANT.search(name)
    }


def effective_facts(lines: Iterable[str]) -> dict[str, Any]:
    """Fingerprint fields that vLLM's start-up log states."""
    facts: dict[str, Any] = {}
    for line in lines:
        if _CONFIG_LINE in line:
            facts |= _engine_config(line)
        elif match := _ATTENTION.search(line):
            facts["attention_backend"] = match[1]
        elif match := _CORES.search(line):
            facts["threads"] = len(match[1].split(","))
    return facts


def fingerprint(
    *,
    model: str,
    revision: str | None,
    device: Device,
    profile: str,
    table: Sequence[Row],
    environ: Mapping[str, str],
    gpus: Sequence[Gpu],
    lock_digest: str | None,
    probe: Mapping[str, Any],
    log: Iterable[str],
    self_check: strict_gemm.SelfCheck | None = None,
) -> EngineFingerprint:
    """Join everything known at launch; `self_check`: what the strict profile's plugin found, if it ran."""
    flags = {row.name: row.value for row in table if row.is_flag}
    asked: dict[str, Any] = {
        "dtype": flags["--dtype"],
        "max_model_len": int(flags["--max-model-len"] or 0),
        "tensor_parallel_size": int(flags["--tensor-parallel-size"] or 0),
        "engine_seed": int(flags["--seed"] or 0),
        "enforce_eager": "--enforce-eager" in flags,
        "attention_backend": flags.get("--attention-backend"),
        "prefix_caching": "--no-enable-prefix-caching" not in flags,
    }
    machine: dict[str, Any] = {}
    if device == "cuda":
        # The host's processor does no arithmetic here.
        probe = {key: value for key, value in probe.items() if not key.startswith("cpu_")}
        machine = {
            "device_names": tuple(gpu.name for gpu in gpus[: asked["tensor_parallel_size"]]),
            "device_memory_bytes": gpus[0].total_bytes,
            "driver_version": gpus[0].driver,
        }
    return EngineFingerprint(
        model=model,
        model_revision=revision,
        device=device,
        profile=strict_gemm.proven_profile(profile, table, self_check),
        argv=arguments(table),
        env=relevant_environment(environ),
        lock_digest=lock_digest,
        max_num_seqs=int(seqs) if (seqs := flags.get("--max-num-seqs")) else None,
        batch_invariant=environ.get("VLLM_BATCH_INVARIANT") == "1",
        logprobs_mode=flags["--logprobs-mode"],
        linear_kernel=self_check.linear if self_check else None,
        top_p_pinned=self_check.top_p_pinned if self_check else None,
        attention_kernel=self_check.attention if self_check else None,
        **{**probe, **machine, **asked, **effective_facts(log)},
    )


def _engine_config(line: str) -> dict[str, Any]:
    """The fields of vLLM's `config: a=1, b='x', …` line that a fingerprint has."""

    def value(name: str) -> str | None:
        match = re.search(rf"[ (]{name}=([^,]+)", line)
        return match[1].strip("'") if match else None

    facts: dict[str, Any] = {}
    if dtype := value("dtype"):
        facts["dtype"] = dtype.removeprefix("torch.")
    for field, name in (
        ("max_model_len", "max_seq_len"),
        ("tensor_parallel_size", "tensor_parallel_size"),
        ("engine_seed", "seed"),
    ):
        if (number := value(name)) and number.isdigit():
            facts[field] = int(number)
    for field, name in (("enforce_eager", "enforce_eager"), ("prefix_caching", "enable_prefix_caching")):
        if (flag := value(name)) in ("True", "False"):
            facts[field] = flag == "True"
    return facts
