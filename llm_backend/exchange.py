"""Receipts out to files and back in: one JSON document per line, gzip by the name's suffix.

Files are streamed line by line, so memory depends on the longest receipt, not on the file. A line that
cannot be believed is reported with its number and does not cost the sound ones; nothing is stored
twice. What stands beside a receipt (`runs`) is shown and signed, but not believed: an imported run says
only what its digest proves.
"""

from __future__ import annotations

import asyncio
import gzip
import zlib
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import IO, cast

from llm_backend.errors import EncoreError, ReceiptInvalid, SignatureInvalid
from llm_backend.exported import Exported, parse_exported
from llm_backend.signature import Signed
from llm_backend.store import Store

LONGEST_LINE = 64 * 2**20
"""Bytes; a receipt of 32,768 tokens with 20 alternatives each has about 27 MB."""

SHOWN_REFUSALS = 20
"""Refused lines named one by one in a report; the rest are counted."""

_GZIP_MAGIC = b"\x1f\x8b"


@dataclass(frozen=True, slots=True)
class Refusal:
    """A line that was not imported."""

    file: str
    line: int
    problem: str


@dataclass(frozen=True, slots=True)
class Imported:
    """What came of importing files."""

    imported: int = 0
    known: int = 0
    """Receipts that were stored before, or came twice."""
    refused: int = 0
    refusals: tuple[Refusal, ...] = ()
    """The first `SHOWN_REFUSALS` of those refused."""


async def export_receipts(documents: AsyncIterator[str], output: Path) -> int:
    """Write documents to a new file, one a line; returns how many. On any failure there is no file.

    The same documents give the same bytes, compressed ones too.
    """
    count = 0
    with new_file(output) as raw:
        packed = gzip.GzipFile("", "wb", fileobj=raw, mtime=0) if is_gzip_name(output) else None
        file = cast(IO[bytes], packed or raw)
        async for document in documents:
            file.write(document.encode() + b"\n")
            count += 1
        if packed:
            packed.close()
        if not count:
            raise EncoreError("There is no receipt to export.", "encore list shows what is stored.")
    return count


@contextmanager
def new_file(output: Path, mode: int = 0o666) -> Iterator[IO[bytes]]:
    """A file that did not exist before, and does not after a failure. Raises `EncoreError`."""
    created = False
    try:
        output.touch(mode, exist_ok=False)
        created = True
        with output.open("wb") as file:
            yield file
    except FileExistsError:
        raise EncoreError(f"{output} exists already.", "Choose another name.") from None
    except BaseException as error:
        if created:
            output.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise EncoreError(f"{output} cannot be written: {error.strerror or error}.") from None
        raise


def is_gzip_name(path: Path) -> bool:
    return path.suffix.lower() == ".gz"


async def import_receipts(
    store: Store, files: Iterable[Path], *, on_line: Callable[[str, int], None] = lambda *_: None
) -> Imported:
    """Store every sound receipt of these files that is not stored yet.

    Raises `EncoreError` for a file that cannot be opened or holds no line at all.
    """
    imported = known = refused = 0
    refusals: list[Refusal] = []
    for file in files:
        lines = read_lines(file)
        while entry := await asyncio.to_thread(next, lines, None):
            number, read = entry
            on_line(str(file), number)
            if isinstance(read, ReceiptInvalid):
                refused += 1
                if len(refusals) < SHOWN_REFUSALS:
                    refusals.append(Refusal(str(file), number, read.problem))
            elif await store.has_receipt(read.digest):
                known += 1
            else:
                await store.add_receipt(read.receipt)
                imported += 1
    return Imported(imported, known, refused, tuple(refusals))


def read_lines(file: Path) -> Iterator[tuple[int, Exported | ReceiptInvalid]]:
    """Line by line what the file holds, or why that line is refused; blank lines are passed over.

    Raises `EncoreError` when the file cannot be opened or has nothing in it.
    """
    number = read = 0
    try:
        with open_export(file) as lines:
            while line := lines.readline(LONGEST_LINE + 1):
                number += 1
                if len(line) > LONGEST_LINE:
                    read += 1
                    yield number, ReceiptInvalid(f"The line is longer than {LONGEST_LINE >> 20} MiB.")
                    while line and not line.endswith(b"\n"):
                        line = lines.readline(LONGEST_LINE + 1)
                elif line.strip():
                    read += 1
                    yield number, _read(line)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        yield number + 1, ReceiptInvalid(f"The compressed file is damaged from here on ({error}).")
        return
    except OSError as error:
        raise EncoreError(f"{file} cannot be read: {error.strerror or error}.") from None
    if not read:
        raise EncoreError(f"{file} is empty.", "encore export writes one receipt per line.")


@contextmanager
def open_export(file: Path) -> Iterator[IO[bytes]]:
    """The text of a file that may be compressed, whatever its name says."""
    with file.open("rb") as raw:
        if raw.peek(2)[:2] != _GZIP_MAGIC:
            yield raw
            return
        with gzip.GzipFile(fileobj=raw) as unpacked:
            yield cast(IO[bytes], unpacked)


def signable(file: Path) -> list[Signed]:
    """Every receipt of a file; raises `ReceiptInvalid` at the first line that is none."""
    found = []
    for number, read in read_lines(file):
        if isinstance(read, ReceiptInvalid):
            raise ReceiptInvalid(f"{file}, line {number}: {read.problem}", read.advice)
        found.append(Signed.of(read))
    return found


def check_signed(signed: Iterable[Signed], file: Path) -> int:
    """Step (4) of verifying: the file holds exactly the receipts that were signed, runs included.

    Returns how many; raises `SignatureInvalid` naming the first that is too many, or missing.
    """
    found = signable(file)
    expected, present = set(signed), set(found)
    for problem, differing in (
        ("holds {} not among the signed ones", present - expected),
        ("lacks {} of the signed ones", expected - present),
    ):
        if differing:
            count = f"{len(differing):,} {'receipt' if len(differing) == 1 else 'receipts'}"
            first = ", ".join(sorted(one.digest[:19] for one in islice(differing, 3)))
            raise SignatureInvalid(
                f"{file} {problem.format(count)}, such as {first}.",
                "Runs beside a receipt count as part of it; use the file as it was signed.",
            )
    return len(found)


def _read(line: bytes) -> Exported | ReceiptInvalid:
    try:
        return parse_exported(line)
    except ReceiptInvalid as error:
        return error
