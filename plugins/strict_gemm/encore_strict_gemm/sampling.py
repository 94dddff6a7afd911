"""Top-k and top-p by one kernel at every batch size.

vLLM 0.26 filters with a sort in PyTorch below 8 rows and with a Triton kernel from 8 rows on. The two keep
different tokens at the edge of the nucleus, so an answer sampled with top-p changed with the number of its
neighbours although its logits did not (seen with SmolLM2 on an H200). One kernel for all removes the switch.
"""

from __future__ import annotations

import importlib
from typing import Any

CALLERS = (
    "vllm.v1.sample.ops.topk_topp_sampler",
    "vllm.v1.worker.gpu.sample.states",
    "vllm.v1.worker.gpu.sample.sampler",
)
"""Modules that hold the name `apply_top_k_top_p`."""


def pin_top_p() -> None:
    """Replace the switch in every module that imported it."""
    triton_filter = importlib.import_module("vllm.v1.sample.ops.topk_topp_triton").apply_top_k_top_p_triton

    def apply_top_k_top_p(logits: Any, k: Any, p: Any) -> Any:
        if k is None and p is None:
            return logits
        return triton_filter(logits, k, p)

    for name in CALLERS:
        module = importlib.import_module(name)
        if hasattr(module, "apply_top_k_top_p"):
            vars(module)["apply_top_k_top_p"] = apply_top_k_top_p
