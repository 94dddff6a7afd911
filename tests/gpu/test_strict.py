"""The strict profile on a real GPU, and the control that shows these tests can fail."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

MODEL = os.environ.get("ENCORE_GPU_MODEL", "")
KV_GIB = os.environ.get("ENCORE_GPU_KV_GIB", "")
"""GiB of KV cache for each engine where the card is shared; otherwise half the card is claimed."""
STRICT = {
    "VLLM_BATCH_INVARIANT": "1",
    "ENCORE_STRICT_GEMM": "cublas",
    "ENCORE_STRICT_ATTENTION": "segments",
}

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(shutil.which("nvidia-smi") is None, reason="no NVIDIA GPU"),
    pytest.mark.skipif(find_spec("vllm") is None, reason="the CUDA engine is not installed here"),
]
needs_model = pytest.mark.skipif(not MODEL, reason="ENCORE_GPU_MODEL names no model")


def run(module: list[str], out: Path, variables: dict[str, str]) -> dict[str, Any]:
    clean = {k: v for k, v in os.environ.items() if k not in STRICT}
    environment = {**clean, "VLLM_USE_FLASHINFER_SAMPLER": "0", **variables}
    subprocess.run([sys.executable, *module, "--out", str(out)], env=environment, check=True)
    result: dict[str, Any] = json.loads(out.read_text())
    return result


def linear_rows(out: Path, variables: dict[str, str]) -> dict[str, Any]:
    module = ["-m", "encore_strict_gemm.measure", "--model", "phi-4-mini", "--rows", "1024", "--no-times"]
    shapes: dict[str, Any] = run(module, out, variables)["shapes"]
    return shapes


def cells(out: Path, profile: str, variables: dict[str, str], *more: str) -> dict[str, Any]:
    script = str(Path(__file__).with_name("cells.py"))
    shared = ["--kv-cache-gib", KV_GIB, "--utilization", "0.05"] if KV_GIB else []
    return run([script, "--model", MODEL, "--profile", profile, *shared, *more], out, variables)


def test_every_phi_shape_is_row_count_invariant_under_batch_invariant_settings(tmp_path: Path) -> None:
    shapes = linear_rows(tmp_path / "rows.json", {"VLLM_BATCH_INVARIANT": "1"})
    assert {name: shape["row_counts_that_fork"] for name, shape in shapes.items()} == dict.fromkeys(shapes, 0)


def test_attention_from_segments_is_the_same_whole_split_and_in_company(tmp_path: Path) -> None:
    module = ["-m", "encore_strict_gemm.measure_attention"]
    models = run(module, tmp_path / "attention.json", {"VLLM_BATCH_INVARIANT": "1"})["models"]
    assert {name: model["fork"] for name, model in models.items()} == dict.fromkeys(models)


def test_control_cublas_defaults_fork(tmp_path: Path) -> None:
    shapes = linear_rows(tmp_path / "rows.json", {})
    assert shapes["phi-4-mini down_proj"]["row_counts_that_fork"] > 0


@needs_model
def test_strict_answers_are_identical_in_every_company(tmp_path: Path) -> None:
    """RC-02"""
    variables = {**STRICT, "ENCORE_STRICT_GEMM_REPORT": str(tmp_path / "report.json")}
    sampling = ("--sampling", "greedy,seeded,seeded top-p", "--check-tokens", "512")
    result = cells(tmp_path / "strict.json", "strict", variables, "--attention", "TRITON_ATTN", *sampling)
    found = result["linear"]
    assert (found["linear"], found["top_p_pinned"], found["attention"]) == ("cublas", True, "segments")
    assert [cell for cell in result["cells"] if cell["same_bits"] != cell["runs"]] == []
    check = result["prefill_against_decode"]
    assert check["equal_bits_alone"] == check["equal_bits_among_31"] == check["tokens"]


@needs_model
def test_control_the_fast_profile_forks(tmp_path: Path) -> None:
    """RC-02: the control."""
    result = cells(tmp_path / "fast.json", "fast", {}, "--sampling", "greedy", "--plan", "alone:1,32:2")
    company = next(cell for cell in result["cells"] if cell["company"] == "32")
    assert company["same_bits"] < company["runs"]
