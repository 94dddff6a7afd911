"""From settings to a `LaunchPlan`: device, environment, model, profile, and every check before a start.

The cheap checks come first: a taken port or an unwritable log is reported before anything is installed.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from llm_backend.config import ROOT, Settings
from llm_backend.engine import preflight, strict_gemm
from llm_backend.engine.embedded import ensure_embedded_model
from llm_backend.engine.gpu import Gpu, usable_gpus
from llm_backend.engine.install import Say, ensure_engine, lock_of
from llm_backend.engine.launch import LaunchPlan
from llm_backend.engine.model import DEFAULT_CUDA_MODEL, Model, check_folder, find_model
from llm_backend.engine.profiles import Device, LaunchValues, rows
from llm_backend.errors import LaunchError

DEFAULT_CONTEXT: dict[Device, int] = {"cuda": 32768, "cpu": 4096}
"""Tokens, unless ENCORE_MAX_MODEL_LEN says otherwise."""

MAX_ENGINE_SEED = 2**32 - 1
"""vLLM hands `--seed` to NumPy, which takes 32 bits without sign (vllm/utils/torch_utils.py)."""


def prepare(settings: Settings, *, host: str, environ: Mapping[str, str], say: Say) -> LaunchPlan:
    """Check, install what is missing, and return what to start; raises `LaunchError` in one sentence."""
    preflight.check_exposure(host, settings.api_key is not None)
    preflight.check_port(host, settings.engine_port, variable="ENCORE_ENGINE_PORT")
    preflight.check_log(settings.log_file)
    check_seed(settings.seed)
    gpus = usable_gpus(environ)
    device = choose_device(settings, gpus)
    context = settings.max_model_len or DEFAULT_CONTEXT[device]
    found = chosen_model(settings, device, environ)
    if found is not None and found.folder is None:
        preflight.check_hub(found.name, environ)
    if device == "cuda":
        folder = found.folder if found else None
        preflight.check_gpu(gpus, folder, context, settings.gpu_memory_utilization)
    elif settings.engine_python is None:
        preflight.check_cpu_libraries()
    interpreter = engine_interpreter(settings, device, say)
    model = found or embedded_model(settings, interpreter, say)
    values = launch_values(settings, device, gpus)
    table = rows(settings.profile, device, values)
    checks_itself = strict_gemm.asked_for(table)
    if checks_itself and not strict_gemm.is_installed(interpreter):
        say(strict_gemm.MISSING)
    return LaunchPlan(
        interpreter=interpreter,
        device=device,
        profile=settings.profile,
        model=model,
        table=table,
        gpus=gpus if device == "cuda" else (),
        host=host,
        port=settings.engine_port,
        lock=None if settings.engine_python else lock_of(ROOT, device),
        api_key=settings.api_key.get_secret_value() if settings.api_key else None,
        self_check=settings.run_dir.resolve() / "strict_gemm.json" if checks_itself else None,
    )


def launch_values(settings: Settings, device: Device, gpus: tuple[Gpu, ...]) -> LaunchValues:
    """What fills in a profile's table on this machine."""
    return LaunchValues(
        seed=settings.seed,
        max_model_len=settings.max_model_len or DEFAULT_CONTEXT[device],
        gpu_memory_utilization=settings.gpu_memory_utilization,
        cores=len(os.sched_getaffinity(0)) if device == "cpu" else None,
        compute_capability=gpus[0].capability[0] if device == "cuda" and gpus else None,
    )


def install(settings: Settings, *, environ: Mapping[str, str], say: Say) -> None:
    """Make the engine's environment and the embedded model, and start nothing."""
    device = choose_device(settings, usable_gpus(environ))
    interpreter = engine_interpreter(settings, device, say)
    if chosen_model(settings, device, environ) is None:
        embedded_model(settings, interpreter, say)


def choose_device(settings: Settings, gpus: tuple[Gpu, ...]) -> Device:
    """`auto` is cuda when there is a GPU that may be used, else cpu."""
    if settings.engine == "auto":
        return "cuda" if gpus else "cpu"
    if settings.engine == "external":
        raise LaunchError("ENCORE_ENGINE=external starts no engine.", "Use ./start.sh or ./start.sh app.")
    return settings.engine


def check_seed(seed: int) -> None:
    """Refuse a seed an engine cannot start with; a request's own seed may be larger."""
    if not 0 <= seed <= MAX_ENGINE_SEED:
        raise LaunchError(
            f"ENCORE_SEED={seed} cannot be an engine's seed: allowed is 0 to {MAX_ENGINE_SEED:,}.",
            "Larger seeds can be set per chat, in its settings.",
        )


def chosen_model(settings: Settings, device: Device, environ: Mapping[str, str]) -> Model | None:
    """The model that was asked for, or a GPU's default; None for the embedded one."""
    if settings.model is None and device == "cpu":
        return None
    wanted = settings.model or DEFAULT_CUDA_MODEL
    return find_model(wanted, settings.model_revision, root=ROOT, environ=environ)


def embedded_model(settings: Settings, interpreter: Path, say: Say) -> Model:
    """The embedded model, made if it is not there yet."""
    folder = ensure_embedded_model(ROOT, settings.models_dir, interpreter, install_log(settings), say)
    return Model(folder.name, check_folder(folder))


def engine_interpreter(settings: Settings, device: Device, say: Say) -> Path:
    """The deployer's own interpreter, or the one of `.venv-engine`, installed if it is not there yet."""
    if settings.engine_python is None:
        return ensure_engine(ROOT, device, install_log(settings), say)
    interpreter = ROOT / settings.engine_python.expanduser()
    if not os.access(interpreter, os.X_OK) or interpreter.is_dir():
        raise LaunchError(
            f"ENCORE_ENGINE_PYTHON={settings.engine_python} is not a program that can be run.",
            "Give the python of the environment where vLLM is installed.",
        )
    return interpreter


def install_log(settings: Settings) -> Path:
    """Where pip and the model conversion write."""
    return settings.run_dir / "install.log"
