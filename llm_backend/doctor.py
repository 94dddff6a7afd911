"""What is installed, what runs, with which flags and why: the facts behind `encore doctor`."""

from __future__ import annotations

import json
import platform
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

from llm_backend import render
from llm_backend.config import Settings
from llm_backend.engine.client import EngineClient, EngineState
from llm_backend.engine.profiles import PROFILES, Row
from llm_backend.errors import EngineError
from llm_backend.receipt import EngineFingerprint

PACKAGES = ("encore-chat", "chainlit", "openai", "sqlalchemy", "rapidfuzz", "pydantic")


@dataclass(frozen=True, slots=True)
class Report:
    """One look at an installation; `ready` is whether a question could be asked now."""

    python: str
    packages: dict[str, str | None]
    """None: not installed."""
    engine_url: str
    state: EngineState
    engine: EngineFingerprint | None
    flags: tuple[Row, ...]
    """The profile's rows as launched; empty for an engine Encore did not start."""
    database: str

    @property
    def ready(self) -> bool:
        return self.state.kind == "ready"

    def to_json(self) -> str:
        document = {
            "python": self.python,
            "packages": self.packages,
            "engine_url": self.engine_url,
            "state": {"kind": self.state.kind, "detail": self.state.detail},
            "engine": self.engine.model_dump(mode="json") if self.engine else None,
            "fingerprint": self.engine.digest if self.engine else None,
            "flags": [
                {"name": row.name, "value": row.value, "why": row.why, "source": row.source}
                for row in self.flags
            ],
            "database": self.database,
        }
        return json.dumps(document, ensure_ascii=False, indent=2, allow_nan=False)

    def to_text(self) -> str:
        lines = [f"Python {self.python}"]
        lines += [f"{name} {found or 'not installed'}" for name, found in self.packages.items()]
        lines += [f"database {self.database}", ""]
        lines.append(f"engine at {self.engine_url}: {self.state.kind} {self.state.detail}".rstrip())
        if self.engine is not None:
            lines += [render.fingerprint_text(self.engine), ""]
        if self.flags:
            lines.append(f"profile {self.engine.profile if self.engine else ''}: what was set, and why")
            lines += [f"  {row.name} {row.value or ''}".rstrip() + f"\n      {row.why}" for row in self.flags]
        elif self.engine is not None:
            lines.append("Encore did not start this engine: its flags are unknown.")
        return "\n".join(lines)


async def examine(settings: Settings, engine: EngineClient) -> Report:
    """Look at the environment and at the engine; never raises for an engine that is away."""
    state = await engine.state()
    try:
        fingerprint = await engine.identity() if state.kind == "ready" else None
    except EngineError as error:
        state, fingerprint = EngineState("unreachable", error.problem), None
    return Report(
        python=platform.python_version(),
        packages={name: _version(name) for name in PACKAGES},
        engine_url=engine.url,
        state=state,
        engine=fingerprint,
        flags=launched_rows(fingerprint) if fingerprint else (),
        # A PostgreSQL URL may carry a password.
        database=settings.database().split("@")[-1],
    )


def launched_rows(engine: EngineFingerprint) -> tuple[Row, ...]:
    """The profile's rows with the values this engine was really started with; empty when unknown."""
    if engine.profile not in PROFILES:
        return ()
    rows: list[Row] = []
    for entry in PROFILES[engine.profile]:
        if entry.name in engine.argv:
            after = engine.argv[engine.argv.index(entry.name) + 1 :][:1]
            value = after[0] if entry.value is not None and after else None
        elif entry.name in engine.env:
            value = engine.env[entry.name]
        else:
            continue
        if entry.value is None or "{" in entry.value or entry.value == value:
            rows.append(Row(entry.name, value, entry.why, entry.source))
    return tuple(rows)


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
