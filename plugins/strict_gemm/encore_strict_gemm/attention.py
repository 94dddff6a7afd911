"""Attention over a paged cache: split along the context, and yet the same for a query in any batch.

vLLM's batch-invariant mode walks a context in one piece, because its usual split follows the length of the
context and the number of requests. Here a context is cut at fixed positions, every `SEGMENT` tokens. What a
query gets from one segment, and the order in which segments are merged, depend on its position alone: one
program may walk all segments, or each may have a program of its own, and the bits are the same.

Every step that a compiler could round in two ways is spelled out (`fma`), so both kernels do the same.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from encore_strict_gemm.plain import ROWS

SEGMENT = 1024
"""Tokens between two cuts."""
TILE = 64
ENOUGH_PROGRAMS = 128
"""From this many programs on the card is busy without splitting contexts."""


@triton.jit
def _attend(
    out_ptr,
    part_acc_ptr,  # [sequence, query head, segment, head size]
    part_max_ptr,  # [sequence, query head, segment]
    part_sum_ptr,
    q_ptr,
    k_ptr,
    v_ptr,
    tables_ptr,
    lengths_ptr,
    starts_ptr,
    scale,  # of the logits, times log2(e)
    sequences,
    table_stride,
    q_stride,
    q_head_stride,
    out_stride,
    out_head_stride,
    k_page_stride,
    k_slot_stride,
    k_head_stride,
    v_page_stride,
    v_slot_stride,
    v_head_stride,
    heads: tl.constexpr,
    HEADS_PER_KV: tl.constexpr,
    QUERIES: tl.constexpr,
    ROWS: tl.constexpr,
    TILE: tl.constexpr,
    SEGMENT: tl.constexpr,
    PAGE: tl.constexpr,
    SIZE: tl.constexpr,
    SLOTS: tl.constexpr,
    WORKERS: tl.constexpr,
    WHOLE: tl.constexpr,
):
    block, kv_head, worker = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    low, high = 0, sequences
    while low < high:
        middle = (low + high) // 2
        if tl.load(starts_ptr + middle) // QUERIES + middle <= block:
            low = middle + 1
        else:
            high = middle
    sequence = low - 1
    start = tl.load(starts_ptr + sequence)
    count = tl.load(starts_ptr + sequence + 1) - start
    first = (block - (start // QUERIES + sequence)) * QUERIES
    if first >= count:
        return
    context = tl.load(lengths_ptr + sequence) - count

    row = tl.arange(0, ROWS)
    dims = tl.arange(0, SIZE)
    query = first + row // HEADS_PER_KV
    head = kv_head * HEADS_PER_KV + row % HEADS_PER_KV
    valid = (query < count) & (row < QUERIES * HEADS_PER_KV)
    position = context + query
    token = (start + query).to(tl.int64)
    q_at = token[:, None] * q_stride + head[:, None] * q_head_stride + dims[None, :]
    q = tl.load(q_ptr + q_at, mask=valid[:, None], other=0.0)
    last = context + tl.minimum(count, first + QUERIES) - 1

    m = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    acc = tl.zeros([ROWS, SIZE], tl.float32)
    for segment in range(worker, last // SEGMENT + 1, WORKERS):
        max_part = tl.full([ROWS], float("-inf"), tl.float32)
        sumax_part = tl.zeros([ROWS], tl.float32)
        acc_part = tl.zeros([ROWS, SIZE], tl.float32)
        begin = segment * SEGMENT
        for at in range(begin, tl.minimum(begin + SEGMENT, last + 1), TILE):
            slot = at + tl.arange(0, TILE)
            there = slot <= last
            page = tl.load(tables_ptr + sequence * table_stride + slot // PAGE, mask=there, other=0).to(
                tl.int64
            )
            k_at = page * k_page_stride + (slot % PAGE) * k_slot_stride + kv_head * k_head_stride
            v_at = page * v_page_stride + (slot % PAGE) * v_slot_stride + kv_head * v_head_stride
            k = tl.load(k_ptr + k_at[None, :] + dims[:, None], mask=there[None, :], other=0.0)
            v = tl.load(v_ptr + v_at[:, None] + dims[None, :], mask=there[:, None], other=0.0)
            s = tl.dot(q, k)
            s = tl.where(valid[:, None] & (slot[None, :] <= position[:, None]), s, float("-inf"))
            m_next = tl.maximum(max_part, tl.max(s, axis=1))
            m_safe = tl.where(m_next == float("-inf"), 0.0, m_next)
            p = tl.exp2((s - m_safe[:, None]) * scale)
            shrink = tl.exp2((max_part - m_safe) * scale)
            sumax_part = tl.fma(sumax_part, shrink, tl.sum(p, axis=1))
            acc_part = tl.dot(p.to(v.dtype), v, acc_part * shrink[:, None])
            max_part = m_next
        if WHOLE:
            m_both = tl.maximum(m, max_part)
            m_both = tl.where(m_both == float("-inf"), 0.0, m_both)
            left, right = tl.exp2((m - m_both) * scale), tl.exp2((max_part - m_both) * scale)
            total = tl.fma(total, left, sumax_part * right)
            acc = tl.fma(acc, tl.broadcast_to(left[:, None], (ROWS, SIZE)), acc_part * right[:, None])
            m = tl.maximum(m, max_part)
        else:
            cell = (sequence.to(tl.int64) * heads + head) * SLOTS + segment
            tl.store(part_max_ptr + cell, max_part, mask=valid)
            tl.store(part_sum_ptr + cell, sumax_part, mask=valid)
            tl.store(part_acc_ptr + cell[:, None] * SIZE + dims[None, :], acc_part, mask=valid[:, None])
    if WHOLE:
        out_at = token[:, None] * out_stride + head[:, None] * out_head_stride + dims[None, :]
        tl.store(out_ptr + out_at, (acc / total[:, None]).to(out_ptr.dtype.element_ty), mask=valid[:, None])


@triton.jit
def _merge_segments(
    out_ptr,
    part_acc_ptr,
    part_max_ptr,
    part_sum_ptr,
    lengths_ptr,
    starts_ptr,
    scale,
    out_stride,
    out_head_stride,
    heads: tl.constexpr,
    SEGMENT: tl.constexpr,
    SIZE: tl.constexpr,
    SLOTS: tl.constexpr,
):
    """One query token per sequence: the same additions, in the same order, as one program would have made."""
    sequence, head = tl.program_id(0), tl.program_id(1)
    start = tl.load(starts_ptr + sequence)
    if tl.load(starts_ptr + sequence + 1) == start:
        return
    dims = tl.arange(0, SIZE)
    segments = (tl.load(lengths_ptr + sequence) - 1) // SEGMENT + 1
    base = (sequence.to(tl.int64) * heads + head) * SLOTS
    m = tl.full([1], float("-inf"), tl.float32)
    total = tl.zeros([1], tl.float32)
    acc = tl.zeros([SIZE], tl.float32)
    one = tl.arange(0, 1)
    for segment in range(0, segments):
        max_part = tl.load(part_max_ptr + base + segment + one)
        sumax_part = tl.load(part_sum_ptr + base + segment + one)
        acc_part = tl.load(part_acc_ptr + (base + segment) * SIZE + dims)
        m_both = tl.maximum(m, max_part)
        m_both = tl.where(m_both == float("-inf"), 0.0, m_both)
        left, right = tl.exp2((m - m_both) * scale), tl.exp2((max_part - m_both) * scale)
        total = tl.fma(total, left, sumax_part * right)
        acc = tl.fma(acc, tl.broadcast_to(left, (SIZE,)), acc_part * right)
        m = tl.maximum(m, max_part)
    out_at = start.to(tl.int64) * out_stride + head * out_head_stride + dims
    tl.store(out_ptr + out_at, (acc / total).to(out_ptr.dtype.element_ty))


_partials: dict[tuple[Any, ...], tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = {}
"""Scratch for split contexts, by device and shape; kept, because captured CUDA graphs write to it."""


def attend(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    starts: torch.Tensor,
    lengths: torch.Tensor,
    table: torch.Tensor,
    scale: float,
    longest_query: int,
    split: bool | None = None,
) -> None:
    """Causal attention of `q` [token, head, size] over pages `k`, `v` [page, slot, KV head, size] into `out`.

    `split` is a matter of speed alone and chosen here when None.
    """
    sequences, heads, kv_heads, size, page = lengths.shape[0], q.shape[1], k.shape[2], q.shape[2], k.shape[1]
    per_kv = heads // kv_heads
    queries = ROWS // per_kv
    slots = -(-table.shape[1] * page // SEGMENT)
    if split is None:
        split = longest_query == 1 and sequences * kv_heads < ENOUGH_PROGRAMS and slots > 1
    parts: tuple[Any, ...] = (None, None, None)
    workers = 1
    if split:
        workers = min(slots, 32)
        rows = max(sequences, ENOUGH_PROGRAMS // kv_heads)
        key = (q.device, rows, heads, slots, size)
        if key not in _partials:
            _partials[key] = (
                torch.empty((rows, heads, slots, size), dtype=torch.float32, device=q.device),
                torch.empty((rows, heads, slots), dtype=torch.float32, device=q.device),
                torch.empty((rows, heads, slots), dtype=torch.float32, device=q.device),
            )
        parts = _partials[key]
    scale_log2 = scale * 1.4426950408889634
    _attend[(q.shape[0] // queries + sequences, kv_heads, workers)](
        out,
        *parts,
        q,
        k,
        v,
        table,
        lengths,
        starts,
        scale_log2,
        sequences,
        table.stride(0),
        q.stride(0),
        q.stride(1),
        out.stride(0),
        out.stride(1),
        k.stride(0),
        k.stride(1),
        k.stride(2),
        v.stride(0),
        v.stride(1),
        v.stride(2),
        heads=heads,
        HEADS_PER_KV=per_kv,
        QUERIES=queries,
        ROWS=ROWS,
        TILE=TILE,
        SEGMENT=SEGMENT,
        PAGE=page,
        SIZE=size,
        SLOTS=slots,
        WORKERS=workers,
        WHOLE=not split,
        num_warps=4,
        num_stages=3,
    )
    if split:
        _merge_segments[(sequences, heads)](
            out,
            *parts,
            lengths,
            starts,
            scale_log2,
            out.stride(0),
            out.stride(1),
            heads=heads,
            SEGMENT=SEGMENT,
            SIZE=size,
            SLOTS=slots,
            num_warps=1,
        )


PROOF_LENGTHS = (1, 17, 63, 64, 65, 640, 1023, 1024, 1025, 1500, 2048, 2049, 2600, 4090)
"""Contexts around the edges of tiles and segments."""


def prove_attention(heads: int, kv_heads: int, size: int, page: int, dtype: Any, device: Any) -> str | None:
    """Run both ways of walking a context on this card; returns where they differ, or None.

    Split against whole, each context alone against all together, decoding against the prefill that computes
    the same query among its neighbours, and one context against plain arithmetic.
    """
    lengths = torch.tensor(PROOF_LENGTHS, dtype=torch.int32, device=device)
    width = -(-max(PROOF_LENGTHS) // page)
    pages = len(PROOF_LENGTHS) * width
    generator = torch.Generator(device=device).manual_seed(0)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, device=device).to(dtype)

    k, v = normal(pages, page, kv_heads, size), normal(pages, page, kv_heads, size)
    table = torch.randperm(pages, generator=generator, device=device).int().view(len(PROOF_LENGTHS), width)
    scale = size**-0.5

    def run(q: torch.Tensor, counts: list[int], rows: torch.Tensor, lens: torch.Tensor, split: bool) -> Any:
        starts = torch.tensor([0, *counts], device=device).cumsum(0).int()
        out = torch.empty_like(q)
        attend(q, k, v, out, starts, lens, table[rows], scale, max(counts), split)
        return out

    everyone = torch.arange(len(PROOF_LENGTHS), device=device)
    ones = [1] * len(PROOF_LENGTHS)
    q = normal(len(PROOF_LENGTHS), heads, size)
    whole = run(q, ones, everyone, lengths, False)
    if not torch.equal(whole, run(q, ones, everyone, lengths, True)):
        return "a context split over programs differs from the same context in one"
    for index in range(len(PROOF_LENGTHS)):
        part = slice(index, index + 1)
        if not torch.equal(run(q[part], [1], everyone[part], lengths[part], True), whole[part]):
            return f"a context of {PROOF_LENGTHS[index]} tokens alone differs from itself in company"
    longest = len(PROOF_LENGTHS) - 1
    last, count = everyone[longest:], 2300
    prompt = normal(count, heads, size)
    prefill = run(prompt, [count], last, lengths[longest:], False)
    joined = run(torch.cat([q[:longest], prompt]), [*ones[:longest], count], everyone, lengths, False)
    if not torch.equal(joined, torch.cat([whole[:longest], prefill])):
        return "a prefill that joins decoding requests changes a result"
    for row in (0, 1, 257, 258, 259, 282, 283, 800, 1281, 1282, 1283, 2000, count - 1):
        context = lengths[longest:] - (count - 1 - row)
        if not torch.equal(
            run(prompt[row : row + 1], [1], last, context.int(), True), prefill[row : row + 1]
        ):
            return f"token {row} of a prefill differs from the same token decoded"
    keys, values = (x[table[longest].long()].flatten(0, 1)[: PROOF_LENGTHS[-1]].float() for x in (k, v))
    group = heads // kv_heads
    weights = torch.softmax(
        torch.einsum("hd,thd->ht", q[longest].float(), keys.repeat_interleave(group, 1)) * scale, dim=-1
    )
    exact = torch.einsum("ht,thd->hd", weights, values.repeat_interleave(group, 1))
    error = float((whole[longest].float() - exact).abs().max())
    return None if error < 0.01 else f"results are off by {error:.3g}"
