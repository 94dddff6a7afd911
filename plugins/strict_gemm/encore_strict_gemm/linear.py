"""The product itself, and its self-check on the card that will run it."""

from __future__ import annotations

import torch

from encore_strict_gemm.proof import Proof, Shape, prove

_BITS = {torch.bfloat16: torch.int16, torch.float16: torch.int16}
"""Element types served, and the integer type that compares their bits (-0.0 is not 0.0)."""

# Opaque to torch.compile on purpose: what runs in the compiled model is the very call that was proven, and
# the compiler can neither fuse it with its neighbours nor replace it by a kernel of its own.
_library = torch.library.Library("encore_strict_gemm", "DEF")
_library.define("linear(Tensor x, Tensor weight) -> Tensor")


def _linear(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    rows = x.reshape(-1, x.shape[-1]).contiguous()
    return torch.mm(rows, weight.t()).view(*x.shape[:-1], weight.shape[0])


def _linear_fake(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return x.new_empty((*x.shape[:-1], weight.shape[0]))


_library.impl("linear", _linear, "CompositeExplicitAutograd")
_library._register_fake("linear", _linear_fake)

linear = torch.ops.encore_strict_gemm.linear.default
"""`linear(x, weight)`: x @ weight.T, by whatever library torch calls for a plain matrix product."""


def shape_of(weight: torch.Tensor) -> Shape | None:
    """The weight's shape, or None when it is not something this plugin serves."""
    if weight.dim() != 2 or weight.dtype not in _BITS or not weight.is_contiguous():
        return None
    return Shape(weight.shape[0], weight.shape[1], str(weight.dtype).removeprefix("torch."))


def first_difference(a: torch.Tensor, b: torch.Tensor) -> int | None:
    """Index of the first row whose bits differ."""
    bits = _BITS[a.dtype]
    a, b = a.view(bits), b.view(bits)
    if torch.equal(a, b):
        return None
    return int((a != b).any(dim=-1).nonzero()[0])


def random_rows(count: int, weight: torch.Tensor, seed: int = 0) -> torch.Tensor:
    """`count` input rows for this weight. Random, so that any other order of additions shows in the bits."""
    generator = torch.Generator(device=weight.device).manual_seed(seed)
    rows = torch.randn(count, weight.shape[1], generator=generator, device=weight.device, dtype=torch.float32)
    return rows.to(weight.dtype)


def prove_weight(weight: torch.Tensor, limit: int) -> Proof:
    """Check this weight's product at row counts up to `limit`."""
    x = random_rows(limit, weight)
    with torch.inference_mode():
        return prove(lambda first, count: linear(x[first : first + count], weight), first_difference, limit)
