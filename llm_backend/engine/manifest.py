"""The launch manifest: what is known about an engine that Encore started, written once per start.

`launch.py` writes it when the weights are loaded and before the engine is declared ready; the app reads
it and joins it with what the API tells. An engine that Encore did not start has none.
"""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

from pydantic import ValidationError

from llm_backend.receipt import EngineFingerprint, Frozen


class Manifest(Frozen):
    """One start of one engine."""

    url: str
    """Base address without `/v1`."""
    pid: int | None
    start_id: str
    """UUID of this start: two starts of the same engine differ in nothing else."""
    started_at: datetime
    log_file: str
    fingerprint: EngineFingerprint


def read_manifest(path: Path) -> Manifest | None:
    """The manifest, or None when there is none or it is not one of ours."""
    try:
        return Manifest.model_validate_json(path.read_bytes())
    except (OSError, ValidationError):
        return None


def write_manifest(path: Path, manifest: Manifest) -> None:
    """Replace the manifest in one step, so that a reader never sees half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_suffix(".tmp")
    draft.write_text(manifest.model_dump_json(indent=2) + "\n", encoding="utf-8")
    draft.replace(path)
