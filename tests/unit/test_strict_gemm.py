"""What a strict launch may be called, by what its plugin found; and the plugin's installation."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from llm_backend.engine import install, strict_gemm
from llm_backend.engine.gpu import Gpu
from llm_backend.engine.identity import fingerprint
from llm_backend.engine.profiles import LaunchValues, Profile, environment, rows
from llm_backend.engine.strict_gemm import SelfCheck, read_self_check, shortcomings
from llm_backend.receipt import EngineFingerprint

VALUES = LaunchValues(seed=42, max_model_len=32768, compute_capability=9)
H200 = Gpu("NVIDIA H200", 140 << 30, 139 << 30, (9, 0), "580.159.03")
PROVEN = SelfCheck(linear="cublas", top_p_pinned=True)
SLOWER = SelfCheck(linear="triton", top_p_pinned=True)
LEAKING = SelfCheck(linear="cublas", top_p_pinned=False)


def engine(found: SelfCheck | None, profile: Profile = "strict") -> EngineFingerprint:
    table = rows(profile, "cuda", VALUES)
    return fingerprint(
        model="m",
        revision=None,
        device="cuda",
        profile=profile,
        table=table,
        environ=environment(table),
        gpus=(H200,),
        lock_digest=None,
        probe={},
        log=(),
        self_check=found,
    )


@pytest.mark.parametrize(
    ("found", "name", "said"),
    [
        (PROVEN, "strict", []),
        (SLOWER, "strict", ["stay on vLLM's Triton kernel"]),
        (SelfCheck(linear="cublas", top_p_pinned=True, attention="segments"), "strict", []),
        (SelfCheck(linear="cublas", top_p_pinned=True, attention="vllm"), "strict", ["Attention stays"]),
        (LEAKING, "strict-unproven", ["could not pin top-p"]),
        (SelfCheck(linear="triton", top_p_pinned=False), "strict-unproven", ["Triton kernel", "top-p"]),
        (SelfCheck(), "strict-unproven", ["left no word"]),
        (None, "strict-unproven", ["left no word"]),
    ],
)
def test_an_engine_is_called_strict_only_when_its_self_check_says_so(
    found: SelfCheck | None, name: str, said: list[str]
) -> None:
    made = engine(found)
    assert made.profile == name
    sentences = shortcomings(made)
    assert len(sentences) == len(said)
    assert all(part in sentence for part, sentence in zip(said, sentences, strict=True))


def test_the_fast_profile_promises_nothing_and_lacks_nothing() -> None:
    made = engine(None, "fast")
    assert (made.profile, shortcomings(made)) == ("fast", ())


def test_what_the_check_found_is_in_the_fingerprint_with_the_variable_that_asked_for_it() -> None:
    made = engine(PROVEN)
    assert (made.linear_kernel, made.top_p_pinned) == ("cublas", True)
    assert made.env["ENCORE_STRICT_GEMM"] == "cublas"
    assert len({engine(found).digest for found in (PROVEN, SLOWER, LEAKING, None)}) == 4


@pytest.mark.parametrize("written", [None, "", "{", '{"linear": "mkl"}'])
def test_a_missing_or_broken_report_is_no_word(tmp_path: Path, written: str | None) -> None:
    report = tmp_path / "strict_gemm.json"
    if written is not None:
        report.write_text(written)
    assert read_self_check(report) is None


def test_the_plugins_report_is_read_with_whatever_else_it_lists(tmp_path: Path) -> None:
    report = tmp_path / "strict_gemm.json"
    report.write_text(json.dumps({"linear": "cublas", "top_p_pinned": True, "proofs": [{"limit": 8192}]}))
    assert read_self_check(report) == PROVEN


def test_an_environment_without_the_plugin_is_seen() -> None:
    assert not strict_gemm.is_installed(Path(sys.executable))


class TestInstall:
    @pytest.fixture
    def root(self, tmp_path: Path) -> Path:
        source = tmp_path / "plugins" / "strict_gemm"
        (source / "encore_strict_gemm").mkdir(parents=True)
        (source / "pyproject.toml").write_text("[project]\n")
        (source / "encore_strict_gemm" / "__init__.py").write_text("")
        (tmp_path / ".venv-engine" / "bin").mkdir(parents=True)
        return tmp_path

    @pytest.fixture
    def steps(self, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
        """Commands that would have run; building makes a wheel."""
        seen: list[list[str]] = []

        def run_step(argv: list[str], log: Path) -> None:
            seen.append(argv)
            if "wheel" in argv:
                (Path(argv[argv.index("--wheel-dir") + 1]) / "encore_strict_gemm-0-py3-none-any.whl").touch()

        monkeypatch.setattr(install, "run_step", run_step)
        return seen

    def ensure(self, root: Path) -> list[str]:
        said: list[str] = []
        interpreter = root / ".venv-engine" / "bin" / "python"
        install.ensure_plugin(root, interpreter, root / "install.log", said.append)
        return said

    def test_it_is_installed_once_and_again_after_a_change(self, root: Path, steps: list[Any]) -> None:
        assert len(self.ensure(root)) == 1
        assert self.ensure(root) == []
        assert len(steps) == 2
        (root / "plugins" / "strict_gemm" / "encore_strict_gemm" / "__init__.py").write_text("x = 1\n")
        assert len(self.ensure(root)) == 1
        assert len(steps) == 4

    def test_nothing_is_fetched(self, root: Path, steps: list[list[str]]) -> None:
        self.ensure(root)
        build, put = steps
        assert build[0] == sys.executable, "the app's environment has the build backend"
        assert put[0] == str(root / ".venv-engine" / "bin" / "python")
        assert all({"--no-index", "--no-deps"} <= set(step) for step in steps)

    def test_a_broken_off_installation_is_started_over(
        self, root: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fail(argv: list[str], log: Path) -> None:
            raise OSError("disk full")

        monkeypatch.setattr(install, "run_step", fail)
        with pytest.raises(OSError, match="disk full"):
            self.ensure(root)
        assert not list((root / ".venv-engine").glob(".encore*"))


def test_the_wheel_of_this_checkout_installs_and_registers_with_vllm(tmp_path: Path) -> None:
    """The real build and the real installation, offline, into an environment that has nothing."""
    root = Path(__file__).resolve().parents[2]
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "engine"], check=True)
    interpreter = tmp_path / "engine" / "bin" / "python"
    install.ensure_plugin(root, interpreter, tmp_path / "install.log", lambda line: None)
    assert strict_gemm.is_installed(interpreter)
    look = "from importlib.metadata import entry_points as e; print(*e(group='vllm.general_plugins'))"
    found = subprocess.run([interpreter, "-c", look], capture_output=True, text=True, check=True).stdout
    assert "encore_strict_gemm.plugin:register" in found
