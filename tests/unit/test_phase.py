"""Phases read from vLLM's own log lines (0.26 on CUDA and 0.32 on CPU)."""

from __future__ import annotations

from pathlib import Path

import pytest

from llm_backend.engine.phase import phase_of, tail

CPU_LOG = """\
Encore start 1b9fcdba at 2026-12-01T03:21:00+00:00
(APIServer pid=1) INFO 12-01 03:01:12 [api_utils.py:286] non-default args: {'port': 8100}
(EngineCore pid=2) INFO 12-01 03:01:29 [core.py:133] Initializing a V1 LLM engine with config: model='m'
(Worker pid=3) INFO 12-01 03:01:36 [cpu_model_runner.py:68] Starting to load model m...
Loading safetensors checkpoint shards:   0% Completed | 0/1 [00:00<?, ?it/s]
(Worker pid=3) INFO 12-01 03:01:38 [default_loader.py:501] Loading weights took 0.81 seconds
(EngineCore pid=2) INFO 12-01 03:01:44 [core.py:402] init engine (profile, create kv cache) took 5.55 s
INFO:     Application startup complete.
""".splitlines()

CUDA_LOG = """\
INFO 11-30 10:00:00 [default_loader.py:431] Loading weights took 2.10 seconds
INFO 11-30 10:00:09 [backends.py:1156] Dynamo bytecode transform time: 4.02 s
INFO 11-30 10:00:30 [monitor.py:20] torch.compile took 18.70 s in total
Capturing CUDA graphs (PIECEWISE): 100%
""".splitlines()


@pytest.mark.parametrize(
    ("lines", "key"),
    [
        ([], "starting"),
        (CPU_LOG[:3], "starting"),
        (CPU_LOG[:4], "loading_weights"),
        (CPU_LOG[:5], "loading_weights"),
        (CPU_LOG[:6], "warming_up"),
        (CPU_LOG, "ready"),
        (CUDA_LOG[:1], "warming_up"),
        (CUDA_LOG[:2], "compiling"),
        (CUDA_LOG, "warming_up"),
        ([*CPU_LOG, "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue"], "failed"),
        (["RuntimeError: Engine core initialization failed.", "Starting to load model m..."], "failed"),
    ],
)
def test_the_last_telling_line_decides(lines: list[str], key: str) -> None:
    assert phase_of(lines).key == key


def test_seconds_count_from_the_phase_that_is_on() -> None:
    assert phase_of(CPU_LOG[:3]).seconds == 17.0
    assert phase_of(CPU_LOG[:6]).seconds == 0.0
    assert phase_of(CPU_LOG[:7]).seconds == 6.0


def test_a_log_without_times_gives_no_seconds() -> None:
    assert phase_of(["Starting to load model m..."]).seconds is None


def test_the_last_line_skips_blank_ones() -> None:
    assert phase_of(["one", "two ", "", "  "]).last_line == "two"


def test_tail_reads_the_end_only_and_splits_progress_bars(tmp_path: Path) -> None:
    log = tmp_path / "llm.log"
    log.write_bytes(b"x" * 200_000 + b"\nfirst\n  0%\r 50%\r100%\nlast\n")
    assert tail(log, 3) == [" 50%", "100%", "last"]
    assert len(tail(log, 1000)) == 6
    assert sum(map(len, tail(log, 1000))) < 65_537


def test_tail_survives_a_character_cut_in_half(tmp_path: Path) -> None:
    log = tmp_path / "llm.log"
    log.write_bytes("模型".encode()[1:] + b" loaded\n")
    assert tail(log, 1)[0].endswith("型 loaded")


def test_tail_of_a_missing_log_is_empty(tmp_path: Path) -> None:
    assert tail(tmp_path / "none.log", 5) == []
