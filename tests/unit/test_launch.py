"""Plans, checks and facts of a launch, without starting anything."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from llm_backend.engine import preflight, probe
from llm_backend.engine.gpu import Gpu, memory_in, parse_listing, visible
from llm_backend.engine.identity import effective_facts, fingerprint, relevant_environment
from llm_backend.engine.launch import LaunchPlan
from llm_backend.engine.log_writer import KEPT_LOGS, rotate
from llm_backend.engine.model import Model, find_model, locate
from llm_backend.engine.profiles import LaunchValues, rows
from llm_backend.errors import LaunchError

GIB = 1024**3
H200 = Gpu("NVIDIA H200", 140 * GIB, 139 * GIB, (9, 0), "580.159.03")
CPU_TABLE = rows("strict", "cpu", LaunchValues(seed=42, max_model_len=4096))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A complete model folder with the sizes of Phi-4-mini's attention."""
    folder = tmp_path / "Phi-4-mini-reasoning"
    folder.mkdir()
    config = {
        "num_hidden_layers": 32,
        "num_attention_heads": 24,
        "num_key_value_heads": 8,
        "hidden_size": 3072,
    }
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "model.safetensors").write_bytes(b"weights")
    return folder


@pytest.fixture
def plan(folder: Path) -> LaunchPlan:
    return LaunchPlan(
        interpreter=Path("/venv/bin/python"),
        device="cpu",
        profile="strict",
        model=Model(folder.name, folder),
        table=CPU_TABLE,
        gpus=(),
        host="127.0.0.1",
        port=8100,
        lock=None,
        api_key="geheim",
    )


class TestPlan:
    def test_the_key_is_in_the_environment_and_nowhere_people_look(self, plan: LaunchPlan) -> None:
        """RC-43"""
        assert plan.environ({})["VLLM_API_KEY"] == "geheim"
        assert "geheim" not in " ".join(plan.argv())
        assert "geheim" not in repr(plan)

    def test_the_apps_settings_and_paths_do_not_reach_the_engine(self, plan: LaunchPlan) -> None:
        inherited = {
            "ENCORE_AUTH_SECRET": "s",
            "PYTHONPATH": "/here",
            "VLLM_BATCH_INVARIANT": "1",
            "HOME": "/h",
        }
        environ = plan.environ(inherited)
        assert not {"ENCORE_AUTH_SECRET", "PYTHONPATH", "VLLM_BATCH_INVARIANT"} & environ.keys()
        assert environ["HOME"] == "/h"

    def test_a_model_on_disk_is_served_offline_under_its_folders_name(self, plan: LaunchPlan) -> None:
        """RC-41: no network is asked for local weights."""
        argv = plan.argv()
        assert argv[argv.index("--model") + 1] == str(plan.model.folder)
        assert argv[argv.index("--served-model-name") + 1] == "Phi-4-mini-reasoning"
        assert plan.environ({})["HF_HUB_OFFLINE"] == "1"

    def test_a_hub_model_is_fetched_at_its_revision(self, plan: LaunchPlan) -> None:
        remote = replace(plan, model=Model("owner/name", None, "abc123"))
        argv = remote.argv()
        assert argv[argv.index("--revision") + 1] == argv[argv.index("--tokenizer-revision") + 1] == "abc123"
        assert "HF_HUB_OFFLINE" not in remote.environ({})

    def test_a_wildcard_address_is_listened_on_but_not_called(self, plan: LaunchPlan) -> None:
        assert replace(plan, host="0.0.0.0").url == "http://127.0.0.1:8100"
        assert replace(plan, host="::1").url == "http://[::1]:8100"


class TestModel:
    def cache(self, home: Path, commit: str, *, complete: bool) -> Path:
        repository = home / "hub" / "models--owner--name"
        snapshot = repository / "snapshots" / commit
        snapshot.mkdir(parents=True)
        (repository / "refs").mkdir()
        (repository / "refs" / "main").write_text(commit)
        (snapshot / "config.json").write_text("{}")
        if complete:
            (snapshot / "model.safetensors").write_bytes(b"w")
        return snapshot

    def test_a_cached_snapshot_is_used_with_its_commit(self, tmp_path: Path) -> None:
        snapshot = self.cache(tmp_path, "c0ffee", complete=True)
        found = find_model("owner/name", None, root=tmp_path, environ={"HF_HOME": str(tmp_path)})
        assert found == Model("owner/name", snapshot, "c0ffee")

    def test_a_broken_off_download_is_fetched_on(self, tmp_path: Path) -> None:
        self.cache(tmp_path, "c0ffee", complete=False)
        found = find_model("owner/name", None, root=tmp_path, environ={"HF_HOME": str(tmp_path)})
        assert found == Model("owner/name", None, None)

    def test_offline_without_a_snapshot_is_refused(self, tmp_path: Path) -> None:
        environ = {"HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "1"}
        with pytest.raises(LaunchError, match="not in the hub cache"):
            find_model("owner/name", None, root=tmp_path, environ=environ)

    def test_after_the_download_the_model_is_found(self, tmp_path: Path) -> None:
        environ = {"HF_HUB_CACHE": str(tmp_path / "hub")}
        remote = Model("owner/name", None, None)
        assert locate(remote, environ) == remote
        snapshot = self.cache(tmp_path, "c0ffee", complete=True)
        assert locate(remote, environ) == Model("owner/name", snapshot, "c0ffee")

    def test_a_folder_wins_over_a_hub_name(self, tmp_path: Path, folder: Path) -> None:
        assert find_model(folder.name, None, root=tmp_path, environ={}).folder == folder


class TestGpu:
    LISTING = (
        "0, GPU-aaaa-1111, NVIDIA H200, 143771, 143000, 9.0, 580.159.03\n"
        "1, GPU-bbbb-2222, NVIDIA L4, 23034, 22000, 8.9, 580.159.03\n"
        "2, GPU-cccc-3333, NVIDIA H200, [N/A], [N/A], 9.0, 580.159.03\n"
    )

    @pytest.mark.parametrize(
        ("selection", "names"),
        [
            (None, ["NVIDIA H200", "NVIDIA L4"]),
            ("", []),
            ("-1", []),
            ("1", ["NVIDIA L4"]),
            ("1,0", ["NVIDIA L4", "NVIDIA H200"]),
            ("0,-1,1", ["NVIDIA H200"]),
            ("GPU-bbbb", ["NVIDIA L4"]),
        ],
    )
    def test_cuda_visible_devices_selects_as_cuda_does(self, selection: str | None, names: list[str]) -> None:
        assert [gpu.name for gpu in visible(parse_listing(self.LISTING), selection)] == names

    @pytest.mark.parametrize(
        ("gpu", "utilization", "sentence"),
        [
            (None, 0.9, "shows no GPU"),
            (replace(H200, name="Tesla T4", capability=(7, 5)), 0.9, "Tesla T4 has compute capability 7.5"),
            (
                replace(H200, free_bytes=28 * GIB),
                0.9,
                "28.0 of 140.0 GiB free, and the engine would claim 126.0",
            ),
            (replace(H200, total_bytes=6 * GIB, free_bytes=6 * GIB), 0.9, "needs about 6.0 GiB"),
        ],
    )
    def test_a_gpu_that_cannot_serve_is_refused_with_numbers(
        self, folder: Path, gpu: Gpu | None, utilization: float, sentence: str
    ) -> None:
        """RC-42"""
        with pytest.raises(LaunchError, match=sentence):
            preflight.check_gpu([gpu] if gpu else [], folder, 32768, utilization)

    def test_memory_is_that_of_the_processes_asked_for(self) -> None:
        listing = "4711, 74241\n4712, 100\n99, 8\n"
        assert memory_in(listing, {4711, 4712}) == (74241 + 100) * 1024**2
        assert memory_in(listing, {1}) is None, "in a container nvidia-smi knows other pids"
        assert memory_in("4711, [N/A]\n", {4711}) is None
        assert memory_in("", {4711}) is None

    def test_a_gpu_that_can_is_not(self, folder: Path) -> None:
        preflight.check_gpu([H200], folder, 32768, 0.9)

    def test_the_kv_cache_of_32k_tokens_of_phi_4_mini_is_4_gib(self, folder: Path) -> None:
        assert preflight.kv_cache_bytes(folder, 32768) == 4 * GIB


class TestMemory:
    def test_a_container_may_hold_less_than_the_machine(self, tmp_path: Path) -> None:
        meminfo = tmp_path / "meminfo"
        meminfo.write_text("MemTotal:       24000000 kB\nMemAvailable:   20000000 kB\n")
        assert preflight.available_memory(meminfo, tmp_path) == 20_000_000 * 1024
        (tmp_path / "memory.max").write_text("max\n")
        (tmp_path / "memory.current").write_text("5000\n")
        assert preflight.available_memory(meminfo, tmp_path) == 20_000_000 * 1024
        (tmp_path / "memory.max").write_text("8000\n")
        assert preflight.available_memory(meminfo, tmp_path) == 3000
        assert preflight.available_memory(tmp_path / "none", tmp_path / "none") is None

    def test_no_room_is_refused_with_numbers_and_enough_is_not(self, folder: Path) -> None:
        with pytest.raises(LaunchError, match=r"needs about 4\.0 GiB \(weights 0\.0, KV cache 2\.0"):
            preflight.check_memory(folder, 2 * GIB, 3 * GIB)
        preflight.check_memory(folder, 2 * GIB, 5 * GIB)
        preflight.check_memory(folder, 2 * GIB, None)


@pytest.mark.parametrize(
    ("host", "expected"),
    [("127.0.0.1", True), ("localhost", True), ("::1", True), ("0.0.0.0", False), ("example.org", False)],
)
def test_only_loopback_needs_no_key(host: str, expected: bool) -> None:
    assert preflight.is_loopback(host) is expected


class TestIdentity:
    CONFIG = (
        "INFO 12-01 03:01:29 [core.py:133] Initializing a V1 LLM engine (v0.32.0) with config: "
        "model='/m', dtype=torch.bfloat16, max_seq_len=4096, tensor_parallel_size=1, enforce_eager=True, "
        "observability_config=ObservabilityConfig(hidden=None), seed=42, enable_prefix_caching=False, x=1"
    )

    def test_the_log_states_what_is_effective(self) -> None:
        lines = [
            self.CONFIG,
            "[ompmultiprocessing.py:185] 	local_rank=0, core ids=[0, 1, 2]",
            "INFO [cuda.py:483] Using TRITON_ATTN attention backend out of potential backends: ['A'].",
        ]
        assert effective_facts(lines) == {
            "dtype": "bfloat16",
            "max_model_len": 4096,
            "tensor_parallel_size": 1,
            "engine_seed": 42,
            "enforce_eager": True,
            "prefix_caching": False,
            "threads": 3,
            "attention_backend": "TRITON_ATTN",
        }

    def test_the_log_wins_over_the_flag(self) -> None:
        log = [self.CONFIG.replace("max_seq_len=4096", "max_seq_len=2048")]
        made = fingerprint(
            model="m",
            revision=None,
            device="cpu",
            profile="strict",
            table=CPU_TABLE,
            environ={},
            gpus=(),
            lock_digest=None,
            probe={},
            log=log,
        )
        assert made.max_model_len == 2048
        assert made.max_num_seqs == 1
        assert made.vllm_version is None, "what nobody told must stay unknown"

    def test_the_fingerprint_of_a_gpu_names_it_and_not_the_hosts_cpu(self) -> None:
        table = rows("strict", "cuda", LaunchValues(42, 32768, compute_capability=9))
        made = fingerprint(
            model="m",
            revision="abc",
            device="cuda",
            profile="strict",
            table=table,
            environ={"VLLM_BATCH_INVARIANT": "1"},
            gpus=(H200,),
            lock_digest="sha256:0",
            probe={"cpu_model": "AMD EPYC", "cpu_flags": ["avx2"], "cuda_version": "13.0"},
            log=(),
        )
        assert made.device_names == ("NVIDIA H200",)
        assert (made.cpu_model, made.cpu_flags) == (None, ())
        assert made.batch_invariant is True
        assert made.attention_backend == "TRITON_ATTN"

    def test_the_environment_keeps_what_changes_bits_and_no_secret(self) -> None:
        environ = {
            "VLLM_BATCH_INVARIANT": "1",
            "NCCL_ALGO": "Tree",
            "OMP_NUM_THREADS": "2",
            "CUBLAS_WORKSPACE_CONFIG": ":16:8",
            "VLLM_API_KEY": "geheim",
            "VLLM_CACHE_ROOT": "/cache",
            "VLLM_LOGGING_LEVEL": "INFO",
            "CUDA_VISIBLE_DEVICES": "1",
            "HF_TOKEN": "geheim",
            "PATH": "/bin",
        }
        assert list(relevant_environment(environ)) == [
            "CUBLAS_WORKSPACE_CONFIG",
            "NCCL_ALGO",
            "OMP_NUM_THREADS",
            "VLLM_BATCH_INVARIANT",
        ]


class TestProbe:
    def test_it_runs_alone_under_any_python(self, folder: Path, tmp_path: Path) -> None:
        """`-S -E`: without site-packages, as in an environment that has nothing of the app."""
        done = subprocess.run(
            [
                sys.executable,
                "-S",
                "-E",
                probe.__file__,
                "--model",
                folder,
                "--cache",
                tmp_path / "digests.json",
            ],
            capture_output=True,
            text=True,
            check=True,
        )
        facts = json.loads(done.stdout)
        assert facts["vllm_version"] is None, "unknown, not guessed"
        listing = f"{hashlib.sha256(b'weights').hexdigest()}  model.safetensors\n"
        assert facts["weights_digest"] == "sha256:" + hashlib.sha256(listing.encode()).hexdigest()

    def test_changed_weights_are_hashed_again_and_unchanged_ones_are_not(
        self, folder: Path, tmp_path: Path
    ) -> None:
        cache = tmp_path / "digests.json"
        first = probe.model_facts(folder, cache)["weights_digest"]
        entries = json.loads(cache.read_text())
        (path,) = entries
        entries[path][2] = "from-the-cache"
        cache.write_text(json.dumps(entries))
        assert probe.model_facts(folder, cache)["weights_digest"] != first, "the cache was not used"
        (folder / "model.safetensors").write_bytes(b"other weights")
        changed = probe.model_facts(folder, cache)["weights_digest"]
        assert changed == probe.model_facts(folder, None)["weights_digest"] != first

    def test_a_template_has_one_digest_wherever_it_is_kept(self, folder: Path) -> None:
        assert probe.model_facts(folder, None)["chat_template_digest"] is None
        (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": "{{ x }}"}))
        inside = probe.model_facts(folder, None)["chat_template_digest"]
        (folder / "chat_template.jinja").write_text("{{ x }}")
        assert probe.model_facts(folder, None)["chat_template_digest"] == inside


class TestRotate:
    def test_earlier_logs_move_up_and_the_oldest_goes(self, tmp_path: Path) -> None:
        log = tmp_path / "llm.log"
        for number in range(KEPT_LOGS + 2):
            log.write_text(str(number))
            rotate(log)
        kept = {path.name: path.read_text() for path in tmp_path.iterdir()}
        newest = KEPT_LOGS + 1
        assert kept == {f"llm.log.{n}": str(newest + 1 - n) for n in range(1, KEPT_LOGS + 1)}

    def test_an_empty_log_leaves_no_trace(self, tmp_path: Path) -> None:
        (tmp_path / "llm.log").touch()
        rotate(tmp_path / "llm.log")
        assert [path.name for path in tmp_path.iterdir()] == ["llm.log"]
