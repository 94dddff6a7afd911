"""A baseline: the answers of one acceptance run, kept in a file for a later day to be held against.

It holds whole receipts, so that a difference found later has a position, two tokens and a cause, and
each is verified against its own digest when it is read.
"""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError

from llm_backend.errors import EncoreError, ReceiptInvalid
from llm_backend.receipt import Frozen, Receipt

FORMAT: Literal[1] = 1


class BaselineCase(Frozen):
    """One recorded answer and its digest, as `Receipt.to_json` pairs them."""

    name: str
    digest: str
    receipt: Receipt


class Baseline(Frozen):
    """Recorded answers by case name."""

    format: Literal[1] = FORMAT
    suite: str
    recorded_at: datetime
    """UTC."""
    cases: tuple[BaselineCase, ...]

    def find(self, name: str) -> Receipt | None:
        return next((case.receipt for case in self.cases if case.name == name), None)


def save_baseline(path: Path, suite: str, recorded_at: datetime, receipts: dict[str, Receipt]) -> None:
    """Write a new file; raises `EncoreError` when there is one already: a baseline is evidence."""
    cases = tuple(BaselineCase(name=n, digest=r.digest, receipt=r) for n, r in receipts.items())
    document: Any = Baseline(suite=suite, recorded_at=recorded_at, cases=cases).model_dump(mode="json")
    try:
        with path.open("x", encoding="utf-8") as file:
            json.dump(document, file, ensure_ascii=False, allow_nan=False)
    except FileExistsError:
        raise EncoreError(
            f"{path} exists already.", "A baseline is never overwritten; name another."
        ) from None
    except OSError as error:
        raise EncoreError(f"{path} cannot be written: {error.strerror}.") from None


def read_baseline(path: Path) -> Baseline:
    """Raises `ReceiptInvalid` naming what is wrong with the file, or which answer was altered."""
    try:
        baseline = Baseline.model_validate_json(path.read_bytes())
    except OSError as error:
        raise ReceiptInvalid(f"The baseline {path} cannot be read: {error.strerror}.") from None
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "the file"
        raise ReceiptInvalid(
            f"{path} is not an Encore baseline (format {FORMAT}): {where}: {first['msg']}.",
            "Make one with encore verify --save-baseline FILE.",
        ) from None
    for case in baseline.cases:
        if case.receipt.digest != case.digest:
            raise ReceiptInvalid(
                f"In {path} the answer of {case.name} says {case.digest[:19]} but hashes to "
                f"{case.receipt.digest[:19]}.",
                "It was changed after it was recorded; use the original.",
            )
    return baseline
