"""Signals, locks and progress of a supervising `start.sh`: what it needs besides the children themselves."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from types import FrameType
from typing import Self

from llm_backend.engine.phase import Phase
from llm_backend.engine.process import POLL, Owned, own, read_pid_file
from llm_backend.errors import LaunchError

ALREADY_RUNNING = 3
"""Exit code of a second start."""

PHASE_WORDS = {
    "starting": "starting",
    "loading_weights": "loading weights",
    "compiling": "compiling",
    "warming_up": "warming up",
    "ready": "almost ready",
    "failed": "failing",
}


class Interrupted(BaseException):
    """A signal asked the supervisor to end. Not an `Exception`: nothing may swallow it."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.exit_code = 128 + number


class Signals:
    """Turns the first SIGINT, SIGTERM or SIGHUP into `Interrupted`, and later ones into impatience.

    While `deferred`, a signal waits: a child must not be started without being written down.
    """

    def __init__(self) -> None:
        self._pending: int | None = None
        self._deferred = False
        self._ending = False
        self._impatient = False

    def __enter__(self) -> Self:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            # Under nohup, hanging up is ignored and has to stay so.
            if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """Let a signal wait until the end of the block."""
        self._deferred = True
        try:
            yield
        finally:
            self._deferred = False
        if self._pending is not None:
            self._raise(self._pending)

    def ending(self) -> None:
        """From here on the children are being stopped: a signal only makes that faster."""
        self._ending = True

    def impatient(self) -> bool:
        """True once a signal has arrived while the children were being stopped."""
        return self._impatient

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        if self._ending:
            self._impatient = True
        elif self._deferred:
            self._pending = number
        else:
            self._raise(number)

    def _raise(self, number: int) -> None:
        self._ending = True
        raise Interrupted(number)


@contextmanager
def sole_supervisor(lock: Path, part: str) -> Iterator[None]:
    """Hold `lock` while supervising `part`; a second supervisor is refused with the first one's pid.

    The lock is the kernel's and ends with the process; the pid inside is for people and for `stop`.
    """
    lock.parent.mkdir(parents=True, exist_ok=True)
    with lock.open("a+", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = read_pid_file(lock)
            raise LaunchError(
                f"The {part} is already running, pid {holder.pid if holder else 'unknown'} (start.sh).",
                "Stop it first: ./start.sh stop.",
                exit_code=ALREADY_RUNNING,
            ) from None
        file.truncate(0)
        file.write(json.dumps(asdict(own(os.getpid()))))
        file.flush()
        try:
            yield
        finally:
            file.truncate(0)


SILENCE = 30.0
"""Seconds after which a phase that goes on is said again where lines cannot be updated."""


class Progress:
    """The phase and the seconds so far: one line that updates on a terminal, else a line per phase and
    one every `SILENCE` seconds."""

    def __init__(self) -> None:
        self._shown = ""
        self._said_at = 0.0
        self._tty = sys.stderr.isatty()

    def __call__(self, phase: Phase, seconds: float) -> None:
        words = PHASE_WORDS[phase.key]
        if self._tty:
            text = f"{words}… {seconds:.0f} s"
            if text != self._shown:
                _write(f"\r\033[K{text}")
                self._shown = text
        elif words != self._shown or seconds - self._said_at >= SILENCE:
            say(f"{words}… {seconds:.0f} s")
            self._shown, self._said_at = words, seconds

    def done(self) -> None:
        """Clear the updating line."""
        if self._tty and self._shown:
            _write("\r\033[K")


def say(text: str) -> None:
    """One line for people."""
    _write(f"{text}\n")


def _write(text: str) -> None:
    # The terminal may have been closed (HUP): nobody reads this, and the children must be ended all the same.
    with suppress(OSError):
        print(text, end="", file=sys.stderr, flush=True)


def ask_to_end(process: Owned, deadline: float) -> None:
    """Ask a supervisor to end, and wait at most `deadline` seconds while it stops its children."""
    if not process.alive():
        return
    os.kill(process.pid, signal.SIGTERM)
    limit = time.monotonic() + deadline
    while process.alive() and time.monotonic() < limit:
        time.sleep(POLL)
