"""Processes that Encore owns, and the only code that ends one.

A process is known by its pid *and* its start time (`/proc/PID/stat`), so a pid file left by a crash
never names someone else's process. Engine and app each lead a session of their own: ending one means
ending its whole group, and a Ctrl-C in the terminal reaches only the supervisor.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

LOG_WRITER = Path(__file__).with_name("log_writer.py")

STOP_DEADLINE = 15.0
"""Seconds between asking a process to end and killing its group. vLLM takes about 2."""

ORPHAN_DEADLINE = 5.0
"""Seconds that workers get after their leader has gone."""

POLL = 0.1
"""Seconds between looks at a process that is starting or ending."""


@dataclass(frozen=True, slots=True)
class Owned:
    """A process that Encore started, and leader of its session."""

    pid: int
    started: int
    """Clock ticks between boot and the process's start (proc(5), field 22 of stat)."""

    def alive(self) -> bool:
        """True while this very process runs; a zombie or a reused pid is not it."""
        stat = _stat(self.pid)
        return stat is not None and stat.started == self.started and stat.state != "Z"

    def members(self) -> tuple[int, ...]:
        """Pids still in the session this process leads, itself included.

        Empty when the pid now belongs to someone else, who may lead a session of the same number.
        """
        leader = _stat(self.pid)
        if leader is not None and leader.started != self.started:
            return ()
        return tuple(pid for pid, stat in _processes() if stat.session == self.pid and stat.state != "Z")


def spawn(
    argv: Sequence[str], *, log: Path, log_max_mb: int, cwd: Path, environ: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    """Start `argv` as leader of a new session, both output streams appended to `log` in order.

    The log is put aside whenever it has grown to `log_max_mb` megabytes; see `log_writer`.
    """
    # By its file and isolated (-I): folder and environment are the server's.
    writer = (sys.executable, "-I", str(LOG_WRITER), str(log), str(log_max_mb))
    with log.open("ab") as output:
        return subprocess.Popen(
            (*writer, *argv),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=cwd,
            env=dict(environ),
            start_new_session=True,
        )


def own(pid: int) -> Owned:
    """The process with this pid: ourselves, or a child not yet waited for, whose pid cannot be reused."""
    stat = _stat(pid)
    if stat is None:
        raise ProcessLookupError(pid)
    return Owned(pid, stat.started)


def stop(
    process: Owned,
    *,
    reap: Callable[[], object] = lambda: None,
    hurry: Callable[[], bool] = lambda: False,
    deadline: float = STOP_DEADLINE,
) -> None:
    """End a process and its group: ask the leader, wait, then kill what is left.

    The leader is asked alone, because vLLM ends its workers itself and calls their death a failure.
    `reap` is called at every look (`Popen.poll` where we are the parent, or the leader stays a zombie);
    `hurry` cuts the wait short (a second Ctrl-C).
    """
    limit = time.monotonic() + deadline
    if process.alive():
        _signal((process.pid,), signal.SIGTERM)
    orphans_told = False
    while members := process.members():
        reap()
        if not orphans_told and not process.alive():
            _signal(members, signal.SIGTERM)
            orphans_told, limit = True, min(limit, time.monotonic() + ORPHAN_DEADLINE)
        if hurry() or time.monotonic() > limit:
            _signal(members, signal.SIGKILL)
        time.sleep(POLL)
    reap()


def peak_memory(pids: Sequence[int]) -> int:
    """Bytes of memory these processes held at most, each at its own peak; pages they share count twice."""
    peaks = (re.search(r"^VmHWM:\s+(\d+) kB", _read(f"/proc/{pid}/status"), re.MULTILINE) for pid in pids)
    return sum(int(peak[1]) * 1024 for peak in peaks if peak)


# -- pid files ---------------------------------------------------------------


def write_pid_file(path: Path, process: Owned) -> None:
    """Record a process that is ours."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_suffix(".tmp")
    draft.write_text(json.dumps(asdict(process)), encoding="utf-8")
    draft.replace(path)


def read_pid_file(path: Path) -> Owned | None:
    """The process a pid file names, running or not; None without a readable file."""
    try:
        return Owned(**json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None


# -- ports -------------------------------------------------------------------


def port_is_free(host: str, port: int) -> bool:
    """True when a server could listen there now."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


def free_port(host: str) -> int:
    """A port on which nobody listens now."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind((host, 0))
        port: int = probe.getsockname()[1]
    return port


def port_holder(port: int) -> str:
    """Who listens on `port`, for people: "pid 4711 (python3 -m http.server)", or "another process"."""
    inodes = set(_listening_inodes(port))
    for entry in Path("/proc").glob("[0-9]*/fd/*"):
        with suppress(OSError):
            if str(entry.readlink()) in inodes:
                pid = int(entry.parts[2])
                command = (
                    Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                )
                return f"pid {pid} ({command.strip()[:80]})"
    return "another process"


def _listening_inodes(port: int) -> Iterator[str]:
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with suppress(OSError):
            for line in Path(table).read_text().splitlines()[1:]:
                fields = line.split()
                # proc(5): local address is HEXIP:HEXPORT, state 0A is LISTEN, field 9 the socket's inode.
                if fields[3] == "0A" and int(fields[1].rpartition(":")[2], 16) == port:
                    yield f"socket:[{fields[9]}]"


# -- /proc -------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Stat:
    state: str
    session: int
    started: int


def _read(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""


def _stat(pid: int) -> _Stat | None:
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    # The command name, field 2, is in parentheses and may itself hold spaces and parentheses.
    fields = text.rpartition(")")[2].split()
    return _Stat(state=fields[0], session=int(fields[3]), started=int(fields[19]))


def _processes() -> Iterator[tuple[int, _Stat]]:
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (stat := _stat(int(entry.name))):
            yield int(entry.name), stat


def _signal(pids: Sequence[int], number: signal.Signals) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)
