"""What the scripts beside this one share: jobs in, stages and results out, tensors compared bit by bit.

A script reads one JSON job from standard input and writes JSON lines to what was its standard output:
`{"stage": …, "done": …, "total": …}` while it works, `{"result": …}` or `{"refused": …}` at the end.
Libraries that print go to standard error instead.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TextIO

import torch  # type: ignore[import-not-found]  # only in the engine's environment
from safetensors import SafetensorError, safe_open  # type: ignore[import-not-found]
from safetensors.torch import save_file  # type: ignore[import-not-found]

FORMAT = "encore-tensors-1"


class RefusedError(Exception):
    """The job cannot be done; the text is one sentence for people."""


class Channel:
    """The line to Encore."""

    def __init__(self, out: TextIO) -> None:
        self._out = out

    def stage(self, name: str, done: int, total: int) -> None:
        self._send({"stage": name, "done": done, "total": total})

    def _send(self, message: dict[str, Any]) -> None:
        print(json.dumps(message, allow_nan=False), file=self._out, flush=True)


def serve(work: Callable[[dict[str, Any], Channel], dict[str, Any]]) -> None:
    """Run `work(job, channel)` on the job from standard input and report what it returns."""
    channel = Channel(os.fdopen(os.dup(1), "w", encoding="utf-8"))
    os.dup2(2, 1)
    try:
        channel._send({"result": work(json.load(sys.stdin), channel)})
    except RefusedError as refusal:
        channel._send({"refused": str(refusal)})


def compare(labels: Sequence[int], reference: torch.Tensor, other: torch.Tensor) -> dict[str, Any]:
    """Row by row: which are equal in every bit, and by how much the others differ at most.

    `labels` name the rows (positions, layers). A value that is not a number equals nothing, and is no
    distance either.
    """
    differences = (reference.double() - other.double()).abs().flatten(1)
    same = (reference == other).flatten(1)
    largest = torch.where(same, 0.0, differences).nan_to_num(nan=0.0, posinf=0.0).amax(1)
    different = [label for label, equal in zip(labels, same.all(1).tolist(), strict=True) if not equal]
    return {
        "rows": len(labels),
        "equal": len(labels) - len(different),
        "first_different": different[0] if different else None,
        "max_abs_diff": largest.max().item(),
        "max_abs_diffs": largest.tolist(),
        "digest": digest(other),
    }


def digest(tensor: torch.Tensor) -> str:
    """SHA-256 of the values' bytes in row-major order."""
    values = tensor.contiguous().view(torch.uint8) if tensor.dtype != torch.bfloat16 else tensor.float()
    return f"sha256:{hashlib.sha256(values.contiguous().view(torch.uint8).numpy().tobytes()).hexdigest()}"


def save(path: str, tensor: torch.Tensor, about: dict[str, Any]) -> None:
    """Keep `tensor` with what it is of; never over an existing file."""
    file = Path(path)
    if file.exists():
        raise RefusedError(f"{path} exists already; choose another name.")
    try:
        save_file({"values": tensor.contiguous()}, file, {"format": FORMAT, "about": json.dumps(about)})
    except (OSError, SafetensorError) as error:
        raise RefusedError(f"{path} cannot be written: {error}.") from None


def load(path: str, about: dict[str, Any]) -> torch.Tensor:
    """A kept tensor, if it is of the same thing."""
    try:
        with safe_open(path, "pt") as file:
            if (file.metadata() or {}).get("format") != FORMAT:
                raise RefusedError(f"{path} was not written by this command's --save.")
            kept = json.loads(file.metadata()["about"])
            values: torch.Tensor = file.get_tensor("values")
    except (OSError, SafetensorError):
        raise RefusedError(f"{path} is not a file of tensors that can be read.") from None
    for name, value in about.items():
        if kept.get(name) != value:
            raise RefusedError(f"{path} is of another {name}: {kept.get(name)}, here it is {value}.")
    return values
