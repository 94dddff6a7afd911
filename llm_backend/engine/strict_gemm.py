"""The strict profile's plugin, seen from outside: what it found, and what the engine may be called.

The plugin (plugins/strict_gemm) runs in the engine and checks it at every start. Without its word an engine
was launched with strict flags and no more, and its fingerprint does not say `strict`.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from llm_backend.engine.profiles import Row
from llm_backend.receipt import EngineFingerprint

SWITCH = "ENCORE_STRICT_GEMM"
SWITCHES = (SWITCH, "ENCORE_STRICT_ATTENTION")
REPORT = "ENCORE_STRICT_GEMM_REPORT"
"""Variables the plugin reads: what to do, and where to write what it found."""

UNPROVEN = "strict-unproven"
"""Recorded instead of `strict` when an engine has its flags but did not show what they promise."""

DISTRIBUTION = "encore-strict-gemm"

MISSING = (
    f"The engine's environment has no {DISTRIBUTION}: strict runs without it, 1.3 to 3.7 times slower, and "
    "answers sampled with top-p are not reproducible under load. Install it there with: "
    "pip install ./plugins/strict_gemm."
)


class SelfCheck(BaseModel):
    """What the plugin found on this card at this start."""

    model_config = ConfigDict(frozen=True)  # the report also lists every proof, which nobody reads here

    linear: Literal["cublas", "triton"] | None = None
    """None: the model has no layer the plugin serves."""
    top_p_pinned: bool | None = None
    attention: Literal["segments", "vllm"] | None = None
    """None: no request has run yet, or the plugin was not asked to serve attention."""


def asked_for(table: Iterable[Row]) -> bool:
    """Whether a launch with this table relies on the plugin."""
    return any(row.name == SWITCH for row in table)


def is_installed(interpreter: Path) -> bool:
    """Whether the engine's environment has the plugin, so that vLLM will load it."""
    look = f"import importlib.metadata as m; m.version({DISTRIBUTION!r})"
    # -I keeps this folder and PYTHONPATH out of the search, as the engine's start does.
    return subprocess.run([interpreter, "-I", "-c", look], capture_output=True, check=False).returncode == 0


def read_self_check(path: Path) -> SelfCheck | None:
    """The plugin's report; None when it wrote none, so that nothing is known."""
    try:
        return SelfCheck.model_validate_json(path.read_bytes())
    except (OSError, ValidationError):
        return None


def proven_profile(profile: str, table: Iterable[Row], found: SelfCheck | None) -> str:
    """The profile's name as an engine has earned it.

    Linear layers and attention that fell back to vLLM's own batch-invariant kernels keep the name: they are
    slower, not less strict. A top-p filter that depends on company, or a check that never ran, does not.
    """
    if asked_for(table) and not (found and found.top_p_pinned):
        return UNPROVEN
    return profile


def shortcomings(engine: EngineFingerprint) -> tuple[str, ...]:
    """What a strict launch did not get, one sentence each; empty for every other engine."""
    if SWITCH not in engine.env:
        return ()
    if engine.linear_kernel is None and engine.top_p_pinned is None:
        return (
            "The strict profile's self-check left no word: its plugin is not installed in the engine's "
            "environment, or could not load. Top-p is not reproducible under load; the rest is slower.",
        )
    found = []
    if engine.linear_kernel == "triton":
        found.append(
            "The self-check refused cuBLAS on this card: linear layers stay on vLLM's Triton kernel, as "
            "strict and slower. The engine's log says which row gave it away."
        )
    if engine.attention_kernel == "vllm":
        found.append(
            "Attention stays on vLLM's kernel, as strict and slower at long contexts: the self-check or the "
            "model does not allow cutting contexts into segments. The engine's log says why."
        )
    if not engine.top_p_pinned:
        found.append(
            "The self-check could not pin top-p to one filter: answers sampled with top-p are not "
            "reproducible under load. The engine's log says why."
        )
    return tuple(found)
