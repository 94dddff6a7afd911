"""Where the weights are: a folder, a snapshot in the hub's cache, or still on the hub."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from llm_backend.errors import LaunchError

DEFAULT_CUDA_MODEL = "microsoft/Phi-4-mini-reasoning"

_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
_WEIGHTS = ("*.safetensors", "*.bin", "*.pt")


@dataclass(frozen=True, slots=True)
class Model:
    """A model to serve."""

    name: str
    """The name the engine serves it under: the hub's, or the folder's. Never an absolute path, so that
    receipts made in two places agree."""
    folder: Path | None
    """Where config.json and the weights lie; None when vLLM has to download them."""
    revision: str | None = None
    """The hub's commit, where known."""

    @property
    def location(self) -> str:
        """What `--model` gets."""
        return str(self.folder or self.name)


def find_model(wanted: str, revision: str | None, *, root: Path, environ: Mapping[str, str]) -> Model:
    """Resolve `ENCORE_MODEL`; raises `LaunchError` when it is neither a model folder nor a hub name.

    Relative folders are taken from `root`. An existing folder wins over a hub name.
    """
    folder = root / Path(wanted).expanduser()
    if folder.is_dir():
        return Model(folder.resolve().name, check_folder(folder.resolve()))
    if not _HUB_NAME.fullmatch(wanted):
        raise LaunchError(
            f"Model folder {folder} was not found.",
            "Correct ENCORE_MODEL: a folder, or a hub name such as microsoft/Phi-4-mini-reasoning.",
        )
    model = locate(Model(wanted, None, revision), environ)
    if model.folder is None and environ.get("HF_HUB_OFFLINE") == "1":
        raise LaunchError(
            f"{wanted} is not in the hub cache ({_hub_cache(environ)}), "
            "and HF_HUB_OFFLINE=1 forbids fetching it.",
            "Unset HF_HUB_OFFLINE, or point ENCORE_MODEL at a folder with the weights.",
        )
    return model


def locate(model: Model, environ: Mapping[str, str]) -> Model:
    """The same model with its folder and commit, if it is complete in the hub's cache by now."""
    if model.folder is not None:
        return model
    snapshot = _cached_snapshot(_hub_cache(environ), model.name, model.revision)
    return Model(model.name, snapshot, snapshot.name) if snapshot else model


def check_folder(folder: Path) -> Path:
    """Return the folder; raises `LaunchError` naming what a model folder needs and this one lacks."""
    missing = []
    if not (folder / "config.json").is_file():
        missing.append("config.json")
    if not weight_files(folder):
        missing.append("weights (*.safetensors)")
    elif absent := _absent_shards(folder):
        missing.append(f"{absent[0]}, which its index lists")
    if missing:
        raise LaunchError(
            f"Model folder {folder} has no {' and no '.join(missing)}.",
            "Copy the complete model there, or correct ENCORE_MODEL.",
        )
    return folder


def weight_files(folder: Path) -> tuple[Path, ...]:
    """The weights vLLM would load: safetensors if there are any, else the older formats."""
    for pattern in _WEIGHTS:
        if found := sorted(folder.glob(pattern)):
            return tuple(found)
    return ()


def _absent_shards(folder: Path) -> list[str]:
    index = folder / "model.safetensors.index.json"
    if not index.is_file():
        return []
    shards = set(json.loads(index.read_text(encoding="utf-8")).get("weight_map", {}).values())
    return sorted(shard for shard in shards if not (folder / shard).is_file())


def _hub_cache(environ: Mapping[str, str]) -> Path:
    """The hub client's own rule for where its cache is (huggingface_hub/constants.py)."""
    if explicit := environ.get("HF_HUB_CACHE"):
        return Path(explicit).expanduser()
    home = environ.get("HF_HOME") or Path(environ.get("XDG_CACHE_HOME") or "~/.cache") / "huggingface"
    return Path(home).expanduser() / "hub"


def _cached_snapshot(cache: Path, name: str, revision: str | None) -> Path | None:
    """The complete snapshot of `name` in the cache, or None: a broken-off download is fetched on by vLLM."""
    repository = cache / f"models--{name.replace('/', '--')}"
    ref = repository / "refs" / (revision or "main")
    commit = ref.read_text(encoding="utf-8").strip() if ref.is_file() else revision
    if not commit:
        return None
    snapshot = repository / "snapshots" / commit
    try:
        return check_folder(snapshot)
    except LaunchError:
        return None
