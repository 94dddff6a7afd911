"""Which of vLLM's attention layers `attend` serves. Nothing here imports torch, so any test can run it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

ROWS = 16
"""Query rows of one program, the least a tensor core takes: ROWS // (heads per KV head) queries."""

ABSENT = ("alibi_slopes", "output_scale", "qq_bias", "sinks", "mm_prefix_range", "rswa_window", "q_descale")
"""Arguments of vLLM's `unified_attention` that must be None."""


def is_plain(q: Any, k: Any, given: Mapping[str, Any]) -> bool:
    """Whether a layer is causal attention without anything else that `attend` does not know."""
    capacity = given["block_table"].shape[1] * k.shape[1]
    window = given["window_size"][0]
    return (
        given["causal"] is True
        and (window < 0 or window + 1 >= capacity)
        and not given["softcap"]
        and all(given.get(name) is None for name in ABSENT)
        and not given.get("kv_quant_mode")
        and k.dtype == q.dtype
        and q.shape[2] >= 16
        and q.shape[2].bit_count() == 1
        and q.shape[1] // k.shape[2] <= ROWS
    )


def serving(
    original: Callable[..., Any], attend: Callable[..., None], tell: Callable[[bool], None]
) -> Callable[..., Any]:
    """vLLM's `unified_attention`, served by `attend` where a layer is plain.

    What decides is the same for every call of a layer, never the batch. `tell` hears at the first call
    whether layers are served, and again when one turns out not to be.
    """
    told: list[bool] = []

    def unified_attention(*, q: Any, k: Any, v: Any, out: Any, **given: Any) -> Any:
        plain = is_plain(q, k, given)
        if not told or (told[0] and not plain):
            told[:] = [plain]
            tell(plain)
        if not plain:
            return original(q=q, k=k, v=v, out=out, **given)
        attend(
            q,
            k,
            v,
            out,
            given["cu_seqlens_q"],
            given["seqused_k"],
            given["block_table"],
            given["softmax_scale"],
            given["max_seqlen_q"],
        )
        return None

    return unified_attention
