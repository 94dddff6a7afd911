"""`encore verify` on a real vLLM server: `strict` passes what `fast` fails.

The same command, the same prompts, the same load. If `fast` ever passed here, the suite or the load
would be too weak to accept anything with.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from llm_backend.cli import main
from llm_backend.config import Settings

pytestmark = pytest.mark.engine


Verify = Callable[..., tuple[int, dict[str, Any]]]


@pytest.fixture
def verify(
    own_settings: Settings, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Verify:
    """`encore verify --quick` on a launch, as somebody beside its start.sh would call it."""

    def call(launch: tuple[str, Path], *argv: str) -> tuple[int, dict[str, Any]]:
        url, manifest = launch
        for name in ("engine", "engine_python", "models_dir", "data_dir", "log_file"):
            if value := getattr(own_settings, name):
                monkeypatch.setenv(f"ENCORE_{name.upper()}", str(value))
        monkeypatch.setenv("ENCORE_RUN_DIR", str(manifest.parent))
        monkeypatch.setenv("ENCORE_ENGINE_URLS", url)
        with pytest.raises(SystemExit) as exit_:
            main(["verify", "--quick", "--times", "1", "--format", "json", *argv])
        captured = capsys.readouterr()
        assert captured.out, captured.err
        return int(exit_.value.code or 0), json.loads(captured.out)

    return call


def outcomes(report: dict[str, Any], case: str | None = None) -> dict[str, str]:
    return {f["kind"]: f["outcome"] for f in report["findings"] if f["case"] == case}


class TestFast:
    def test_it_fails_under_load_where_it_forks_and_passes_alone(self, fast_launch, verify: Verify) -> None:
        code, report = verify(fast_launch, "--no-restart")
        assert code == 1
        assert report["counts"] == [0, 7], "chosen for a CPU"
        greedy = outcomes(report, "product-en/greedy")
        assert greedy == {"alone": "passed", "load": "failed", "instant": "passed"}
        (load,) = (
            f["step"] for f in report["findings"] if (f["kind"], f["case"]) == ("load", "product-en/greedy")
        )
        assert load["load"]["mean"] > 3.5, "it failed under a load that was there"
        engine = outcomes(report)
        assert engine["identity"] == "passed"
        assert engine["seed"] == "passed"
        assert engine["observer"] == "passed"
        assert engine["restart"] == "not_applicable"


class TestStrict:
    def test_it_passes_everything_and_the_same_again_after_a_restart(
        self, strict_launch, verify: Verify
    ) -> None:
        code, report = verify(strict_launch)
        assert (code, report["outcome"]) == (0, "passed"), outcomes(report)
        for way in ("greedy", "seeded"):
            assert set(outcomes(report, f"product-en/{way}").values()) == {"passed"}
        engine = outcomes(report)
        assert engine.pop("cache") == "not_applicable", "it is off"
        assert engine == dict.fromkeys(("seed", "observer", "cold", "identity"), "passed")
        cells = {(cell["neighbours"], cell["greedy"]): cell["outcome"] for cell in report["cells"]}
        assert len(cells) == 4
        assert set(cells.values()) == {"passed"}
