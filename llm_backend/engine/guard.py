"""Ends a server whose owner has died: started beside it, with a pipe to the owner as its stdin.

The pipe closes when the owner closes it or ends in any way, SIGKILL included. An engine that Encore
starts only to measure something must not outlive the measurement.

    python -m llm_backend.engine.guard PID STARTED < PIPE
"""

from __future__ import annotations

import subprocess
import sys

from llm_backend.engine.process import Owned, stop


def watch(process: Owned) -> subprocess.Popen[bytes]:
    """Start the guard of `process`; close its stdin once the process was ended properly."""
    argv = [sys.executable, "-m", "llm_backend.engine.guard", str(process.pid), str(process.started)]
    return subprocess.Popen(
        argv,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def main() -> None:
    pid, started = map(int, sys.argv[1:])
    sys.stdin.read()
    stop(Owned(pid, started))


if __name__ == "__main__":
    main()
