"""What a starting engine is doing, read from its log.

Pure functions over lines, so the terminal, the chat's loading card and the tests see the same thing.
The log only describes; whether the engine is ready is decided by asking it (`launch.py`).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Literal

PhaseKey = Literal["starting", "loading_weights", "compiling", "warming_up", "ready", "failed"]

_MARKERS: tuple[tuple[str, PhaseKey], ...] = (
    ("Starting to load model", "loading_weights"),
    ("Loading safetensors checkpoint shards", "loading_weights"),
    ("Dynamo bytecode transform", "compiling"),
    ("torch.compile took", "warming_up"),
    ("Loading weights took", "warming_up"),
    ("KV cache size", "warming_up"),
    ("Capturing CUDA graphs", "warming_up"),
    ("Application startup complete", "ready"),
    ("EngineDeadError", "failed"),
    ("Engine core initialization failed", "failed"),
    ("EngineCore failed to start", "failed"),
    ("Engine core proc died unexpectedly", "failed"),
)
"""Substrings of vLLM 0.26 and 0.32 log lines, and the phase that begins with each."""

_TIMESTAMP = re.compile(r"\b(\d\d-\d\d \d\d:\d\d:\d\d)\b")
_TAIL_BLOCK = 64 * 1024


@dataclass(frozen=True, slots=True)
class Phase:
    """Where a start has got to."""

    key: PhaseKey
    seconds: float | None
    """Seconds the log itself spans since this phase began; None where its lines carry no time."""
    last_line: str


def phase_of(lines: Iterable[str]) -> Phase:
    """The phase that the last telling line began; "failed" stays, whatever is printed after it."""
    key: PhaseKey = "starting"
    began: datetime | None = None
    latest: datetime | None = None
    last_line = ""
    for line in lines:
        if not line.strip():
            continue
        last_line = line.strip()
        latest = _time_of(line) or latest
        began = began or latest
        if (entered := _entered(line)) and entered != key and key != "failed":
            key, began = entered, latest
    seconds = (latest - began).total_seconds() if latest and began else None
    return Phase(key, seconds, last_line)


def tail(path: Path, n: int) -> list[str]:
    """The last `n` lines of a text file, at most 64 KiB of it; empty when it cannot be read.

    Carriage returns end lines too: progress bars redraw with them and would otherwise be one line.
    """
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _TAIL_BLOCK))
            text = file.read().decode(errors="replace")
    except OSError:
        return []
    lines = text.replace("\r", "\n").split("\n")
    return [line for line in lines if line.strip()][-n:]


def _entered(line: str) -> PhaseKey | None:
    return next((key for marker, key in _MARKERS if marker in line), None)


def _time_of(line: str) -> datetime | None:
    match = _TIMESTAMP.search(line)
    # vLLM's log has no year; a leap year keeps 29 February readable, and only differences are used.
    return datetime.strptime(f"2000-{match[1]}", "%Y-%m-%d %H:%M:%S") if match else None
