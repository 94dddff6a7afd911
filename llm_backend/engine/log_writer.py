"""A server's log, put aside at a size while the server runs, without losing a line.

A server that holds its log file open cannot be given another, and cutting the file short under it loses
what is written meanwhile. So the server writes into a pipe, and a small process of its session reads
that and owns the file. It ends when the last writer has: no line of a dying server is lost either.

    python -m llm_backend.engine.log_writer LOG MEGABYTES COMMAND…

forks that process and then *becomes* COMMAND: pid, session and environment are those it was started
with. A log that cannot be written (a full disk) costs lines, which are counted, and never the server.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import BinaryIO

KEPT_LOGS = 5
"""Logs put aside that are kept, as llm.log.1 (newest) and so on."""

_CHUNK = 1 << 16


def rotate(log: Path) -> None:
    """Keep an earlier log as `.1`, the one before as `.2`, and so on; anything but a file stays as it is."""
    if not log.is_file() or log.stat().st_size == 0:
        return
    for number in range(KEPT_LOGS - 1, 0, -1):
        older = log.with_name(f"{log.name}.{number}")
        if older.is_file():
            older.replace(log.with_name(f"{log.name}.{number + 1}"))
    log.replace(log.with_name(f"{log.name}.1"))


class RotatingLog:
    """Appends whole lines to `path`, rotating before the line that would pass `limit` bytes."""

    def __init__(self, path: Path, limit: int) -> None:
        self._path = path
        self._limit = limit
        self._file: BinaryIO | None = None
        self._lost = 0
        self._pending = b""

    def feed(self, data: bytes) -> None:
        """Write the lines that `data` completes; what has no end yet waits for it, up to 64 KiB."""
        *lines, self._pending = (self._pending + data).split(b"\n")
        if lines:
            self._write(b"\n".join(lines) + b"\n")
        if len(self._pending) > _CHUNK:
            self._write(self._pending)
            self._pending = b""

    def close(self) -> None:
        """Write what never got its line end."""
        if self._pending:
            self._write(self._pending)
        if self._file is not None:
            self._file.close()

    def _write(self, lines: bytes) -> None:
        try:
            file = self._open()
            if file.tell() and file.tell() + len(lines) > self._limit:
                file.close()
                self._file = None
                rotate(self._path)
                file = self._open()
            if self._lost:
                file.write(b"[%d lines could not be written here]\n" % self._lost)
                self._lost = 0
            file.write(lines)
        except OSError:
            self._lost += lines.count(b"\n") or 1
            self._file = None  # opened anew: someone may have made room, or moved it away

    def _open(self) -> BinaryIO:
        if self._file is None:
            self._file = self._path.open("ab", buffering=0)
            self._file.seek(0, os.SEEK_END)
        return self._file


def copy(read: Callable[[int], bytes], log: RotatingLog) -> None:
    """Everything `read` gives until it gives nothing."""
    while data := read(_CHUNK):
        log.feed(data)
    log.close()


def main(argv: Sequence[str]) -> None:
    """See the module's docstring; returns only in the writing process."""
    log, limit, command = Path(argv[0]), int(argv[1]) * 1_000_000, argv[2:]
    reading, writing = os.pipe()
    if os.fork():
        os.close(reading)
        os.wait()  # the one in between, so that COMMAND gets no child it does not know
        os.dup2(writing, 1)
        os.dup2(writing, 2)
        os.close(writing)
        os.execvp(command[0], list(command))
    if os.fork():
        os._exit(0)
    os.close(writing)
    devnull = os.open(os.devnull, os.O_RDWR)
    for inherited in (0, 1, 2):
        os.dup2(devnull, inherited)
    # It ends with its last writer, never before: the group is signalled when its leader has died.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    copy(lambda size: os.read(reading, size), RotatingLog(log, limit))


if __name__ == "__main__":
    main(sys.argv[1:])
