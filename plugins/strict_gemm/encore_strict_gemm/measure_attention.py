"""Measure one card: is attention from segments the same in any company, and what does it cost beside vLLM's.

VLLM_BATCH_INVARIANT=1 python -m encore_strict_gemm.measure_attention --out attention.json
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from encore_strict_gemm.attention import attend, prove_attention
from encore_strict_gemm.measure import environment

HEADS = {"phi-4-mini": (24, 8, 128), "smollm2-135m": (9, 3, 64)}
PAGE = 16
DECODING = ((1, 500), (1, 3500), (1, 12000), (1, 30000), (8, 3500), (32, 500), (32, 3500), (128, 500))
"""(requests, tokens of context each)."""
PREFILLS = ((1024, 1024), (4096, 4096), (2048, 16384))
"""(new tokens, context at the end)."""


def microseconds(call: Callable[[], Any]) -> float:
    """Median time of one call inside a CUDA graph of eight."""
    for _ in range(3):
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(8):
            call()
    samples: list[float] = []
    for _ in range(9):
        start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        graph.replay()
        stop.record()
        stop.synchronize()
        samples.append(start.elapsed_time(stop) * 1000 / 8)
    return round(statistics.median(samples), 1)


def compare(model: str, requests: int, new: int, context: int, capacity: int) -> dict[str, Any]:
    """One step: `requests` contexts of `context` tokens of which `new` are computed now."""
    from vllm.v1.attention.ops.triton_unified_attention import unified_attention

    heads, kv_heads, size = HEADS[model]
    width = -(-capacity // PAGE)
    used = -(-context // PAGE)
    pages = requests * used
    cache = torch.randn(pages, PAGE, kv_heads, 2 * size, device="cuda", dtype=torch.bfloat16)
    k, v = cache.split(size, dim=-1)
    table = torch.zeros(requests, width, dtype=torch.int32, device="cuda")
    table[:, :used] = torch.randperm(pages, device="cuda").int().view(requests, used)
    q = torch.randn(requests * new, heads, size, device="cuda", dtype=torch.bfloat16)
    starts = torch.arange(0, requests * new + 1, new, dtype=torch.int32, device="cuda")
    lengths = torch.full((requests,), context, dtype=torch.int32, device="cuda")
    ours, theirs = torch.empty_like(q), torch.empty_like(q)

    def vllm() -> None:
        unified_attention(
            q=q,
            k=k,
            v=v,
            out=theirs,
            cu_seqlens_q=starts,
            max_seqlen_q=new,
            seqused_k=lengths,
            max_seqlen_k=context,
            softmax_scale=size**-0.5,
            causal=True,
            window_size=(-1, -1),
            block_table=table,
            softcap=0,
            q_descale=None,
            k_descale=None,
            v_descale=None,
        )

    def segments() -> None:
        attend(q, k, v, ours, starts, lengths, table, size**-0.5, new)

    times = {"segments": microseconds(segments), "vllm": microseconds(vllm)}
    return {
        "requests": requests,
        "new_tokens": new,
        "context": context,
        "microseconds": times,
        "largest_difference": round(float((ours.float() - theirs.float()).abs().max()), 6),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--capacity", type=int, default=32768, help="tokens a request may have at most")
    options = parser.parse_args()
    result: dict[str, Any] = {"machine": environment(batch_invariant=True), "models": {}}
    with torch.inference_mode():
        for model, (heads, kv_heads, size) in HEADS.items():
            started = time.monotonic()
            fork = prove_attention(heads, kv_heads, size, PAGE, torch.bfloat16, torch.device("cuda"))
            entry: dict[str, Any] = {"fork": fork, "proof_seconds": round(time.monotonic() - started, 1)}
            print("OP", model, "fork:", fork, entry["proof_seconds"], "s", flush=True)
            entry["steps"] = []
            result["models"][model] = entry
            for requests, new, context in [(r, 1, c) for r, c in DECODING] + [(1, n, c) for n, c in PREFILLS]:
                step = compare(model, requests, new, context, options.capacity)
                entry["steps"].append(step)
                print("OP", model, requests, new, context, step["microseconds"], step["largest_difference"])
                options.out.write_text(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
