"""The real start.sh, in a checkout whose path has spaces and Chinese characters, with a fake engine.

The engine is chosen the way a deployer would choose their own vLLM: `ENCORE_ENGINE_PYTHON`. What is
under test is starting, refusing, waiting, stopping; real vLLM is started by `tests/engine`.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from ports import free_port

ROOT = Path(__file__).resolve().parents[2]
FAKES = ROOT / "tests" / "fakes"
PATIENCE = 30.0
"""Seconds after which something that should have happened has not."""


class Checkout:
    """A copy of what start.sh needs, with ports and an environment of its own."""

    def __init__(self, root: Path, model: Path) -> None:
        self.root = root
        self.run_dir = root / ".run"
        self.log = root / "llm.log"
        self.engine_port, self.app_port = free_port(), free_port()
        inherited = {key: value for key, value in os.environ.items() if not key.startswith("ENCORE_")}
        self.environ = inherited | {
            "ENCORE_ENGINE": "cpu",
            "ENCORE_ENGINE_PYTHON": str(FAKES / "engine_python"),
            "ENCORE_MODEL": str(model),
            "ENCORE_ENGINE_PORT": str(self.engine_port),
            "ENCORE_APP_PORT": str(self.app_port),
        }

    def start_sh(
        self, *arguments: str, cwd: Path | None = None, **environ: str
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(self.root / "start.sh"), *arguments],
            cwd=cwd or self.root,
            env=self.environ | environ,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def foreground(self, *arguments: str, **environ: str) -> subprocess.Popen[bytes]:
        """start.sh as a terminal runs it: leader of its own process group."""
        with (self.root / "console").open("wb") as console:
            return subprocess.Popen(
                [str(self.root / "start.sh"), *arguments],
                cwd=self.root,
                env=self.environ | environ,
                stdout=console,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def console(self) -> str:
        return (self.root / "console").read_text(encoding="utf-8")

    def pid(self, part: str) -> int:
        return int(json.loads((self.run_dir / f"{part}.pid").read_text())["pid"])

    def processes(self) -> list[int]:
        """Live processes whose working folder is this checkout: start.sh, engine, workers, app."""
        return [int(entry.name) for entry in Path("/proc").glob("[0-9]*") if runs_in(entry, self.root)]


def runs_in(process: Path, folder: Path) -> bool:
    try:
        state = (process / "stat").read_text().rpartition(")")[2].split()[0]
        return state != "Z" and (process / "cwd").readlink() == folder
    except OSError:
        return False


def until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, f"gave up waiting until {what}"
        time.sleep(0.02)


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkout with the app installed, as start.sh would leave it, but in milliseconds."""
    root = tmp_path_factory.mktemp("带 空格") / "Encore 复现"
    root.mkdir()
    for name in ("start.sh", "pyproject.toml", "locks"):
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy2
        copy(ROOT / name, root / name)
    ignored = shutil.ignore_patterns("__pycache__", "ui")
    shutil.copytree(ROOT / "llm_backend", root / "llm_backend", ignore=ignored)
    (root / "llm_backend" / "ui").mkdir()
    shutil.copy2(FAKES / "app_main.py", root / "llm_backend" / "ui" / "__main__.py")
    return root


@pytest.fixture
def checkout(template: Path, tmp_path: Path) -> Iterator[Checkout]:
    root = tmp_path / "带 空格" / "Encore 复现"
    shutil.copytree(template, root)
    install_venv(root)
    model = root / "模型 folder" / "Phi-4-mini-reasoning"
    model.mkdir(parents=True)
    (model / "config.json").write_text("{}")
    (model / "model.safetensors").write_bytes(b"weights")
    checkout = Checkout(root, model)
    yield checkout
    checkout.start_sh("stop")
    for pid in checkout.processes():
        os.kill(pid, signal.SIGKILL)


def install_venv(root: Path) -> None:
    """An environment that borrows this one's packages, with the stamp start.sh itself would write."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", root / ".venv"], check=True)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    borrowed = root / ".venv" / "lib" / version / "site-packages" / "borrowed.pth"
    borrowed.write_text(sysconfig.get_path("purelib") + "\n")
    stamp = 'source "$1" && stamp_of app'
    written = subprocess.run(
        ["bash", "-c", stamp, "bash", root / "start.sh"], capture_output=True, text=True, check=True
    ).stdout
    (root / ".venv" / ".encore-stamp").write_text(written)


def test_first_start_second_start_stop(checkout: Checkout) -> None:
    """RC-39: the second is refused with the first one's pid, and its log is left alone."""
    first = checkout.start_sh("engine", "--detach")
    assert first.returncode == 0, first.stderr
    assert "Installing" not in first.stderr
    assert checkout.start_sh("status").returncode == 0
    written = checkout.log.read_text()

    second = checkout.start_sh("engine")
    assert second.returncode == 3
    assert f"already running, pid {checkout.pid('engine')}" in second.stderr
    assert checkout.log.read_text() == written, "the running engine's log was touched"

    assert checkout.start_sh("stop").returncode == 0
    assert checkout.processes() == []
    assert not (checkout.run_dir / "engine.pid").exists()
    gone = checkout.start_sh("status")
    assert gone.returncode == 2
    assert "engine: not running" in gone.stdout


def test_manifest_says_what_was_started(checkout: Checkout) -> None:
    """RC-08, RC-43: every fact that can change an answer is on record, and no secret is."""
    checkout.start_sh("engine", "--detach", VLLM_BATCH_INVARIANT="1", ENCORE_API_KEY="geheim")
    manifest = json.loads((checkout.run_dir / "manifest.json").read_text())
    facts = manifest["fingerprint"]
    assert manifest["pid"] == checkout.pid("engine")
    assert manifest["url"] == f"http://127.0.0.1:{checkout.engine_port}"
    assert (facts["model"], facts["profile"], facts["device"]) == ("Phi-4-mini-reasoning", "strict", "cpu")
    assert (facts["max_num_seqs"], facts["prefix_caching"]) == (1, False)
    assert facts["weights_digest"].startswith("sha256:")
    assert manifest["start_id"]
    assert (facts["dtype"], facts["tensor_parallel_size"]) == ("bfloat16", 1)
    assert "--max-num-seqs" in facts["argv"]
    assert facts["batch_invariant"] is False, "it kills a CPU engine at its first request"
    command = Path(f"/proc/{manifest['pid']}/cmdline").read_bytes()
    environ = Path(f"/proc/{manifest['pid']}/environ").read_bytes()
    assert b"VLLM_BATCH_INVARIANT" not in environ
    assert b"VLLM_API_KEY=geheim" in environ
    for place in (command, checkout.log.read_bytes(), json.dumps(manifest).encode()):
        assert b"geheim" not in place


@pytest.fixture
def gpu_path(checkout: Checkout, tmp_path: Path) -> str:
    """A PATH whose nvidia-smi lists one H200."""
    smi = tmp_path / "bin" / "nvidia-smi"
    smi.parent.mkdir()
    smi.write_text("#!/bin/sh\necho '0, GPU-1111, NVIDIA H200, 143771, 143000, 9.0, 580.159.03'\n")
    smi.chmod(0o755)
    return f"{smi.parent}{os.pathsep}{checkout.environ['PATH']}"


def test_a_gpu_gets_the_strict_profile_of_its_family(checkout: Checkout, gpu_path: str) -> None:
    """RC-10: with an explicit context, because Phi's default would be 4096 tokens."""
    done = checkout.start_sh("engine", "--detach", ENCORE_ENGINE="auto", PATH=gpu_path)
    assert done.returncode == 0, done.stderr
    facts = json.loads((checkout.run_dir / "manifest.json").read_text())["fingerprint"]
    assert (facts["device"], facts["device_names"]) == ("cuda", ["NVIDIA H200"])
    assert (facts["batch_invariant"], facts["enforce_eager"]) == (True, False)
    assert (facts["attention_backend"], facts["max_model_len"]) == ("TRITON_ATTN", 32768)
    environ = Path(f"/proc/{checkout.pid('engine')}/environ").read_bytes()
    assert b"VLLM_BATCH_INVARIANT=1" in environ
    assert (facts["profile"], facts["linear_kernel"], facts["top_p_pinned"]) == ("strict", "cublas", True)
    assert "no encore-strict-gemm" in done.stderr, "the fake engine's environment has no such package"


def test_a_strict_launch_that_fails_its_self_check_is_not_called_strict(
    checkout: Checkout, gpu_path: str
) -> None:
    found = '{"linear": "triton", "top_p_pinned": false}'
    done = checkout.start_sh(
        "engine", "--detach", ENCORE_ENGINE="cuda", PATH=gpu_path, FAKE_ENGINE_FINDS=found
    )
    assert done.returncode == 0, done.stderr
    facts = json.loads((checkout.run_dir / "manifest.json").read_text())["fingerprint"]
    assert (facts["profile"], facts["linear_kernel"], facts["top_p_pinned"]) == (
        "strict-unproven",
        "triton",
        False,
    )
    assert "refused cuBLAS" in done.stderr
    assert "could not pin top-p" in done.stderr
    assert "(strict-unproven)" in checkout.start_sh("status").stdout


def test_an_earlier_engines_self_check_says_nothing_about_this_one(checkout: Checkout, gpu_path: str) -> None:
    checkout.run_dir.mkdir()
    (checkout.run_dir / "strict_gemm.json").write_text('{"linear": "cublas", "top_p_pinned": true}')
    done = checkout.start_sh(
        "engine", "--detach", ENCORE_ENGINE="cuda", PATH=gpu_path, FAKE_ENGINE_FINDS="nothing"
    )
    assert done.returncode == 0, done.stderr
    facts = json.loads((checkout.run_dir / "manifest.json").read_text())["fingerprint"]
    assert facts["profile"] == "strict-unproven"
    assert "linear_kernel" not in facts, "unknown, and absent as in fingerprints older than the field"
    assert "left no word" in done.stderr


def test_settings_come_from_the_env_file_too(checkout: Checkout) -> None:
    (checkout.root / ".env").write_text("ENCORE_PROFILE=fast\n")
    checkout.start_sh("engine", "--detach")
    assert "(fast)" in checkout.start_sh("status").stdout


def test_a_models_own_sampling_defaults_are_switched_off(checkout: Checkout) -> None:
    """RC-06: generation_config.json beside the weights changes nothing."""
    folder = Path(checkout.environ["ENCORE_MODEL"])
    defaults = {"temperature": 0.8, "top_p": 0.95, "repetition_penalty": 1.07}
    (folder / "generation_config.json").write_text(json.dumps(defaults))
    assert checkout.start_sh("engine", "--detach").returncode == 0
    argv = Path(f"/proc/{checkout.pid('engine')}/cmdline").read_text().split("\0")
    assert argv[argv.index("--generation-config") + 1] == "vllm"


def test_a_changed_file_beside_the_same_weights_is_another_engine(checkout: Checkout) -> None:
    """RC-08: the same served name does not hide a changed tokenizer or config."""
    folder = Path(checkout.environ["ENCORE_MODEL"])
    (folder / "tokenizer.json").write_text("{}")
    seen, starts = [], []
    for changed in (None, "tokenizer.json", "config.json"):
        if changed:
            (folder / changed).write_text('{"changed": true}')
        assert checkout.start_sh("engine", "--detach").returncode == 0
        manifest = json.loads((checkout.run_dir / "manifest.json").read_text())
        seen.append(manifest["fingerprint"])
        starts.append(manifest["start_id"])
        checkout.start_sh("stop")
    first, tokenizer, config = seen
    assert first["model"] == tokenizer["model"] == config["model"]
    assert first["weights_digest"] == tokenizer["weights_digest"] == config["weights_digest"]
    assert first["tokenizer_digest"] != tokenizer["tokenizer_digest"] == config["tokenizer_digest"]
    assert first["config_digest"] == tokenizer["config_digest"] != config["config_digest"]
    assert len(set(starts)) == 3


def test_it_starts_from_another_folder_and_through_a_link(checkout: Checkout, tmp_path: Path) -> None:
    """RC-43"""
    link = tmp_path / "encore"
    link.symlink_to(checkout.root / "start.sh")
    done = subprocess.run([link, "status"], cwd="/", env=checkout.environ, capture_output=True, text=True)
    assert done.stdout.startswith("engine: not running")
    assert checkout.start_sh("engine", "--detach", cwd=Path("/")).returncode == 0


def test_an_earlier_log_is_kept(checkout: Checkout) -> None:
    """RC-43"""
    checkout.log.write_text("yesterday\n")
    checkout.start_sh("engine", "--detach")
    assert (checkout.root / "llm.log.1").read_text() == "yesterday\n"
    assert "yesterday" not in checkout.log.read_text()


# -- refusals, before anything is loaded -------------------------------------


@pytest.mark.parametrize("part", ["engine", "app"])
def test_a_taken_port_is_refused_with_its_holder(checkout: Checkout, part: str) -> None:
    """RC-39: before anything is loaded, and the holder lives on."""
    port = checkout.engine_port if part == "engine" else checkout.app_port
    server = subprocess.Popen(
        [sys.executable, "-m", "http.server", "--bind", "127.0.0.1", str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        until(lambda: is_open(port), "the other server listens")
        began = time.monotonic()
        done = checkout.start_sh(part)
        assert time.monotonic() - began < 5
        assert done.returncode == 2
        assert f"Port {port} on 127.0.0.1 is taken by pid {server.pid}" in done.stderr
        assert "http.server" in done.stderr
        assert server.poll() is None, "someone else's server was ended"
    finally:
        server.kill()
        server.wait()


def test_another_engine_on_the_port_is_never_taken_for_ours(checkout: Checkout) -> None:
    """RC-39: an engine somebody else started, with another model."""
    other = subprocess.Popen(
        [
            *(FAKES / "engine_python", "-m", "vllm.entrypoints.openai.api_server"),
            *("--model", "x", "--served-model-name", "theirs"),
            *("--host", "127.0.0.1", "--port", str(checkout.engine_port)),
        ],
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        until(lambda: is_open(checkout.engine_port), "the other engine listens")
        done = checkout.start_sh("engine")
        assert done.returncode == 2
        assert f"is taken by pid {other.pid}" in done.stderr
        assert other.poll() is None
    finally:
        os.killpg(other.pid, signal.SIGKILL)
        other.wait()


def is_open(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.mark.parametrize(
    ("environ", "sentence"),
    [
        ({"ENCORE_MODEL": "/nope/phi"}, "Model folder /nope/phi was not found."),
        ({"ENCORE_MODEL": "Phi-4-mini-reasoning"}, "Phi-4-mini-reasoning was not found."),
        ({"ENCORE_MODEL": ""}, "ENCORE_MODEL is set but empty."),
        (
            {"ENCORE_MODEL": "owner/nowhere", "HF_ENDPOINT": "http://127.0.0.1:9", "HF_HOME": "/nope"},
            "owner/nowhere is not on this machine, and the model hub http://127.0.0.1:9 does not answer.",
        ),
        (
            {"ENCORE_MODEL": "owner/nowhere", "HF_HUB_OFFLINE": "1", "HF_HOME": "/nope"},
            "owner/nowhere is not in the hub cache (/nope/hub)",
        ),
        ({"ENCORE_LOG_FILE": "/"}, "The log / is a folder."),
        ({"ENCORE_LOG_FILE": "/proc/llm.log"}, "The log /proc/llm.log cannot be written"),
        ({"ENCORE_LOG_FILE": "/dev/full"}, "The log /dev/full cannot be written: No space left on device."),
        ({"ENCORE_SEED": "-1"}, "ENCORE_SEED"),
        ({"ENCORE_SEED": "4294967296"}, "allowed is 0 to 4,294,967,295"),
        ({"ENCORE_ENGINE_PORT": "http"}, "ENCORE_ENGINE_PORT"),
        ({"ENCORE_ENGINE_PYTHON": "/nope/python"}, "is not a program that can be run"),
        ({"ENCORE_ENGINE": "cuda", "CUDA_VISIBLE_DEVICES": ""}, "no GPU that may be used"),
        ({"ENCORE_ENGINE": "external"}, "needs ENCORE_ENGINE_URLS"),
        ({"ENCORE_HOST": "0.0.0.0"}, "without a key"),
    ],
)
def test_what_cannot_work_is_refused_in_one_sentence(
    checkout: Checkout, environ: dict[str, str], sentence: str
) -> None:
    """RC-41 (models), RC-43 (logs), RC-42 (no GPU): before anything is started."""
    began = time.monotonic()
    done = checkout.start_sh("engine", **environ)
    assert time.monotonic() - began < 5
    assert done.returncode == 2
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr
    assert checkout.processes() == []


@pytest.mark.parametrize(
    ("gpu", "environ", "sentence"),
    [
        ("NVIDIA H200, 143771, 28754, 9.0", {}, "28.1 of 140.4 GiB free, and the engine would claim 126.4"),
        (
            "NVIDIA L4, 20316, 20244, 8.9",
            {"ENCORE_GPU_MEMORY_UTILIZATION": "0.999"},
            "19.8 of 19.8 GiB free, and the engine would claim 19.8",
        ),
        ("Tesla T4, 15360, 15000, 7.5", {}, "bfloat16 and batch invariance need 8.0 or newer"),
        ("NVIDIA H200, 143771, 143000, 9.0", {"CUDA_VISIBLE_DEVICES": ""}, "no GPU that may be used"),
        (None, {}, "nvidia-smi shows no GPU that may be used"),
    ],
    ids=["busy", "a little too small", "without bf16", "hidden GPU", "hidden nvidia-smi"],
)
def test_a_gpu_that_cannot_serve_is_one_sentence_and_nothing_is_started(
    checkout: Checkout, tmp_path: Path, gpu: str | None, environ: dict[str, str], sentence: str
) -> None:
    """RC-42: with free and needed memory, and what to change."""
    smi = tmp_path / "bin" / "nvidia-smi"
    smi.parent.mkdir()
    smi.write_text(f"#!/bin/sh\necho '0, GPU-1, {gpu}, 580.1'\n" if gpu else "#!/bin/sh\nexit 9\n")
    smi.chmod(0o755)
    path = f"{smi.parent}{os.pathsep}{checkout.environ['PATH']}"
    done = checkout.start_sh("engine", ENCORE_ENGINE="cuda", PATH=path, **environ)
    assert done.returncode == 2
    assert sentence in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert checkout.processes() == []


@pytest.mark.parametrize(
    ("present", "missing"),
    [
        ({}, "config.json and no weights"),
        ({"config.json": "{}"}, "has no weights"),
        ({"model.safetensors": ""}, "has no config.json"),
        (
            {
                "config.json": "{}",
                "model-00001-of-00002.safetensors": "",
                "model.safetensors.index.json": '{"weight_map": {"a": "model-00002-of-00002.safetensors"}}',
            },
            "has no model-00002-of-00002.safetensors",
        ),
    ],
)
def test_an_incomplete_model_folder_is_named(
    checkout: Checkout, present: dict[str, str], missing: str
) -> None:
    """RC-41: a path with spaces, and what is not in it."""
    folder = checkout.root / "half a model"
    folder.mkdir()
    for name, text in present.items():
        (folder / name).write_text(text)
    done = checkout.start_sh("engine", ENCORE_MODEL="half a model")
    assert done.returncode == 2
    assert str(folder) in done.stderr
    assert missing in done.stderr


@pytest.mark.parametrize(
    ("program", "sentence"),
    [
        (None, "Python was not found"),
        ("case $2 in *version_info*) exit 1;; esac; echo Python 3.9.2", "needs Python 3.11 or 3.12"),
        ("case $2 in *ensurepip*) exit 1;; esac", "apt install python3-venv"),
    ],
)
def test_a_changed_lock_reinstalls_and_needs_a_usable_python(
    checkout: Checkout, tmp_path: Path, program: str | None, sentence: str
) -> None:
    with (checkout.root / "locks" / "app.lock").open("a") as lock:
        lock.write("# changed\n")
    python = tmp_path / "python"
    if program is not None:
        python.write_text(f"#!/bin/sh\n{program}\n")
        python.chmod(0o755)
    done = checkout.start_sh("engine", ENCORE_PYTHON=str(python))
    assert done.returncode == 2
    assert sentence in done.stderr


def test_a_linked_environment_of_another_folder_is_refused_and_left_alone(checkout: Checkout) -> None:
    theirs = checkout.root.parent / "theirs"
    (checkout.root / ".venv").rename(theirs)
    (checkout.root / ".venv").symlink_to(theirs)
    (theirs / ".encore-stamp").write_text("another folder's")
    before = sorted(theirs.rglob("*"))
    refused = checkout.start_sh("engine")
    assert refused.returncode == 2
    assert ".venv is a symbolic link" in refused.stderr
    assert sorted(theirs.rglob("*")) == before


def test_help_names_every_command_and_needs_no_installation(checkout: Checkout) -> None:
    shutil.rmtree(checkout.root / ".venv")
    done = checkout.start_sh("--help")
    assert done.returncode == 0
    for command in ("engine", "app", "stop", "status", "logs", "install", "--detach"):
        assert f"\n  {command}" in done.stdout
    assert checkout.start_sh("status").returncode == 2
    assert checkout.start_sh("nonsense").returncode == 2


# -- loading -----------------------------------------------------------------


@pytest.mark.parametrize(("code", "lives"), [("7", "0"), ("1", "2")])
def test_a_dying_engine_shows_its_last_lines_and_its_exit_code(
    checkout: Checkout, code: str, lives: str
) -> None:
    """RC-40, RC-43: noticed at once; both streams in order, redrawn lines one by one."""
    began = time.monotonic()
    done = checkout.start_sh("engine", FAKE_ENGINE_EXIT=code, FAKE_ENGINE_LIVES=lives)
    assert time.monotonic() - began < float(lives) + 5
    assert done.returncode == int(code)
    assert f"exit code {code}" in done.stderr
    assert str(checkout.log) in done.stderr
    header, first, *_ = checkout.log.read_text().splitlines()[::2]
    assert re.fullmatch(r"Encore start \S+ at \d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00", header)
    assert re.match(r"INFO \d\d-\d\d \d\d:\d\d:\d\d ", first)
    order = ["Loading safetensors: 100%", "ValueError: no such weights", "last line on stdout"]
    places = [done.stderr.index(line) for line in order]
    assert places == sorted(places)
    assert checkout.processes() == []
    assert not (checkout.run_dir / "engine.pid").exists()


def test_a_log_that_is_a_folder_is_refused_where_it_is_kept_by_default(checkout: Checkout) -> None:
    """RC-43"""
    checkout.log.mkdir()
    done = checkout.start_sh("engine")
    assert done.returncode == 2
    assert f"The log {checkout.log} is a folder." in done.stderr


def test_loading_is_told_from_ready(checkout: Checkout) -> None:
    """RC-40: listening and answering 503 is not ready; the seconds so far are shown."""
    go = checkout.root / "go"
    start = checkout.foreground("engine", FAKE_ENGINE_HOLD=str(go))
    until(lambda: "almost ready" in checkout.console(), "the phase is shown")
    assert re.search(r"almost ready… \d+ s", checkout.console())
    loading = checkout.start_sh("status")
    assert loading.returncode == 1
    assert "engine: almost ready" in loading.stdout
    assert "Engine ready" not in checkout.console()
    go.touch()
    until(lambda: "Engine ready" in checkout.console(), "the engine is ready")
    assert checkout.start_sh("status").returncode == 0
    os.killpg(start.pid, signal.SIGINT)
    assert start.wait(PATIENCE) == 130


def test_another_model_on_the_port_is_not_ready(checkout: Checkout) -> None:
    """RC-39: readiness compares the served model's name."""
    done = checkout.start_sh("engine", FAKE_ENGINE_SERVES="somebody-elses")
    assert done.returncode == 2
    assert "serves somebody-elses, not Phi-4-mini-reasoning" in done.stderr
    assert checkout.processes() == []


def test_an_engine_that_fails_its_first_request_is_not_ready(checkout: Checkout) -> None:
    done = checkout.start_sh("engine", FAKE_ENGINE_SMOKE="500")
    assert done.returncode == 2
    assert "failed its first request" in done.stderr
    assert checkout.processes() == []


# -- ending ------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("moment", ["loading", "ready"])
def test_a_signal_ends_engine_and_app_and_leaves_nothing(
    checkout: Checkout, number: signal.Signals, moment: str
) -> None:
    """RC-44: Ctrl-C, TERM and HUP, while it loads and when it is ready."""
    hold = {"FAKE_ENGINE_HOLD": str(checkout.root / "never")} if moment == "loading" else {}
    start = checkout.foreground(**hold)
    mark = "almost ready" if moment == "loading" else "Open http://127.0.0.1:"
    until(lambda: mark in checkout.console(), f"it shows {mark}")
    assert len(checkout.processes()) >= 3, "supervisor, engine and its worker"
    # A terminal signals the whole group, kill(1) only the process.
    (os.killpg if number == signal.SIGINT else os.kill)(start.pid, number)
    assert start.wait(PATIENCE) == 128 + number
    assert checkout.processes() == []
    assert list(checkout.run_dir.glob("*.pid")) == []
    assert not (checkout.run_dir / "manifest.json").exists()


def test_closing_the_terminal_ends_everything_and_the_next_start_works(checkout: Checkout) -> None:
    """RC-44: a real terminal that goes away; what start.sh says then, nobody can read."""
    terminal, inside = os.openpty()
    start = subprocess.Popen(
        ["setsid", "--ctty", "--wait", str(checkout.root / "start.sh")],
        cwd=checkout.root,
        env=checkout.environ,
        stdin=inside,
        stdout=inside,
        stderr=inside,
    )
    os.close(inside)
    seen = b""
    while b"Open http" not in seen:
        seen += os.read(terminal, 4096)
    assert len(checkout.processes()) >= 4
    os.close(terminal)
    start.wait(PATIENCE)
    until(lambda: checkout.processes() == [], "everything has ended")
    assert list(checkout.run_dir.glob("*.pid")) == []
    assert checkout.start_sh("engine", "--detach").returncode == 0


def test_ctrl_c_twice_does_not_wait_for_a_stubborn_engine(checkout: Checkout) -> None:
    """RC-44"""
    start = checkout.foreground("engine", FAKE_ENGINE_STUBBORN="1")
    until(lambda: "Engine ready" in checkout.console(), "the engine is ready")
    os.killpg(start.pid, signal.SIGINT)
    until(lambda: "Stopping the engine" in checkout.console(), "it asks the engine to end")
    began = time.monotonic()
    os.killpg(start.pid, signal.SIGINT)
    assert start.wait(PATIENCE) == 130
    assert time.monotonic() - began < 10, "it waited for the deadline"
    assert checkout.processes() == []


def test_stop_ends_a_start_in_another_terminal(checkout: Checkout) -> None:
    start = checkout.foreground()
    until(lambda: "Open" in checkout.console(), "all is ready")
    stop = checkout.start_sh("stop")
    assert stop.returncode == 0
    assert "Stopped: engine, app." in stop.stderr
    assert start.wait(PATIENCE) == 143
    assert checkout.processes() == []


def test_an_engine_that_dies_later_takes_the_app_along(checkout: Checkout) -> None:
    start = checkout.foreground()
    until(lambda: "Open" in checkout.console(), "all is ready")
    os.kill(checkout.pid("engine"), signal.SIGKILL)
    assert start.wait(PATIENCE) == 128 + signal.SIGKILL
    assert "The engine was killed by signal 9" in checkout.console()
    assert checkout.processes() == [], "the engine's worker or the app was left"


def test_a_dead_detached_engine_is_called_dead(checkout: Checkout) -> None:
    checkout.start_sh("engine", "--detach")
    pid = checkout.pid("engine")
    os.kill(pid, signal.SIGKILL)
    done = checkout.start_sh("status")
    assert done.returncode == 2
    assert f"engine: dead (it was pid {pid})" in done.stdout
    checkout.start_sh("stop")
    assert checkout.processes() == [], "the dead engine's worker was left"


def test_a_new_start_ends_the_workers_a_crashed_engine_left(checkout: Checkout) -> None:
    """They would hold the GPU's memory, and the new engine would find none."""
    checkout.start_sh("engine", "--detach")
    os.kill(checkout.pid("engine"), signal.SIGKILL)
    left = checkout.processes()
    assert left, "the fake engine's worker should outlive it"
    assert checkout.start_sh("engine", "--detach").returncode == 0
    assert not set(left) & set(checkout.processes())


def test_a_stale_pid_file_never_ends_somebody_elses_process(checkout: Checkout) -> None:
    """RC-39"""
    bystander = subprocess.Popen(["sleep", "600"], start_new_session=True)
    try:
        checkout.run_dir.mkdir()
        stale = json.dumps({"pid": bystander.pid, "started": 1})
        for name in ("engine.pid", "app.pid", "engine.lock", "app.lock"):
            (checkout.run_dir / name).write_text(stale)
        assert checkout.start_sh("stop").returncode == 0
        (checkout.run_dir / "engine.pid").write_text(stale)
        assert checkout.start_sh("engine", "--detach").returncode == 0
        assert checkout.start_sh("stop").returncode == 0
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


# -- engine and app ----------------------------------------------------------


def test_detached_start_prints_the_address_and_leaves_both_running(checkout: Checkout) -> None:
    done = checkout.start_sh("--detach")
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"Open http://127.0.0.1:{checkout.app_port}\n"
    status = checkout.start_sh("status")
    assert status.returncode == 0
    assert "app: serving" in status.stdout


def test_an_external_engine_starts_the_app_alone(checkout: Checkout) -> None:
    done = checkout.start_sh("--detach", ENCORE_ENGINE="external", ENCORE_ENGINE_URLS="http://127.0.0.1:9/v1")
    assert done.returncode == 0, done.stderr
    assert not (checkout.run_dir / "engine.pid").exists()
    assert is_open(checkout.app_port)
