from types import SimpleNamespace
from typing import Any

import pytest

from encore_strict_gemm.plain import is_plain, serving

GIVEN = {
    "cu_seqlens_q": "starts",
    "seqused_k": "lengths",
    "block_table": SimpleNamespace(shape=(4, 256)),
    "softmax_scale": 0.1,
    "max_seqlen_q": 1,
    "max_seqlen_k": 4096,
    "causal": True,
    "window_size": (-1, -1),
    "softcap": 0,
    "sinks": None,
    "k_descale": "always given",
}


def tensors(heads: int = 24, kv_heads: int = 8, size: int = 128, kept_as: str = "bfloat16") -> dict[str, Any]:
    """Query and paged keys with pages of 16 tokens."""
    return {
        "q": SimpleNamespace(shape=(4, heads, size), dtype="bfloat16"),
        "k": SimpleNamespace(shape=(99, 16, kv_heads, size), dtype=kept_as),
    }


def test_plain_causal_attention_is_served() -> None:
    assert is_plain(**tensors(), given=GIVEN)


@pytest.mark.parametrize(
    "more",
    [
        {"causal": False},
        {"causal": object()},
        {"window_size": (1023, 0)},
        {"softcap": 30.0},
        {"sinks": object()},
        {"alibi_slopes": object()},
        {"qq_bias": object()},
        {"output_scale": object()},
        {"mm_prefix_range": object()},
        {"rswa_window": 128},
        {"q_descale": object()},
        {"kv_quant_mode": 1},
    ],
)
def test_whatever_the_kernel_does_not_know_is_left_to_vllm(more: dict[str, Any]) -> None:
    assert not is_plain(**tensors(), given={**GIVEN, **more})


@pytest.mark.parametrize(
    "shape", [{"size": 96}, {"size": 8}, {"heads": 64, "kv_heads": 2}, {"kept_as": "fp8"}]
)
def test_shapes_it_was_not_made_for_are_left_to_vllm(shape: dict[str, Any]) -> None:
    assert not is_plain(**tensors(**shape), given=GIVEN)


def test_a_window_no_context_can_outgrow_is_none() -> None:
    """Phi-4-mini's config has a window of 262,144 tokens."""
    assert is_plain(**tensors(), given={**GIVEN, "window_size": (4095, 0)})
    assert not is_plain(**tensors(), given={**GIVEN, "window_size": (4094, 0)})


def test_what_is_served_is_told_once_and_corrected_when_a_layer_is_not() -> None:
    told: list[bool] = []
    calls: list[str] = []
    attention = serving(
        lambda **given: calls.append("vllm"), lambda *given: calls.append("segments"), told.append
    )
    for causal in (True, True, False, False, True):
        attention(**tensors(), v=None, out=None, **{**GIVEN, "causal": causal})
    assert calls == ["segments", "segments", "vllm", "vllm", "segments"]
    assert told == [True, False]
