"""A server's log is put aside while it writes, and no line is lost."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from llm_backend.engine.log_writer import RotatingLog
from llm_backend.engine.process import own, spawn, stop


def lines_of(log: Path) -> list[str]:
    """Oldest first, over all the files there are."""
    older = sorted(log.parent.glob(f"{log.name}.*"), key=lambda path: -int(path.suffix[1:]))
    return [line for path in (*older, log) for line in path.read_text().splitlines()]


@pytest.mark.parametrize("piece", [1, 7, 4096])
def test_no_line_is_lost_or_torn_whatever_pieces_arrive(tmp_path: Path, piece: int) -> None:
    written = [f"{number:04d} 第 {number} 行" for number in range(300)]
    data = "\n".join(written).encode()  # the last one without its end
    log = RotatingLog(tmp_path / "llm.log", 2_500)
    for start in range(0, len(data), piece):
        log.feed(data[start : start + piece])
    log.close()
    kept = lines_of(tmp_path / "llm.log")
    assert kept == written
    assert (tmp_path / "llm.log.1").exists()


def test_a_running_server_is_rotated_under_load_and_keeps_its_pid(tmp_path: Path) -> None:
    log, lines = tmp_path / "llm.log", 60_000
    program = f"import os\nfor n in range({lines}): print(n, os.getpid(), 'x' * 20)"
    server = spawn(
        (sys.executable, "-c", program), log=log, log_max_mb=1, cwd=tmp_path, environ=dict(os.environ)
    )
    process = own(server.pid)
    assert server.wait(timeout=60) == 0
    until_written(process.members)
    found = [line.split()[:2] for line in lines_of(log)]
    assert found == [[str(number), str(server.pid)] for number in range(lines)]
    assert (tmp_path / "llm.log.1").stat().st_size <= 1_000_000


def until_written(members) -> None:
    deadline = time.monotonic() + 10
    while members():
        assert time.monotonic() < deadline, "the writer did not end with its server"
        time.sleep(0.01)


def test_the_last_words_of_a_killed_server_are_kept(tmp_path: Path) -> None:
    program = "import os, signal; os.write(2, b'last words'); os.kill(os.getpid(), signal.SIGKILL)"
    log = tmp_path / "llm.log"
    server = spawn(
        (sys.executable, "-c", program), log=log, log_max_mb=1, cwd=tmp_path, environ=dict(os.environ)
    )
    process = own(server.pid)
    assert server.wait(timeout=30) == -9, "the exit status is the server's own"
    until_written(process.members)
    assert log.read_text() == "last words"


def test_stopping_a_server_ends_its_writer_too(tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    program = f"import pathlib, signal; pathlib.Path({str(ready)!r}).touch(); signal.pause()"
    server = spawn(
        (sys.executable, "-c", program), log=tmp_path / "log", log_max_mb=1, cwd=tmp_path, environ={}
    )
    process, deadline = own(server.pid), time.monotonic() + 30
    while not ready.exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert len(process.members()) == 2
    stop(process, reap=server.poll)
    assert process.members() == ()


def test_a_full_disk_costs_lines_which_are_counted_and_not_the_server(tmp_path: Path) -> None:
    log = tmp_path / "llm.log"
    log.symlink_to("/dev/full")
    program = "import sys\nfor n in range(50_000): print('a line')\nprint('done', file=sys.stderr)"
    server = spawn((sys.executable, "-c", program), log=log, log_max_mb=1, cwd=tmp_path, environ={})
    assert server.wait(timeout=30) == 0
    assert Path("/dev/full").is_char_device(), "what is not a file is never renamed"


def test_room_made_later_is_used_and_the_gap_is_told(tmp_path: Path) -> None:
    log = RotatingLog(tmp_path / "later" / "llm.log", 1_000)
    log.feed(b"one\ntwo\n")
    (tmp_path / "later").mkdir()
    log.feed(b"three\n")
    log.close()
    assert (tmp_path / "later" / "llm.log").read_text() == "[2 lines could not be written here]\nthree\n"


def test_it_starts_without_the_app_s_packages(tmp_path: Path) -> None:
    """The engine's own interpreter could run it: it needs nothing but Python."""
    from llm_backend.engine.process import LOG_WRITER

    done = subprocess.run(
        [sys.executable, "-I", "-S", LOG_WRITER, tmp_path / "log", "1", "/bin/echo", "hello"], timeout=30
    )
    assert done.returncode == 0
