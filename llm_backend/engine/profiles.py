"""Launch profiles as data: every flag or variable the engine starts with, and why.

`strict` is the combination that passed every determinism cell measured; `fast` is vLLM's defaults with
the seed and the lengths pinned. The same rows build the command line, the panel's table, `encore doctor`
and the documentation, so none of them can say something else than what was launched.

Whatever changes the bits of an answer is here. Plumbing (address, key, access log) is in `launch.py`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

Device = Literal["cpu", "cuda"]
Profile = Literal["strict", "fast"]

FEW_CORES = 2
"""Cores up to which vLLM's habit of keeping one free for its scheduler leaves half of them idle, or more."""

HOPPER = 9
"""Major compute capability of H100, H200 and H20."""

_MEASURED_GPU = "measured: H200, vLLM 0.26.0, 2026-11"
_MEASURED_PLUGIN = "measured: H200, vLLM 0.26.0, 2026-12 (docs/determinism.md)"
_MEASURED_CPU = "measured: 2-core x86-64, vLLM 0.32.0"


@dataclass(frozen=True, slots=True)
class Entry:
    """One flag (`--…`) or environment variable of a profile, before a launch fills in its value."""

    name: str
    value: str | None
    """None for a bare flag; `{field}` is filled from `LaunchValues`."""
    why: str
    source: str
    devices: tuple[Device, ...] = ("cpu", "cuda")
    few_cores: bool | None = None
    """True: only on machines with up to `FEW_CORES` cores; None: everywhere."""
    hopper: bool | None = None
    """True: only on compute capability 9; False: only elsewhere; None: everywhere."""


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table people see, with the value this launch uses."""

    name: str
    value: str | None
    why: str
    source: str

    @property
    def is_flag(self) -> bool:
        return self.name.startswith("--")


@dataclass(frozen=True, slots=True)
class LaunchValues:
    """What a deployer chooses; everything else in a profile is fixed."""

    seed: int
    max_model_len: int
    gpu_memory_utilization: float = 0.9
    cores: int | None = None
    """Cores this process may use; None when they do not matter."""
    compute_capability: int | None = None
    """Major number of the GPU's compute capability, None on a CPU."""


COMMON: tuple[Entry, ...] = (
    Entry(
        "--seed",
        "{seed}",
        "Seeds torch, NumPy and random in every worker; requests carry their own seed besides.",
        "vllm/config/model.py",
    ),
    Entry(
        "--generation-config",
        "vllm",
        "Otherwise the model's own temperature and top-p fill in whatever a request leaves out.",
        "vllm/config/model.py",
    ),
    Entry("--dtype", "bfloat16", "Pinned: another precision is another function.", "vllm/config/model.py"),
    Entry(
        "--max-model-len",
        "{max_model_len}",
        "Always explicit: without it LongRoPE models get 4096 tokens, "
        "and above 4096 they use other rotary factors, which changes every logit.",
        "vllm/model_executor/layers/rotary_embedding/phi3_long_rope_scaled_rope.py",
    ),
    Entry(
        "--tensor-parallel-size",
        "1",
        "Splitting a matrix over GPUs changes the order of additions; results differ between sizes.",
        "vLLM issue 27433",
    ),
    Entry(
        "--max-logprobs",
        "20",
        "The most alternatives a request may ask for at each position.",
        "vllm/config/model.py",
    ),
    Entry(
        "--logprobs-mode",
        "raw_logprobs",
        "Log-probabilities before temperature and top-p, so they do not depend on sampling settings.",
        "vllm/config/model.py",
    ),
    Entry(
        "--enable-prompt-tokens-details",
        None,
        "Tells how many prompt tokens came from the prefix cache.",
        "vllm/entrypoints/openai/cli_args.py",
    ),
    Entry(
        "--gpu-memory-utilization",
        "{gpu_memory_utilization}",
        "Share of GPU memory claimed. It sizes the KV cache; answers did not change with it.",
        _MEASURED_GPU,
        devices=("cuda",),
    ),
    Entry(
        "VLLM_CPU_KVCACHE_SPACE",
        "2",
        "GiB of memory for the KV cache; by default vLLM takes most of the machine's.",
        "vllm/envs.py",
        devices=("cpu",),
    ),
    Entry(
        "VLLM_CPU_NUM_OF_RESERVED_CPU",
        "0",
        "Both cores of a small machine compute: a prefill takes half the time.",
        _MEASURED_CPU,
        devices=("cpu",),
        few_cores=True,
    ),
    Entry(
        "OMP_WAIT_POLICY",
        "PASSIVE",
        "A thread that has nothing to do sleeps. Otherwise the two would spin, and the server with its "
        "scheduler would wait: 6 tokens/s were measured instead of 26.",
        _MEASURED_CPU,
        devices=("cpu",),
        few_cores=True,
    ),
    Entry(
        "TORCH_COMPILE_DISABLE",
        "1",
        "Otherwise the first request that asks for log-probabilities compiles C++: 17 s later, and fatal "
        "to the engine without g++ or with a space in its path.",
        _MEASURED_CPU,
        devices=("cpu",),
    ),
    Entry(
        "--enforce-eager",
        None,
        "Starts in about 35 s instead of 270 s with torch.compile, and decodes no slower.",
        _MEASURED_CPU,
        devices=("cpu",),
    ),
)

STRICT: tuple[Entry, ...] = (
    Entry(
        "VLLM_BATCH_INVARIANT",
        "1",
        "Kernels whose result does not depend on who else is in the batch. "
        "Never together with --enforce-eager, which broke it when measured.",
        f"{_MEASURED_GPU}; vLLM documentation, batch invariance",
        devices=("cuda",),
    ),
    Entry(
        "VLLM_USE_FLASHINFER_SAMPLER",
        "0",
        "That sampler's log-probabilities moved between repeats with about 44 sequences in flight.",
        "vLLM issue 51187",
        devices=("cuda",),
    ),
    Entry(
        "ENCORE_STRICT_GEMM",
        "cublas",
        "Linear layers on cuBLAS instead of vLLM's slower Triton kernel (85 against 310 tokens/s for one "
        "request), only after every engine start has shown bit for bit that a row does not depend on its "
        "batch; and one top-p filter for batches of every size.",
        f"{_MEASURED_PLUGIN}; plugins/strict_gemm",
        devices=("cuda",),
    ),
    Entry(
        "ENCORE_STRICT_ATTENTION",
        "segments",
        "Cuts contexts at fixed places, so that a long one may use the whole card (3.6 instead of 8.7 ms a "
        "token after 3,500) with the same bits in any company; only after every engine start has shown it.",
        f"{_MEASURED_PLUGIN}; plugins/strict_gemm",
        devices=("cuda",),
        hopper=True,
    ),
    Entry(
        "--max-num-batched-tokens",
        "8192",
        "The largest batch there can be: the self-check of the linear layers goes up to it. "
        "Pinned, because vLLM's own choice depends on the GPU's memory.",
        _MEASURED_PLUGIN,
        devices=("cuda",),
    ),
    Entry(
        "--attention-backend",
        "TRITON_ATTN",
        "On Hopper FlashAttention 3 chooses its tiles by the longest query in the step, so a stranger's "
        "prefill changes the bits; Triton passed every cell and costs nothing.",
        f"{_MEASURED_GPU}; vLLM issue 51902",
        devices=("cuda",),
        hopper=True,
    ),
    Entry(
        "--attention-backend",
        "FLASH_ATTN",
        "Pinned, because the automatic choice depends on the GPU and the installed libraries.",
        "vllm/model_executor/layers/attention; not measured on this GPU family",
        devices=("cuda",),
        hopper=False,
    ),
    Entry(
        "--no-enable-prefix-caching",
        None,
        "A cache hit changes the shape of the prefill, and with it the logits.",
        f"{_MEASURED_GPU}; {_MEASURED_CPU}",
    ),
    Entry(
        "--max-num-seqs",
        "1",
        "One sequence at a time: the only batch-independent mode on a CPU. "
        "Under load the default forked at position 31, this stayed bit-identical.",
        _MEASURED_CPU,
        devices=("cpu",),
    ),
)

PROFILES: dict[Profile, tuple[Entry, ...]] = {"strict": (*COMMON, *STRICT), "fast": COMMON}


def rows(profile: Profile, device: Device, values: LaunchValues) -> tuple[Row, ...]:
    """The profile's table as this launch uses it, in launch order."""
    hopper = values.compute_capability == HOPPER
    few_cores = values.cores is not None and values.cores <= FEW_CORES
    filled = {
        "seed": values.seed,
        "max_model_len": values.max_model_len,
        "gpu_memory_utilization": values.gpu_memory_utilization,
    }
    return tuple(
        Row(entry.name, entry.value and entry.value.format(**filled), entry.why, entry.source)
        for entry in PROFILES[profile]
        if device in entry.devices and entry.hopper in (None, hopper) and entry.few_cores in (None, few_cores)
    )


def altered(
    table: Sequence[Row], changes: Mapping[str, str | None], without: Collection[str] = ()
) -> tuple[Row, ...]:
    """The table with other values, further rows, and without some: one profile with one thing changed."""
    kept = [_explained(row.name, changes[row.name]) if row.name in changes else row for row in table]
    known = {row.name for row in table}
    added = [_explained(name, value) for name, value in changes.items() if name not in known]
    return tuple(row for row in (*kept, *added) if row.name not in without)


def explain(argv: Sequence[str], env: Mapping[str, str]) -> tuple[Row, ...]:
    """The table of an engine that was started earlier: what its fingerprint records, and why.

    Values are those of that launch, not what the profile would choose today. What no profile knows
    (a variable a deployer exported) is listed too, without a reason.
    """
    given: list[tuple[str, str | None]] = sorted(env.items())
    for part in argv:
        if part.startswith("--"):
            given.append((part, None))
        else:
            given[-1] = (given[-1][0], part)
    return tuple(_explained(name, value) for name, value in given)


def _explained(name: str, value: str | None) -> Row:
    candidates = [entry for entry in (*COMMON, *STRICT) if entry.name == name]
    # Two entries may share a name (the attention backend); the one with this value is meant.
    entry = next((entry for entry in candidates if entry.value == value), next(iter(candidates), None))
    return Row(name, value, entry.why if entry else "", entry.source if entry else "")


def arguments(table: Iterable[Row]) -> tuple[str, ...]:
    """The table's flags as command-line arguments."""
    return tuple(part for row in table if row.is_flag for part in (row.name, row.value) if part is not None)


def environment(table: Iterable[Row]) -> dict[str, str]:
    """The table's environment variables."""
    return {row.name: row.value or "" for row in table if not row.is_flag}
