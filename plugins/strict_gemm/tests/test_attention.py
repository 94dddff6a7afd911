"""The kernels' logic under Triton's interpreter, which needs Triton and torch and no GPU."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(
    find_spec("triton") is None or find_spec("torch") is None, reason="needs torch and Triton"
)

SCRIPT = """
import json, sys
import torch
import encore_strict_gemm.attention as subject

subject.SEGMENT, subject.TILE = 64, 16
HEADS, KV_HEADS, SIZE, PAGE, WIDTH = 6, 2, 16, 16, 20
generator = torch.Generator().manual_seed(1)


def normal(*shape):
    return torch.randn(*shape, generator=generator).half()  # the interpreter has no bfloat16 products


def run(counts, lengths, split):
    generator.manual_seed(1)
    pages = len(lengths) * WIDTH
    k, v = normal(pages, PAGE, KV_HEADS, SIZE), normal(pages, PAGE, KV_HEADS, SIZE)
    table = torch.randperm(pages, generator=generator).int().view(len(lengths), WIDTH)
    q = normal(sum(counts), HEADS, SIZE)
    out, exact, token = torch.zeros_like(q), torch.zeros(q.shape), 0
    starts = torch.tensor([0, *counts]).cumsum(0).int()
    lens = torch.tensor(lengths).int()
    subject.attend(q, k, v, out, starts, lens, table, SIZE**-0.5, max(counts), split)
    for row, (count, length) in enumerate(zip(counts, lengths)):
        keys, values = (x[table[row].long()].flatten(0, 1).float().repeat_interleave(3, 1) for x in (k, v))
        for last in range(length - count + 1, length + 1):
            weights = torch.einsum("hd,thd->ht", q[token].float(), keys[:last]) * SIZE**-0.5
            exact[token] = torch.einsum("ht,thd->hd", weights.softmax(-1), values[:last])
            token += 1
    return out, float((out.float() - exact).abs().max())


lengths = [150, 1, 64, 65, 300]
whole, whole_error = run([1] * 5, lengths, False)
split, _ = run([1] * 5, lengths, True)
_, mixed_error = run([7, 1, 64, 30, 1], lengths, False)
print(json.dumps({"same": torch.equal(whole, split), "errors": [whole_error, mixed_error]}))
"""


def test_a_context_in_pieces_is_the_same_context_and_the_right_one() -> None:
    root = str(Path(__file__).parents[1])
    paths = [root, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    environ = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": os.pathsep.join(paths)}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], env=environ, capture_output=True, text=True, check=True
    )
    found = json.loads(done.stdout)
    assert found["same"]
    assert max(found["errors"]) < 0.002
