"""Top-k and top-p by one kernel at every batch size.

vLLM 0.26 filters with a sort in PyTorch below 8 rows and with a Triton kernel from 8 rows on. The two keep
different tokens at the edge of the nucleus, so an answer sampled with top-p changed with the number of its
neighbours although its logits did not (seen with SmolLM2 on an H200). One kernel for all removes the switch.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from typing import Any

CALLERS = (
    "vllm.v1.sample.ops.topk_topp_sampler",
    "vllm.v1.worker.gpu.sample.states",
    "vllm.v1.worker.gpu.sample.sampler",
)
"""Modules that hold the name `apply_top_k_top_p`."""


PROOF_ROWS = 64
"""Rows whose kept tokens are compared; the switch of vLLM 0.26 lies at 8."""


def pin_top_p() -> Callable[[Any, Any, Any], Any]:
    """Replace the switch in every module that imported it; returns what they call now."""
    triton_filter = importlib.import_module("vllm.v1.sample.ops.topk_topp_triton").apply_top_k_top_p_triton

    def apply_top_k_top_p(logits: Any, k: Any, p: Any) -> Any:
        if k is None and p is None:
            return logits
        return triton_filter(logits, k, p)

    pinned = 0
    for name in CALLERS:
        module = importlib.import_module(name)
        if hasattr(module, "apply_top_k_top_p"):
            vars(module)["apply_top_k_top_p"] = apply_top_k_top_p
            pinned += 1
    if not pinned:
        raise AttributeError("this vLLM has no apply_top_k_top_p where 0.26 has it")
    return apply_top_k_top_p


def companies(rows: int) -> Iterator[tuple[int, int]]:
    """(first row, row count) to filter together: rows alone, sizes from 2 on, some at odd places."""
    yield from ((row, 1) for row in range(rows))
    yield from ((0, count) for count in range(2, rows))
    yield from ((first, count) for first in (1, 5, 31) for count in (3, 7, 8, 9, 17) if first + count <= rows)


def fork_of_top_p(
    kept: Callable[[int, int], Any], same: Callable[[Any, Any], bool], rows: int = PROOF_ROWS
) -> str | None:
    """The first company in which a row keeps other tokens than among all rows, in words; None: there is none.

    `kept(first, count)` filters rows `first` to `first + count - 1` in one call.
    """
    together = kept(0, rows)
    for first, count in companies(rows):
        if not same(kept(first, count), together[first : first + count]):
            return f"rows {first} to {first + count - 1} keep other tokens than among {rows} rows"
    return None


def pin_and_prove(vocabulary: int, device: Any) -> str | None:
    """Pin the filter, then run it on this card; returns why it is not the same in any company, or None."""
    import torch

    apply_top_k_top_p = pin_top_p()
    generator = torch.Generator(device=device).manual_seed(0)
    logits = torch.randn(PROOF_ROWS, vocabulary, generator=generator, device=device) * 3.0
    p = torch.full((PROOF_ROWS,), 0.95, device=device)

    def kept(first: int, count: int) -> Any:
        # The kernel may write where it reads.
        rows = logits[first : first + count].clone()
        return apply_top_k_top_p(rows, None, p[first : first + count])

    with torch.inference_mode():
        return fork_of_top_p(kept, torch.equal)
