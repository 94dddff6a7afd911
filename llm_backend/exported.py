"""Exported receipts as text: one JSON document each, a line of a `.jsonl` file.

What is read says the same as the text, value for value, or is refused: `parse_exported` derives every
digest again and leaves nothing out, so no byte can be changed unnoticed. Only the spelling of JSON
(white space, order of members) is not content. docs/receipt-format.md describes the document.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from itertools import zip_longest
from typing import Annotated, Any, Literal, NoReturn

import rfc8785
from pydantic import AwareDatetime, FailFast, ValidationError

from llm_backend.errors import ReceiptInvalid
from llm_backend.receipt import FORMAT, Frozen, Receipt, content_digest

LARGEST_INTEGER = 2**53 - 1
"""The largest integer that every JSON reader keeps exactly (RFC 7493 §2.2)."""


class RunFacts(Frozen):
    """When and how fast a run went: kept beside its receipt, never in the receipt's digest."""

    kind: Literal["ask", "replay", "fork", "import"]
    started_at: AwareDatetime
    """UTC."""
    ttft_s: float | None = None
    """Seconds to the first token."""
    duration_s: float | None = None
    """Seconds from sending the request to the end of the answer."""
    neighbours: int | None = None
    """The most other requests seen in flight; None when the engine did not tell."""


class Exported(Frozen):
    """One line of an exported file: a receipt, and the runs that came out as it says."""

    digest: str
    receipt: Receipt
    runs: Annotated[tuple[RunFacts, ...], FailFast()] = ()
    runs_digest: str | None = None
    """`sha256:…` over the runs and the receipt they belong to; None exactly when there are no runs."""


def export_document(digest: str, body: str, runs: tuple[RunFacts, ...] = ()) -> str:
    """The canonical JSON of a receipt whose own canonical JSON is `body`, with its runs beside it."""
    beside = ""
    if runs:
        listed = _dumped(runs)
        beside = f',"runs":{rfc8785.dumps(listed).decode()},"runs_digest":"{_runs_digest(digest, listed)}"'
    return f'{{"digest":"{digest}","receipt":{body}{beside}}}'


def parse_receipt(text: str | bytes) -> Receipt:
    """The receipt in what `encore export` or `Receipt.to_json` wrote; raises as `parse_exported` does."""
    return parse_exported(text).receipt


def parse_exported(text: str | bytes) -> Exported:
    """Read one exported receipt and derive its digests again.

    What is returned says the same, value for value, as `text`: (1) it is strict JSON of this format,
    (2) the receipt hashes to its digest, (3) its runs hash to theirs, (4) nothing in `text` was left
    out, doubled or read as something else. How the JSON is spelled (white space, order of members) is
    not content. Raises `ReceiptInvalid`, one sentence that names the field at fault, whatever `text` is.
    """
    try:
        read = Exported.model_validate_json(text, strict=True)
    except ValidationError as error:
        _refuse(error)
    except ValueError as error:  # text that has no UTF-8, such as half a surrogate pair
        raise _not_a_receipt("the file", str(error)) from None
    try:
        digest = read.receipt.digest
        runs_digest = _runs_digest(digest, _dumped(read.runs)) if read.runs else None
    except ValueError:
        raise _not_a_receipt(_unsafe_number(read), "this number has no exact JSON form") from None
    if digest != read.digest:
        _refuse_not_finite(text)
        raise ReceiptInvalid(
            f"The receipt says {_shown(read.digest, 19)} but its content hashes to {digest[:19]}.", _CHANGED
        )
    if runs_digest != read.runs_digest:
        raise ReceiptInvalid(
            f"The runs beside the receipt {digest[:19]} do not hash to their runs_digest.", _CHANGED
        )
    written = text.encode() if isinstance(text, str) else text
    if (
        written.strip(b" \t\r\n")
        != export_document(digest, read.receipt.canonical.decode(), read.runs).encode()
    ):
        _compare_values(text, read)
    return read


_CHANGED = "It was changed after it was recorded; use the original."

_MISSING = object()


def _not_a_receipt(where: str, why: str) -> ReceiptInvalid:
    return ReceiptInvalid(
        f"This is not an Encore receipt (format {FORMAT}): {where}: {why.rstrip('.')}.",
        "Export it again with encore export.",
    )


def _refuse(error: ValidationError) -> NoReturn:
    errors = error.errors(include_url=False, include_context=False)
    for entry in errors:
        written = entry["input"]
        if entry["loc"] == ("receipt", "format") and type(written) is int and abs(written) < 10**9:
            raise ReceiptInvalid(
                f"This receipt has format {written}; this Encore reads format {FORMAT}.",
                "Update Encore to read it."
                if written > FORMAT
                else f"There is no format before {FORMAT}: it was changed after it was recorded.",
            ) from None
    first = errors[0]
    # A document is one line: which of its columns is at fault is all there is to say.
    why = first["msg"].removeprefix("Value error, ").replace(" at line 1 column ", " at column ")
    raise _not_a_receipt(_path(first["loc"]), _shown(why, 200)) from None


def _compare_values(text: str | bytes, read: Exported) -> None:
    """Raise unless `text`, in another spelling than ours, holds exactly the values that were read."""
    try:
        written = json.loads(text, object_pairs_hook=_members)
    except (ValueError, RecursionError) as error:
        raise _not_a_receipt("the file", _shown(str(error), 200)) from None
    ours = read.model_dump(mode="json", exclude=None if read.runs else {"runs", "runs_digest"})
    for theirs, own in zip_longest(_scalars(written), _scalars(ours), fillvalue=((), _MISSING)):
        if theirs != own:
            raise _not_a_receipt(
                _path(min(theirs[0], own[0], key=str)), "missing, or not as the format spells it"
            )


def _refuse_not_finite(text: str | bytes) -> None:
    """Records read NaN and infinity, which JSON does not have, as unknown: say so before "changed"."""
    for path, (_, value) in _scalars(json.loads(text)):
        if isinstance(value, float) and not math.isfinite(value):
            raise _not_a_receipt(_path(path), "not a finite number")


def _members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"{_shown(twice, 40)} is there twice")
    return members


def _scalars(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[tuple[str | int, ...], Any]]:
    """Every value without parts, in the order of the sorted names that lead to it."""
    if isinstance(value, dict) and value:
        for name in sorted(value):
            yield from _scalars(value[name], (*path, name))
    elif isinstance(value, list) and value:
        for index, part in enumerate(value):
            yield from _scalars(part, (*path, index))
    else:
        yield path, (type(value) is bool, value)  # for Python true is 1


def _unsafe_number(read: Exported) -> str:
    for path, (_, value) in _scalars(read.model_dump(mode="json")):
        if isinstance(value, float) and not math.isfinite(value):
            return _path(path)
        if isinstance(value, int) and abs(value) > LARGEST_INTEGER:
            return _path(path)
    return "the file"


def _dumped(runs: tuple[RunFacts, ...]) -> list[dict[str, Any]]:
    return [run.model_dump(mode="json") for run in runs]


def _runs_digest(digest: str, runs: list[dict[str, Any]]) -> str:
    return content_digest({"receipt": digest, "runs": runs})


def _path(parts: tuple[str | int, ...]) -> str:
    return _shown(".".join(str(part) for part in parts), 80) or "the file"


def _shown(text: str, length: int) -> str:
    """Text from a file nobody vouches for, fit for one line of a sentence."""
    safe = "".join(
        character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in text
    )
    return safe if len(safe) <= length else safe[:length] + "…"
