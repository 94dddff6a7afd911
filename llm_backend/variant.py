"""An engine of Encore's own with one thing changed, beside whatever else is running, and gone afterwards.

It has its own port, folder and log. `engine_variant` starts nothing that it does not end: at the end of
the block, when the task is cancelled, and, through its guard, when this process dies. It ends nothing
that it did not start.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import tempfile
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from llm_backend.config import ROOT, Settings
from llm_backend.engine import preflight
from llm_backend.engine.client import EngineClient
from llm_backend.engine.gpu import memory_of
from llm_backend.engine.guard import watch
from llm_backend.engine.launch import LaunchPlan, RunningEngine, launch, wait_until_ready
from llm_backend.engine.manifest import Manifest
from llm_backend.engine.phase import Phase
from llm_backend.engine.prepare import prepare
from llm_backend.engine.process import free_port, peak_memory
from llm_backend.engine.profiles import Profile, altered, environment
from llm_backend.errors import LaunchError

HOST = "127.0.0.1"

OnPhase = Callable[[Phase, float], None]
"""Called with the phase and the seconds since the start."""

Say = Callable[[str], None]

_GIB = 1024**3


@dataclass(frozen=True, slots=True)
class Variant:
    """A profile with other flags (`--…`) and variables than its own."""

    name: str
    """In the engine's folder, and for people: `strict`, `fast, eager`."""
    profile: Profile
    changes: tuple[tuple[str, str | None], ...] = ()
    """Name and value, as in a profile's table; None for a bare flag."""
    without: frozenset[str] = frozenset()
    """Rows of the profile that are left out."""


@dataclass(frozen=True, slots=True)
class OwnedEngine:
    """A variant that is ready for requests."""

    variant: Variant
    plan: LaunchPlan
    client: EngineClient
    manifest: Manifest
    start_seconds: float
    """From the process's start to its first answer."""
    running: RunningEngine

    @property
    def memory_bytes(self) -> int | None:
        """On a CPU the most its processes held, on a GPU what they hold now; None where nobody tells."""
        pids = self.running.child.process.members()
        return memory_of(pids) if self.plan.device == "cuda" else peak_memory(pids)


@asynccontextmanager
async def engine_variant(
    settings: Settings, variant: Variant, *, on_phase: OnPhase | None = None, say: Say = lambda _: None
) -> AsyncIterator[OwnedEngine]:
    """Start `variant`, and end it with the block.

    Raises `LaunchError` when it must not start (no room beside what is running), dies, or is never ready;
    its log is then kept. `say` is told when an engine has to be installed first.
    """
    folder = await asyncio.to_thread(_own_folder, settings, variant)
    plan = await asyncio.to_thread(plan_variant, settings, variant, folder, say)
    # Not in a thread: between the start and the `try` nothing can cancel this task.
    running = launch(
        plan,
        inherited=os.environ,
        log=folder / "llm.log",
        log_max_mb=settings.log_max_mb,
        cwd=ROOT,
        pid_file=folder / "engine.pid",
    )
    guard: subprocess.Popen[bytes] | None = None
    waiting: asyncio.Task[Manifest] | None = None
    stopping, failed = threading.Event(), False
    try:
        guard = watch(running.child.process)
        waiting = asyncio.create_task(_ready(settings, running, folder, stopping, on_phase))
        manifest = await asyncio.shield(waiting)
        seconds = running.child.seconds()
        async with EngineClient(
            plan.url,
            api_key=plan.api_key,
            manifest_file=folder / "manifest.json",
            stall_timeout=settings.stall_timeout,
        ) as client:
            yield OwnedEngine(variant, plan, client, manifest, seconds, running)
    except LaunchError:
        failed = True
        raise
    finally:
        stopping.set()
        try:
            await _to_its_end(lambda: _end(running, guard))
        finally:
            if waiting is not None:  # without its engine it gives up by itself
                await asyncio.wait({waiting})
                _ = waiting.cancelled() or waiting.exception()
            if not failed:
                shutil.rmtree(folder, ignore_errors=True)


def plan_variant(settings: Settings, variant: Variant, folder: Path, say: Say) -> LaunchPlan:
    """What would be started; raises `LaunchError` when there is no room for it."""
    own = settings.model_copy(
        update={
            "profile": variant.profile,
            "engine_port": free_port(HOST),
            "run_dir": folder,
            "log_file": folder / "llm.log",
        }
    )
    plan = prepare(own, host=HOST, environ=os.environ, say=say)
    plan = replace(plan, table=altered(plan.table, dict(variant.changes), variant.without))
    if plan.device == "cpu":
        cache = int(environment(plan.table).get("VLLM_CPU_KVCACHE_SPACE", 0)) * _GIB
        preflight.check_memory(plan.model.folder, cache, preflight.available_memory())
    return plan


class _Stopped(Exception):
    """Nobody waits for this engine any more."""


async def _ready(
    settings: Settings,
    running: RunningEngine,
    folder: Path,
    stopping: threading.Event,
    on_phase: OnPhase | None,
) -> Manifest:
    loop = asyncio.get_running_loop()

    def look(phase: Phase, seconds: float) -> None:
        if stopping.is_set():
            raise _Stopped
        if on_phase is not None:
            loop.call_soon_threadsafe(on_phase, phase, seconds)

    return await asyncio.to_thread(
        wait_until_ready,
        running,
        manifest_file=folder / "manifest.json",
        digest_cache=settings.data_dir / "digests.json",
        progress=look,
    )


def _end(running: RunningEngine, guard: subprocess.Popen[bytes] | None) -> None:
    running.child.end()
    if guard is not None:
        assert guard.stdin is not None
        guard.stdin.close()
        guard.wait()


async def _to_its_end(work: Callable[[], object]) -> None:
    """Do `work` in a thread and wait for it, also when this task is cancelled meanwhile."""
    task = asyncio.create_task(asyncio.to_thread(work))
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait({task})
        raise


def _own_folder(settings: Settings, variant: Variant) -> Path:
    parent = settings.run_dir / "own"
    try:
        parent.mkdir(parents=True, exist_ok=True)
        prefix = "".join(letter if letter.isalnum() else "-" for letter in variant.name)
        return Path(tempfile.mkdtemp(prefix=f"{prefix}-", dir=parent))
    except OSError as error:
        raise LaunchError(
            f"No folder can be made in {parent}: {error.strerror}.",
            "Correct its permissions, or set ENCORE_RUN_DIR to another folder.",
        ) from None
