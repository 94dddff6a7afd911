"""What can be changed about a launch, one thing at a time: for `encore isolate --own` and `encore bench`.

Each name means the other choice than the profile's own: with prefix caching where it has none, and the
reverse. What a device cannot take says why, instead of being left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from llm_backend.engine.profiles import Device, Row

Why = Literal["cuda_only", "one_gpu", "no_compiler", "slow_compile"]

NAMES = (
    "prefix_caching",
    "max_num_seqs",
    "dtype",
    "eager",
    "batch_invariance",
    "attention_backend",
    "flashinfer_sampler",
    "tensor_parallel",
)

_NO_CACHE, _SEQS, _EAGER = "--no-enable-prefix-caching", "--max-num-seqs", "--enforce-eager"
_BACKEND, _COMPILE = "--attention-backend", "TORCH_COMPILE_DISABLE"
_INVARIANT, _SAMPLER = "VLLM_BATCH_INVARIANT", "VLLM_USE_FLASHINFER_SAMPLER"


@dataclass(frozen=True, slots=True)
class Machine:
    """What decides which alternatives there are."""

    device: Device
    gpus: int = 0
    compiler: bool = True
    """Whether g++ is there, which torch.compile needs on a CPU."""


@dataclass(frozen=True, slots=True)
class Alternative:
    """One thing changed in a profile's table, or why this device cannot take it."""

    name: str
    changes: tuple[tuple[str, str | None], ...] = ()
    without: frozenset[str] = frozenset()
    obstacle: Why | None = None

    @property
    def changed(self) -> dict[str, str | None]:
        """For people: what was set, and with "-" what was left out."""
        return dict(self.changes) | dict.fromkeys(sorted(self.without), "-")


def alternative(name: str, table: Sequence[Row], machine: Machine, *, patient: bool = False) -> Alternative:
    """The other choice for `name`, or the value in `NAME=VALUE`, given the table that would run.

    `patient`: also what takes minutes to start. Raises `ValueError` for a name that is none.
    """
    known = {row.name: row.value for row in table}
    kind, _, value = name.partition("=")
    if kind not in NAMES:
        raise ValueError(f"{name} is no alternative")
    if why := _obstacle(kind, known, machine, patient):
        return Alternative(name, obstacle=why)
    match kind:
        case "prefix_caching":
            return _toggled(name, _NO_CACHE, None, known)
        case "max_num_seqs":
            return Alternative(name, ((_SEQS, value),)) if value else _toggled(name, _SEQS, "1", known)
        case "dtype":
            other = "float32" if known["--dtype"] == "bfloat16" else "bfloat16"
            return Alternative(name, (("--dtype", value or other),))
        case "eager" if _EAGER in known:
            # On a CPU both keep torch.compile away; one without the other would compile nothing.
            return Alternative(name, without=frozenset({_EAGER, _COMPILE} & known.keys()))
        case "eager":
            return Alternative(name, ((_EAGER, None),))
        case "batch_invariance" if value:
            return Alternative(name, ((_INVARIANT, "1"), (_BACKEND, value)))
        case "batch_invariance":
            return _toggled(name, _INVARIANT, "1", known)
        case "attention_backend":
            other = "FLASH_ATTN" if known.get(_BACKEND) == "TRITON_ATTN" else "TRITON_ATTN"
            return Alternative(name, ((_BACKEND, value or other),))
        case "flashinfer_sampler":
            return Alternative(name, ((_SAMPLER, "1" if known.get(_SAMPLER) == "0" else "0"),))
        case _:
            return Alternative(name, (("--tensor-parallel-size", value or "2"),))


def _toggled(name: str, row: str, value: str | None, known: dict[str, str | None]) -> Alternative:
    if row in known:
        return Alternative(name, without=frozenset({row}))
    return Alternative(name, ((row, value),))


def _obstacle(name: str, known: dict[str, str | None], machine: Machine, patient: bool) -> Why | None:
    if machine.device == "cuda":
        return "one_gpu" if name == "tensor_parallel" and machine.gpus < 2 else None
    if name in ("batch_invariance", "attention_backend", "flashinfer_sampler", "tensor_parallel"):
        return "cuda_only"
    if name == "eager" and _EAGER in known:
        if not machine.compiler:
            return "no_compiler"
        return None if patient else "slow_compile"
    return None
