"""`encore logits` and `encore attention` on the embedded model, against a receipt recorded on it.

Each has its negative control: a kept file in which one bit was turned must be found.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.engine

ROOT = Path(__file__).resolve().parents[2]

RECEIPT = Path(__file__).parent / "receipts" / "235x478.json"
"""156 tokens, greedy, recorded with the `fast` profile of vLLM 0.32.0 on a CPU."""

DEVELOPERS_SETTINGS = dict(os.environ)
"""Before they are hidden from tests: an engine's interpreter and models may lie elsewhere."""


def encore(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environ = DEVELOPERS_SETTINGS | {
        "ENCORE_ENGINE": "cpu",
        "ENCORE_PROFILE": "fast",
        "ENCORE_RUN_DIR": str(folder / "run"),
        "ENCORE_DATA_DIR": str(folder / "data"),
    }
    command = [sys.executable, "-m", "llm_backend", *arguments]
    return subprocess.run(command, env=environ, capture_output=True, text=True, check=False)


def test_the_guides_example_as_the_docs_print_it() -> None:
    interpreter = DEVELOPERS_SETTINGS.get("ENCORE_ENGINE_PYTHON", ROOT / ".venv-engine" / "bin" / "python")
    models = Path(DEVELOPERS_SETTINGS.get("ENCORE_MODELS_DIR", ROOT / "models"))
    cpu = {"TORCH_COMPILE_DISABLE": "1", "VLLM_CPU_KVCACHE_SPACE": "2", "HF_HUB_OFFLINE": "1"}

    done = subprocess.run(
        [interpreter, ROOT / "docs" / "guide_example.py", models / "SmolLM2-135M-Instruct"],
        env=DEVELOPERS_SETTINGS | cpu,
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert "3 of 3 identical in tokens and log-probabilities" in done.stderr
    assert "勾股定理" in done.stdout


def turn_last_bit(file: Path) -> None:
    """The last value of the last row changes by its smallest step."""
    content = bytearray(file.read_bytes())
    content[-4 if file.name == "logits.st" else -2] ^= 1
    file.write_bytes(content)


@pytest.mark.parametrize("kind", ["logits", "attention"])
def test_passes_agree_and_one_turned_bit_is_found(kind: str, tmp_path: Path) -> None:
    kept = tmp_path / f"{kind}.st"

    first = encore(tmp_path, kind, str(RECEIPT), "--last", "4", "--save", str(kept), "--format", "json")
    turn_last_bit(kept)
    second = encore(tmp_path, kind, str(RECEIPT), "--last", "4", "--against", str(kept), "--format", "json")

    assert (first.returncode, first.stderr) == (0, "")
    report = json.loads(first.stdout)["report"]
    assert all(found["equal"] == found["rows"] for found in report["passes"].values())
    assert second.returncode == 1, second.stderr
    passes = json.loads(second.stdout)["report"]["passes"]
    assert passes["kept"]["equal"] == passes["kept"]["rows"] - 1
    assert 0 < passes["kept"]["max_abs_diff"] < 0.1
    if kind == "logits":
        tokens = json.loads(RECEIPT.read_text())["receipt"]["completion"]["tokens"]
        assert [at["token"] for at in report["positions"]] == [token["id"] for token in tokens[-4:]]
        assert [at["rank"] for at in report["positions"]] == [1, 1, 1, 1]
        assert report["vocabulary"] == 49_152
        near = [abs(at["logprob"] - at["recorded_logprob"]) for at in report["positions"]]
        assert max(near) < 0.2  # what prefill and decoding differ by on a CPU, measured
    else:
        assert (len(report["digests"]), report["heads"]) == (30, 9)
        assert len(set(report["digests"])) == 30


def test_a_file_of_something_else_is_refused_in_one_sentence(tmp_path: Path) -> None:
    other = tmp_path / "notes.txt"
    other.write_text("no tensors here")

    refused = encore(tmp_path, "attention", str(RECEIPT), "--against", str(other))

    assert refused.returncode == 2
    assert refused.stderr == f"{other} is not a file of tensors that can be read.\n"
    assert refused.stdout == ""
