"""What `start.sh` runs once the app is installed: start, supervise, stop and describe engine and app.

Exit codes: 0 done; 2 refused, one sentence says why; 3 already running; the engine's own code when it
dies; 128 + signal when a signal ended it. `status` has its own: 0 ready, 1 loading, 2 not running.

Progress goes to stderr, the address of the chat to stdout.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import httpx

from llm_backend.config import ROOT, Settings, load_settings
from llm_backend.engine import preflight
from llm_backend.engine.child import Child
from llm_backend.engine.launch import RunningEngine, is_healthy, launch, wait_until_ready
from llm_backend.engine.manifest import read_manifest
from llm_backend.engine.phase import phase_of, tail
from llm_backend.engine.prepare import install, prepare
from llm_backend.engine.process import POLL, STOP_DEADLINE, read_pid_file, stop
from llm_backend.engine.strict_gemm import shortcomings
from llm_backend.errors import EncoreError, LaunchError
from llm_backend.supervise import (
    ALREADY_RUNNING,
    PHASE_WORDS,
    Interrupted,
    Progress,
    Signals,
    ask_to_end,
    say,
    sole_supervisor,
)

READY, LOADING, NOT_RUNNING = 0, 1, 2
"""Exit codes of `status`."""

_PARTS = {"up": ("engine", "app"), "engine": ("engine",), "app": ("app",)}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    options = _parser().parse_args(argv)
    try:
        settings = load_settings()
        match options.command:
            case "install":
                install(settings, environ=os.environ, say=say)
                return 0
            case "stop":
                return stop_all(settings)
            case "status":
                return status(settings)
            case "logs":
                os.execvp("tail", ["tail", "-n", "100", "-F", str(settings.log_file)])
            case part:
                return up(settings, _PARTS[part], detach=options.detach)
    except Interrupted as interrupted:
        say("Stopped.")
        return interrupted.exit_code
    except LaunchError as error:
        say(error.diagnostics())
        return error.exit_code
    except EncoreError as error:
        say(error.diagnostics())
        return 2


# -- start -------------------------------------------------------------------


def up(settings: Settings, parts: Sequence[str], *, detach: bool) -> int:
    """Start `parts` and stay until one of them ends or a signal comes; detached, only until all are ready."""
    if settings.engine == "external":
        if not settings.engine_urls:
            raise LaunchError("ENCORE_ENGINE=external needs ENCORE_ENGINE_URLS.", "Name the engine there.")
        if parts == ("engine",):
            raise LaunchError("ENCORE_ENGINE=external starts no engine.", "Use ./start.sh app.")
        parts = ("app",)
    with Signals() as signals, ExitStack() as locks, ExitStack() as running:
        for part in parts:
            locks.enter_context(sole_supervisor(_lock_file(settings, part), part))
            _make_way(settings, part)
        if "app" in parts:
            preflight.check_login(settings)
            preflight.check_log(settings.app_log_file)
            preflight.check_port(settings.host, settings.app_port, variable="ENCORE_APP_PORT")
        children = []
        if "engine" in parts:
            # Beside the app, the app is its only client and it stays on this machine.
            host = settings.host if parts == ("engine",) else "127.0.0.1"
            engine = _start_engine(settings, host, signals, running)
            children.append(engine.child)
        if "app" in parts:
            children.append(_start_app(settings, signals, running))
        if detach:
            running.pop_all()
            say("Running in the background; see ./start.sh status, logs, stop.")
            return 0
        while True:
            for child in children:
                child.ensure_alive()
            time.sleep(POLL)


def _start_engine(settings: Settings, host: str, signals: Signals, running: ExitStack) -> RunningEngine:
    plan = prepare(settings, host=host, environ=os.environ, say=say)
    settings.manifest_file.unlink(missing_ok=True)
    say(f"Starting {plan.model.name} on {plan.device}, profile {plan.profile}; log: {settings.log_file}")
    with signals.deferred():
        pid_file = _pid_file(settings, "engine")
        engine = launch(
            plan,
            inherited=os.environ,
            log=settings.log_file,
            log_max_mb=settings.log_max_mb,
            cwd=ROOT,
            pid_file=pid_file,
        )
        running.callback(settings.manifest_file.unlink, missing_ok=True)
        running.callback(_end, engine.child, signals)
    progress = Progress()
    try:
        manifest = wait_until_ready(
            engine,
            manifest_file=settings.manifest_file,
            digest_cache=settings.data_dir / "digests.json",
            progress=progress,
            uninterrupted=signals.deferred,
        )
    finally:
        progress.done()
    say(f"Engine ready in {engine.child.seconds():.0f} s at {plan.url} (pid {engine.child.process.pid}).")
    for sentence in shortcomings(manifest.fingerprint):
        say(sentence)
    return engine


def _start_app(settings: Settings, signals: Signals, running: ExitStack) -> Child:
    url = f"http://{preflight.reachable(settings.host)}:{settings.app_port}"
    with signals.deferred():
        app = Child.start(
            "app",
            (sys.executable, "-m", "llm_backend.ui"),
            header=f"Encore app at {url}",
            log=settings.app_log_file,
            log_max_mb=settings.log_max_mb,
            pid_file=_pid_file(settings, "app"),
            cwd=ROOT,
            environ=os.environ,
        )
        running.callback(_end, app, signals, deadline=_app_deadline(settings))
    while not _answers(f"{url}/healthz"):
        app.ensure_alive()
        time.sleep(POLL)
    print(f"Open {url}", flush=True)
    return app


def _app_deadline(settings: Settings) -> float:
    """Answers may finish first; then it stores what it has, as any server ends."""
    return settings.stop_grace + STOP_DEADLINE


def _end(child: Child, signals: Signals, *, deadline: float = STOP_DEADLINE) -> None:
    signals.ending()
    if child.process.alive():
        say(f"Stopping the {child.name}… (Ctrl-C again ends it at once)")
    child.end(hurry=signals.impatient, deadline=deadline)


def _answers(url: str) -> bool:
    """Any HTTP answer will do: the app also says there that its engine is away."""
    try:
        httpx.get(url, timeout=5.0, trust_env=False)
    except httpx.HTTPError:
        return False
    return True


def _make_way(settings: Settings, part: str) -> None:
    """Refuse a second start; end the workers that a server of ours left behind when it crashed."""
    process = read_pid_file(_pid_file(settings, part))
    if process is None:
        return
    if process.alive():
        raise LaunchError(
            f"The {part} is already running, pid {process.pid}.",
            "Stop it first: ./start.sh stop.",
            exit_code=ALREADY_RUNNING,
        )
    stop(process)


# -- stop, status ------------------------------------------------------------


def stop_all(settings: Settings) -> int:
    """End supervisors, then whatever they or a detached start left behind. Nothing else is ever ended."""
    supervisors = {part: read_pid_file(_lock_file(settings, part)) for part in _PARTS["up"]}
    children = {part: read_pid_file(_pid_file(settings, part)) for part in _PARTS["up"]}
    found = [
        part
        for part in _PARTS["up"]
        if ((who := supervisors[part]) and who.alive()) or ((child := children[part]) and child.members())
    ]
    for part in found:
        if supervisor := supervisors[part]:
            ask_to_end(supervisor, deadline=_app_deadline(settings) + STOP_DEADLINE + 5)
        if child := children[part]:
            stop(child, deadline=_app_deadline(settings) if part == "app" else STOP_DEADLINE)
    for part in _PARTS["up"]:
        _pid_file(settings, part).unlink(missing_ok=True)
    settings.manifest_file.unlink(missing_ok=True)
    say(f"Stopped: {', '.join(found)}." if found else "Nothing was running.")
    return 0


def status(settings: Settings) -> int:
    """Describe engine and app; the code is the engine's, or the app's where no engine is ours."""
    engine_code, engine = _engine_status(settings)
    app_code, app = _app_status(settings)
    print(f"engine: {engine}\napp: {app}")
    return app_code if settings.engine == "external" else engine_code


def _engine_status(settings: Settings) -> tuple[int, str]:
    if settings.engine == "external":
        return READY, f"external, {', '.join(settings.urls())}"
    process = read_pid_file(_pid_file(settings, "engine"))
    if process is None:
        return NOT_RUNNING, "not running"
    lines = tail(settings.log_file, 200)
    if not process.alive():
        last = "".join(lines[-1:])
        return NOT_RUNNING, f"dead (it was pid {process.pid}); {settings.log_file} ends: {last}"
    manifest = read_manifest(settings.manifest_file)
    if manifest is not None and manifest.pid == process.pid and is_healthy(manifest.url):
        facts = manifest.fingerprint
        return READY, f"ready, pid {process.pid}, {facts.model} ({facts.profile}) at {manifest.url}"
    return LOADING, f"{PHASE_WORDS[phase_of(lines).key]}, pid {process.pid}"


def _app_status(settings: Settings) -> tuple[int, str]:
    process = read_pid_file(_pid_file(settings, "app"))
    if process is None or not process.alive():
        return NOT_RUNNING, "not running"
    url = f"http://{preflight.reachable(settings.host)}:{settings.app_port}"
    if _answers(f"{url}/healthz"):
        return READY, f"serving, pid {process.pid}, at {url}"
    return LOADING, f"starting, pid {process.pid}"


def _pid_file(settings: Settings, part: str) -> Path:
    return settings.run_dir / f"{part}.pid"


def _lock_file(settings: Settings, part: str) -> Path:
    return settings.run_dir / f"{part}.lock"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="start.sh")
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("up", "engine", "app"):
        commands.add_parser(name).add_argument("--detach", action="store_true")
    for name in ("install", "stop", "status", "logs"):
        commands.add_parser(name)
    return parser


if __name__ == "__main__":
    sys.exit(main())
