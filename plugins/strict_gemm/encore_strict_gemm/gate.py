"""The decision: cuBLAS for every linear layer of the model, or the Triton kernel for all of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from encore_strict_gemm.proof import Proof, Shape

SWITCH = "ENCORE_STRICT_GEMM"
ATTENTION_SWITCH = "ENCORE_STRICT_ATTENTION"
REPORT = "ENCORE_STRICT_GEMM_REPORT"
"""Path of a JSON file that says what this engine uses, for whoever records how an answer was made."""


def switched_on(environ: Mapping[str, str]) -> tuple[bool, str | None]:
    """Whether the plugin should act, and what to say when it was asked to but will not."""
    wanted = environ.get(SWITCH, "")
    if not wanted:
        return False, None
    if wanted != "cublas":
        return False, f"{SWITCH}={wanted} is not known; the only value is cublas. Nothing was changed."
    if environ.get("VLLM_BATCH_INVARIANT", "0") != "1":
        return False, f"{SWITCH}=cublas needs VLLM_BATCH_INVARIANT=1. Nothing was changed."
    return True, None


def _refusal_of(prove: Callable[[], str | None]) -> str | None:
    try:
        return prove()
    # Another vLLM with other names, a kernel that does not compile for this card, or no memory.
    except (ImportError, AttributeError, TypeError, ValueError, RuntimeError) as error:
        return f"{type(error).__name__}: {error}"


@dataclass(slots=True)
class Gate:
    """Collects one proof per shape while the weights load; the first fork closes it for good.

    All or nothing: a mixture would be deterministic too, but its name would not say what ran.
    """

    on_refusal: Callable[[], None]
    proofs: dict[Shape, Proof] = field(default_factory=dict)
    refusal: str | None = None
    top_p_pinned: bool | None = None
    """Whether top-p has one kernel and kept the same tokens in every company; None before the check."""
    top_p_refusal: str | None = None
    attention: Literal["segments", "vllm"] | None = None
    """What serves attention: known once a model's layers have run; vLLM's kernel when the check failed."""
    attention_refusal: str | None = None

    def admit(self, shape: Shape, prove: Callable[[], Proof]) -> bool:
        """Whether a layer of this shape may use cuBLAS; `prove` runs once per shape."""
        if self.refusal is not None:
            return False
        if shape not in self.proofs:
            try:
                proof = prove()
            except RuntimeError as error:  # out of memory, or a kernel that does not exist for this card
                self._refuse(f"{shape}: the self-check could not run ({error})")
                return False
            self.proofs[shape] = proof
            if proof.fork is not None:
                self._refuse(f"{shape}: {proof.fork}")
        return self.refusal is None

    def _refuse(self, reason: str) -> None:
        self.refusal = reason
        self.on_refusal()

    def check_top_p(self, pin_and_prove: Callable[[], str | None]) -> None:
        """Pin the filter once; `pin_and_prove` says why that failed, or None."""
        if self.top_p_pinned is None:
            self.top_p_refusal = _refusal_of(pin_and_prove)
            self.top_p_pinned = self.top_p_refusal is None

    def check_attention(self, prove: Callable[[], str | None]) -> bool:
        """Whether attention may be cut into segments; `prove` says why not, or None."""
        self.attention_refusal = _refusal_of(prove)
        if self.attention_refusal is not None:
            self.attention = "vllm"
        return self.attention_refusal is None

    def report(self) -> dict[str, Any]:
        """The state as plain data; `linear` is null while no layer has asked."""
        served = "cublas" if self.proofs else None
        return {
            "linear": "triton" if self.refusal is not None else served,
            "refusal": self.refusal,
            "top_p_pinned": self.top_p_pinned,
            "top_p_refusal": self.top_p_refusal,
            "attention": self.attention,
            "attention_refusal": self.attention_refusal,
            "proofs": [{**asdict(shape), **asdict(proof)} for shape, proof in self.proofs.items()],
        }
