"""Ports for servers that a test starts as processes of their own, which must be told a number.

A port that the kernel gave and that was let go again may be given to somebody else before the server
listens. These lie below the kernel's own, and whoever got one keeps it from all other test processes.
"""

from __future__ import annotations

import os
import random
import socket

FIRST, LAST = 20_000, 32_000
"""Below Linux's own range for outgoing connections and port 0, which begins at 32,768."""

_claims: list[socket.socket] = []
"""One name in the abstract namespace for each port given: held, and freed by the kernel, with the process."""

_order = iter(random.Random(os.getpid()).sample(range(FIRST, LAST), LAST - FIRST))


def free_port() -> int:
    """A port nobody listens on and no other test process gets while this one lives."""
    for port in _order:
        claim = socket.socket(socket.AF_UNIX)
        try:
            claim.bind(f"\0encore-test-port-{port}")
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", port))
        except OSError:
            claim.close()
            continue
        _claims.append(claim)
        return port
    raise RuntimeError(f"no free port from {FIRST} to {LAST}")
