"""A server started by us: its process, log and pid file, from start to end."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from llm_backend.engine.phase import tail
from llm_backend.engine.process import Owned, own, spawn, stop, write_pid_file
from llm_backend.errors import LaunchError

KEPT_LOGS = 5
"""Logs of earlier starts that are kept, as llm.log.1 (newest) and so on."""

_LAST_LINES = 12


@dataclass(frozen=True, slots=True)
class Child:
    """One running server."""

    name: str
    """For people: "engine" or "app"."""
    popen: subprocess.Popen[bytes]
    process: Owned
    log: Path
    pid_file: Path
    began: float
    """`time.monotonic()` at the start."""

    @classmethod
    def start(
        cls,
        name: str,
        argv: Sequence[str],
        *,
        header: str,
        log: Path,
        pid_file: Path,
        cwd: Path,
        environ: Mapping[str, str],
    ) -> Self:
        """Start `argv` with a fresh log that begins with `header`; the earlier log is kept beside it."""
        try:
            rotate(log)
            with log.open("a", encoding="utf-8") as output:
                output.write(f"{header}\n")
        except OSError as error:
            raise LaunchError(
                f"The log {log} cannot be written: {error.strerror}.",
                "Make room or correct the permissions there.",
            ) from None
        began = time.monotonic()
        popen = spawn(argv, log=log, cwd=cwd, environ=environ)
        process = own(popen.pid)
        write_pid_file(pid_file, process)
        return cls(name, popen, process, log, pid_file, began)

    def seconds(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self.began

    def ensure_alive(self) -> None:
        """Raise `LaunchError` with the log's last lines and the process's own exit code once it has ended."""
        code = self.popen.poll()
        if code is None:
            return
        how = f"ended with exit code {code}" if code >= 0 else f"was killed by signal {-code}"
        end = "\n".join(f"  {line}" for line in tail(self.log, _LAST_LINES))
        raise LaunchError(
            f"The {self.name} {how} after {self.seconds():.0f} s. The end of {self.log}:\n{end}",
            exit_code=(code if code > 0 else 128 - code) if code else 1,
        )

    def end(self, hurry: Callable[[], bool] = lambda: False) -> None:
        """Stop the server and its workers, and forget them."""
        stop(self.process, reap=self.popen.poll, hurry=hurry)
        self.pid_file.unlink(missing_ok=True)


def rotate(log: Path) -> None:
    """Keep an earlier log as `.1`, the one before as `.2`, and so on; anything but a file stays as it is."""
    if not log.is_file() or log.stat().st_size == 0:
        return
    for number in range(KEPT_LOGS - 1, 0, -1):
        older = log.with_name(f"{log.name}.{number}")
        if older.is_file():
            older.replace(log.with_name(f"{log.name}.{number + 1}"))
    log.replace(log.with_name(f"{log.name}.1"))
