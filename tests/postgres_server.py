"""A real PostgreSQL server for the tests: own data folder, own port, gone afterwards.

Debian's `postgresql` package brings the binaries; `.ci/run` installs it. The server refuses to run as
root, so root's tests start it as the user that the package made.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from ports import free_port

START_S = 60
REQUIRED = "TESTS_REQUIRE_POSTGRESQL"
"""Set by `.ci/run`: there, a missing server fails the tests instead of skipping them."""

# Chinese collation: comparisons of digests must not depend on the database's sorting.
INITDB = (
    *("--username=encore", "--auth=trust", "--encoding=UTF8", "--no-sync", "--no-instructions"),
    *("--locale=C.UTF-8", "--locale-provider=icu", "--icu-locale=zh-Hans-CN"),
)


def find_binaries() -> Path | None:
    """The folder with `initdb` and `postgres`; None where PostgreSQL is not installed."""
    for folder in sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True):
        if (folder / "initdb").exists() and (folder / "postgres").exists():
            return folder
    found = shutil.which("initdb")
    return Path(found).resolve().parent if found and shutil.which("postgres") else None


@contextlib.contextmanager
def running_postgres(binaries: Path) -> Iterator[str]:
    """Start a server on a free port; yields `HOST:PORT`. User `encore`, no password."""
    folder = Path(tempfile.mkdtemp(prefix="encore-postgresql-"))
    user = _unprivileged()
    as_user = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups"] if user else []
    data, log = folder / "data", folder / "log"
    if user:
        shutil.chown(folder, user)
    port = free_port()
    environment = {"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8"}
    subprocess.run(
        [*as_user, str(binaries / "initdb"), *INITDB, f"--pgdata={data}"],
        check=True,
        env=environment,
        stdout=subprocess.DEVNULL,
        timeout=START_S,
    )
    command = [*as_user, str(binaries / "postgres"), "-D", str(data), "-p", str(port), "-k", str(folder)]
    for setting in ("listen_addresses=127.0.0.1", "fsync=off", "max_connections=60"):
        command += ["-c", setting]
    with log.open("wb") as output:
        server = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=environment)
    try:
        _wait_until_ready(binaries, port, server, log)
        yield f"127.0.0.1:{port}"
    finally:
        server.send_signal(signal.SIGQUIT)  # at once: nothing here is kept
        server.wait(timeout=START_S)
        shutil.rmtree(folder, ignore_errors=True)


def _wait_until_ready(binaries: Path, port: int, server: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_S
    asked = [str(binaries / "pg_isready"), "--quiet", "--host=127.0.0.1", f"--port={port}"]
    while subprocess.run(asked, check=False).returncode:
        if server.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"PostgreSQL did not start:\n{log.read_text()}")
        time.sleep(0.05)


def _unprivileged() -> str | None:
    if os.geteuid() != 0:
        return None
    return next(
        name for name in ("postgres", "nobody") if name in {entry.pw_name for entry in pwd.getpwall()}
    )
