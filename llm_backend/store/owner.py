"""Which process records a run, and whether it is still there.

A process is named by host, boot, pid namespace, pid and start time: a pid alone is soon used again.
Whether a process of another host or container lives cannot be seen from here; `Store.recover` falls
back to its silence.
"""

from __future__ import annotations

import os
import socket
from pathlib import Path

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_PID_NAMESPACE = Path("/proc/self/ns/pid")

_UNTOLD = "-"
"""Outside Linux, where the system does not tell."""


def this_process() -> str:
    """The owner text of the calling process."""
    pid = os.getpid()
    return " ".join((socket.gethostname(), _boot(), _namespace(), str(pid), _started(pid)))


def is_gone(owner: str) -> bool | None:
    """Whether the owner has ended; None for a process that cannot be seen from this one."""
    host, boot, namespace, pid, started = owner.split(" ")
    if host != socket.gethostname():
        return None
    if boot != _boot():
        return True
    if namespace != _namespace():
        return None
    return not _exists(int(pid)) or _started(int(pid)) != started


def _boot() -> str:
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return _UNTOLD


def _namespace() -> str:
    try:
        return str(_PID_NAMESPACE.readlink())
    except OSError:
        return _UNTOLD


def _started(pid: int) -> str:
    """Start time in clock ticks since boot."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return _UNTOLD
    # The command, in parentheses, may hold spaces; field 22 counts from 1 with the pid.
    return stat.rpartition(")")[2].split()[19]


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # another user's process: it is there
    return True
