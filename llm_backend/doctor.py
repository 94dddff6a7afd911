"""What is installed, what runs, with which flags and why: the facts behind `encore doctor`."""

from __future__ import annotations

import json
import platform
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

from llm_backend import render
from llm_backend.bench import prices
from llm_backend.config import Settings
from llm_backend.engine.client import EngineClient, EngineState
from llm_backend.engine.profiles import Row, explain
from llm_backend.engine.strict_gemm import shortcomings
from llm_backend.errors import EngineError
from llm_backend.price_phrases import profile_price
from llm_backend.receipt import EngineFingerprint
from llm_backend.strings import text

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
    price: str | None = None
    """What the running profile was measured to cost on this machine."""
    shortcomings: tuple[str, ...] = ()
    """What a strict engine did not get, one sentence each."""

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
            "price": self.price,
            "shortcomings": list(self.shortcomings),
        }
        return json.dumps(document, ensure_ascii=False, indent=2, allow_nan=False)

    def to_text(self) -> str:
        lines = [f"Python {self.python}"]
        lines += [f"{name} {found or 'not installed'}" for name, found in self.packages.items()]
        lines += [f"database {self.database}", ""]
        lines.append(f"engine at {self.engine_url}: {self.state.kind} {self.state.detail}".rstrip())
        if self.engine is not None:
            lines += [render.fingerprint_text(self.engine), ""]
        if self.shortcomings:
            lines += [*self.shortcomings, ""]
        if self.flags:
            lines.append(f"profile {self.engine.profile if self.engine else ''}: what was set, and why")
            lines += [f"  {row.name} {row.value or ''}".rstrip() + f"\n      {row.why}" for row in self.flags]
            lines.append(text("bench.doctor", price=self.price) if self.price else text("bench.unmeasured"))
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
        flags=explain(fingerprint.argv, fingerprint.env) if fingerprint else (),
        # A PostgreSQL URL may carry a password.
        database=settings.database().split("@")[-1],
        price=profile_price(prices(settings), fingerprint) if fingerprint else None,
        shortcomings=shortcomings(fingerprint) if fingerprint else (),
    )


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
