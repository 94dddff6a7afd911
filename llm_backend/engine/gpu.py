"""Which device the engine will use, as `nvidia-smi` and the environment tell."""

from __future__ import annotations

import subprocess
from collections.abc import Collection, Mapping
from dataclasses import dataclass

_FIELDS = ("index", "uuid", "name", "memory.total", "memory.free", "compute_cap", "driver_version")
_MIB = 1024**2


@dataclass(frozen=True, slots=True)
class Gpu:
    """One NVIDIA GPU that the engine may use."""

    name: str
    total_bytes: int
    free_bytes: int
    capability: tuple[int, int]
    """Compute capability, e.g. (9, 0) for Hopper."""
    driver: str


def usable_gpus(environ: Mapping[str, str]) -> tuple[Gpu, ...]:
    """The GPUs that `CUDA_VISIBLE_DEVICES` leaves, in its order; empty without a working nvidia-smi."""
    try:
        listing = subprocess.run(
            ["nvidia-smi", f"--query-gpu={','.join(_FIELDS)}", "--format=csv,noheader,nounits"],
            capture_output=True,
            text=True,
            timeout=20,
            check=True,
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return ()
    return visible(parse_listing(listing), environ.get("CUDA_VISIBLE_DEVICES"))


def memory_of(pids: Collection[int]) -> int | None:
    """Bytes of GPU memory these processes hold; None where nvidia-smi does not know them (in containers)."""
    try:
        listing = subprocess.run(
            ["nvidia-smi", "--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits"],
            capture_output=True,
            text=True,
            timeout=20,
            check=True,
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    return memory_in(listing, pids)


def memory_in(listing: str, pids: Collection[int]) -> int | None:
    """The sum over those lines of nvidia-smi's CSV that name one of `pids`."""
    cells = [[cell.strip() for cell in line.split(",")] for line in listing.splitlines()]
    held = [int(row[1]) * _MIB for row in cells if len(row) == 2 and row[1].isdigit() and int(row[0]) in pids]
    return sum(held) if held else None


def parse_listing(listing: str) -> dict[str, Gpu]:
    """GPUs by index and by uuid, from nvidia-smi's CSV; a line it cannot read is no usable GPU."""
    gpus: dict[str, Gpu] = {}
    for line in listing.splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        try:
            index, uuid, name, total, free, capability, driver = cells
            major, minor = capability.split(".")
            gpu = Gpu(name, int(total) * _MIB, int(free) * _MIB, (int(major), int(minor)), driver)
        except ValueError:
            continue
        gpus[index] = gpus[uuid] = gpu
    return gpus


def visible(gpus: Mapping[str, Gpu], selection: str | None) -> tuple[Gpu, ...]:
    """Apply `CUDA_VISIBLE_DEVICES`: as in CUDA, the list ends at the first name that does not exist."""
    if selection is None:
        return tuple(gpu for key, gpu in gpus.items() if key.isdigit())
    chosen: list[Gpu] = []
    for name in (part.strip() for part in selection.split(",")):
        match = next((gpu for key, gpu in gpus.items() if _names(name, key)), None)
        if match is None:
            break
        chosen.append(match)
    return tuple(chosen)


def _names(name: str, key: str) -> bool:
    """CUDA takes an index, or any unambiguous beginning of a UUID."""
    return key == name or (name.startswith("GPU-") and key.startswith(name))
