"""A server started by us: its process, log and pid file, from start to end."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from llm_backend.engine.log_writer import rotate
from llm_backend.engine.phase import tail
from llm_backend.engine.process import STOP_DEADLINE, Owned, own, spawn, stop, write_pid_file
from llm_backend.errors import LaunchError

_LAST_LINES = 12
_LAST_WORDS_S = 1.0
"""Workers that outlive their server may hold its log open for longer than anyone should wait."""


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
        log_max_mb: int,
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
        popen = spawn(argv, log=log, log_max_mb=log_max_mb, cwd=cwd, environ=environ)
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
        self._wait_for_last_words()
        how = f"ended with exit code {code}" if code >= 0 else f"was killed by signal {-code}"
        end = "\n".join(f"  {line}" for line in tail(self.log, _LAST_LINES))
        raise LaunchError(
            f"The {self.name} {how} after {self.seconds():.0f} s. The end of {self.log}:\n{end}",
            exit_code=(code if code > 0 else 128 - code) if code else 1,
        )

    def _wait_for_last_words(self) -> None:
        """Its log has a writer of its own, which ends once everything is written."""
        limit = time.monotonic() + _LAST_WORDS_S
        while self.process.members() and time.monotonic() < limit:
            time.sleep(0.02)

    def end(self, hurry: Callable[[], bool] = lambda: False, *, deadline: float = STOP_DEADLINE) -> None:
        """Stop the server and its workers, which get `deadline` seconds for it, and forget them."""
        stop(self.process, reap=self.popen.poll, hurry=hurry, deadline=deadline)
        self.pid_file.unlink(missing_ok=True)
