"""Settings from `ENCORE_*` variables and `.env`: the only place that reads the environment."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, SecretStr, ValidationError, ValidationInfo, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from llm_backend.errors import SettingsError

ROOT = Path(__file__).resolve().parent.parent

SEED_MIN, SEED_MAX = -(2**63), 2**63 - 1
"""vLLM bounds a request's seed to int64 and reads -1 as "no seed" (vllm/sampling_params.py)."""


class Settings(BaseSettings):
    """What a deployer can set. Field names are the variables without `ENCORE_`, in lower case."""

    model_config = SettingsConfigDict(
        env_prefix="ENCORE_", env_file=ROOT / ".env", env_ignore_empty=True, extra="ignore"
    )

    engine: Literal["auto", "cuda", "cpu", "external"] = "auto"
    model: str | None = None
    model_revision: str | None = None
    profile: Literal["strict", "fast"] = "strict"
    seed: Annotated[int, Field(ge=SEED_MIN, le=SEED_MAX)] = 42
    max_model_len: Annotated[int, Field(ge=64)] | None = None
    engine_python: Path | None = None
    """Interpreter of a vLLM installed by the deployer; Encore then installs no engine of its own."""
    gpu_memory_utilization: Annotated[float, Field(gt=0, le=1)] = 0.9
    """Share of a GPU's memory that the engine claims."""
    host: str = "127.0.0.1"
    app_port: Annotated[int, Field(ge=1, le=65535)] = 8000
    engine_port: Annotated[int, Field(ge=1, le=65535)] = 8100
    engine_urls: Annotated[tuple[str, ...], NoDecode] = ()
    engine_manifests: Annotated[tuple[str, ...], NoDecode] = ()
    """Launch manifests of the engines in `engine_urls`, in their order; "" where there is none."""
    database_url: str | None = None
    api_key: SecretStr | None = None
    auth_secret: SecretStr | None = None
    users_file: Path | None = None
    """Who may log in to the chat; without one there is no login."""
    without_login: bool = False
    """Said by someone who wants the chat open to everybody who reaches ENCORE_HOST."""
    run_dir: Path = ROOT / ".run"
    """Where start.sh keeps pid files and the launch manifest."""
    data_dir: Path = ROOT / "data"
    models_dir: Path = ROOT / "models"
    log_file: Path = ROOT / "llm.log"
    app_log_file: Path = ROOT / "app.log"
    log_format: Literal["text", "json"] = "text"
    """How the app writes its own log; json is one object per line."""
    log_max_mb: Annotated[int, Field(ge=1)] = 64
    """Megabytes after which llm.log and app.log are put aside, while their servers run on."""
    stop_grace: Annotated[float, Field(ge=0, le=600)] = 10.0
    """Seconds that running answers get to finish when the app is asked to end."""
    root_path: str = ""
    """Where a proxy serves the chat: "/math" for https://school.example/math/."""
    stall_timeout: Annotated[float, Field(gt=0)] = 300.0
    """Seconds without a byte from a streaming engine before the run is marked interrupted."""

    @field_validator("engine_urls", mode="before")
    @classmethod
    def _split_urls(cls, value: object) -> object:
        if isinstance(value, str):
            return tuple(url.strip().rstrip("/") for url in value.split(",") if url.strip())
        return value

    @field_validator("root_path")
    @classmethod
    def _one_form(cls, value: str) -> str:
        path = value.strip("/")
        if path and not re.fullmatch(r"[A-Za-z0-9._~-]+(/[A-Za-z0-9._~-]+)*", path):
            raise ValueError("a path such as /math is wanted: letters, digits and . _ ~ - between slashes")
        return f"/{path}" if path else ""

    @field_validator("users_file")
    @classmethod
    def _from_root(cls, value: Path | None) -> Path | None:
        return None if value is None else ROOT / value

    @field_validator("engine_manifests", mode="before")
    @classmethod
    def _split_manifests(cls, value: object) -> object:
        return tuple(path.strip() for path in value.split(",")) if isinstance(value, str) else value

    @field_validator("engine_manifests")
    @classmethod
    def _one_per_engine(cls, value: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        engines = len(info.data.get("engine_urls", ()))
        if len(value) > engines:
            raise ValueError(f"{len(value)} manifests for {engines} engines in ENCORE_ENGINE_URLS")
        return value

    @field_validator("seed")
    @classmethod
    def _refuse_unset_seed(cls, value: int) -> int:
        if value == -1:
            raise ValueError("-1 means 'no seed' to vLLM, so nothing could be reproduced")
        return value

    def urls(self) -> tuple[str, ...]:
        """OpenAI-compatible base URLs without the trailing `/v1`, first one is the default."""
        given = tuple(url.removesuffix("/v1") for url in self.engine_urls)
        return given or (f"http://127.0.0.1:{self.engine_port}",)

    def assigned_manifest(self, url: str) -> Path | None:
        """The manifest that `engine_manifests` gives to the engine at `url`."""
        for engine, manifest in zip(self.urls(), self.engine_manifests, strict=False):
            if engine == url and manifest:
                return ROOT / manifest
        return None

    def database(self) -> str:
        """SQLAlchemy async URL; SQLite under `data_dir` unless set."""
        return self.database_url or f"sqlite+aiosqlite:///{self.data_dir / 'encore.db'}"

    @property
    def manifest_file(self) -> Path:
        """The launch manifest that `engine/probe.py` writes and the app joins with what the API tells."""
        return self.run_dir / "manifest.json"


def load_settings() -> Settings:
    """Read the environment; raises `SettingsError` naming the variable at fault."""
    try:
        return Settings()
    except ValidationError as error:
        first = error.errors()[0]
        name = "ENCORE_" + "_".join(str(part) for part in first["loc"]).upper()
        message = str(first["msg"]).removeprefix("Value error, ")
        raise SettingsError(
            f"{name}={first['input']!r} is not usable: {message}.",
            "Correct it in the environment or in .env (see .env.example).",
        ) from None
