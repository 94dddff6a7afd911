"""Medians, ranges and ratios of a bench session, and where its figures may be shown."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest
from sample_receipts import request

from llm_backend.bench import keep, prices
from llm_backend.config import Settings
from llm_backend.price import Bench, Machine, Measured, Sample, of_profile, of_setting, ratio, spread
from llm_backend.price_phrases import (
    bench_json,
    bench_markdown,
    bench_text,
    profile_price,
    setting_price,
)
from llm_backend.receipt import EngineFingerprint
from llm_backend.run import Run
from llm_backend.ui.views import run_view


def samples(*speeds: float, neighbours: int = 0, seen: int = 0) -> tuple[Sample, ...]:
    return tuple(
        Sample(
            neighbours=neighbours,
            ttft_s=1.0,
            ttft_again_s=None if neighbours else 0.5,
            tokens_per_second=speed / (neighbours + 1),
            total_per_second=speed,
            neighbours_seen=seen,
        )
        for speed in speeds
    )


FAST = (*samples(20, 30, 25), *samples(100, 90, 80, neighbours=8, seen=8))
STRICT = Measured(
    name="strict",
    samples=(*samples(24, 24, 27), *samples(30, neighbours=8)),
    baseline=FAST,
    start_seconds=61.5,
    memory_bytes=3 * 1024**3,
)
SEQS = Measured(name="max_num_seqs=1", changed={"--max-num-seqs": "1"}, samples=samples(24), baseline=FAST)
DEAD = Measured(name="dtype=float32", changed={"--dtype": "float32"}, failure="The engine ended.")

COUNTS = {"cached_prompt_tokens": None, "reported_tokens": None}

BENCH = Bench(
    machine=Machine(device="cpu", names=("EPYC",), cores=2, model="SmolLM2", vllm_version="0.32.0"),
    measured_at=datetime(2026, 12, 1, 6, tzinfo=UTC),
    tokens=32,
    times=3,
    neighbours=(8,),
    engines=(Measured(name="fast", samples=FAST), STRICT, SEQS, DEAD),
    not_measured={"eager": "slow_compile"},
    complete=True,
)

ENGINE = EngineFingerprint(
    model="SmolLM2", vllm_version="0.32.0", device="cpu", cpu_model="EPYC", profile="strict"
)


def test_a_figure_is_a_median_with_its_range_and_count() -> None:
    found = spread(FAST, "total_per_second", 0)
    assert found is not None
    assert (found.n, found.median, found.least, found.most) == (3, 25, 20, 30)
    assert spread(FAST, "total_per_second", 32) is None
    assert spread(FAST, "ttft_again_s", 8) is None


def test_a_ratio_is_of_two_medians_of_the_same_turns() -> None:
    assert ratio(STRICT, "total_per_second", 0) == 24 / 25
    assert ratio(STRICT, "total_per_second", 8) == 30 / 90
    assert ratio(SEQS, "total_per_second", 8) is None
    assert ratio(DEAD, "total_per_second", 0) is None


def test_the_report_says_what_was_and_what_was_not_measured() -> None:
    said = bench_text(BENCH)
    assert said.startswith("EPYC, 2 cores · SmolLM2 · vLLM 0.32.0")
    assert "2026-12-01 06:00 UTC" in said
    assert "24.0 (24.0–27.0) 0.96×" in said
    assert "30.0 (30.0–30.0) 0.33×" in said
    assert "dtype=float32 did not start: The engine ended." in said
    assert "eager was not measured: compiling takes about five minutes on a CPU" in said
    assert "strict takes one request at a time" in said
    assert "61.5 s" not in said.split("\n")[0]
    assert bench_markdown(BENCH, "zh-CN").count("|") > 20
    document = json.loads(bench_json(BENCH))
    (alone, *_) = document["engines"][1]["figures"]
    assert (alone["figure"], alone["n"], alone["ratio_to_fast"]) == ("tokens_per_second", 3, 0.96)


def test_a_price_is_shown_only_for_the_machine_and_version_it_was_measured_on() -> None:
    price = profile_price(BENCH, ENGINE)
    assert price is not None
    assert price.startswith("alone 0.96× the speed of fast; among 8 neighbours 0.33×, all together")
    assert "EPYC" in price
    for other in ({"vllm_version": "0.33.0"}, {"model": "Phi"}, {"cpu_model": "Xeon"}, {"profile": None}):
        assert profile_price(BENCH, ENGINE.model_copy(update=other)) is None
    assert profile_price(None, ENGINE) is None
    fast = profile_price(BENCH, ENGINE.model_copy(update={"profile": "fast"}))
    assert fast is not None
    assert fast.startswith("the baseline: 25.0 tok/s alone; 90.0 tok/s with 8 neighbours")


def test_a_settings_price_is_that_of_fast_with_only_that_changed() -> None:
    assert setting_price(BENCH, ENGINE, "--max-num-seqs", "1") == (
        "alone 0.96× the speed of fast; time to first token 1.00×"
    )
    assert setting_price(BENCH, ENGINE, "--max-num-seqs", "8") is None
    assert setting_price(BENCH, ENGINE, "--dtype", "float32") is None, "it did not start"
    assert of_setting(BENCH, "--dtype", "float32") is None
    assert of_profile(BENCH, "strict") is STRICT


def test_the_panel_shows_the_profiles_price_and_each_settings() -> None:
    engine = ENGINE.model_copy(update={"argv": ("--max-num-seqs", "1", "--dtype", "bfloat16")})
    run = Run(
        id="1",
        chat_id="c",
        kind="ask",
        question="?",
        started_at=BENCH.measured_at,
        status="complete",
        model="SmolLM2",
        seed=1,
        greedy=True,
    )
    shown = run_view(run, request(), engine, COUNTS, "en", BENCH)["engine"]
    assert shown["price"] == profile_price(BENCH, engine)
    prices_shown = {row["name"]: row["price"] for row in shown["profile_rows"]}
    assert prices_shown["--max-num-seqs"].startswith("alone 0.96×")
    assert prices_shown["--dtype"] is None
    assert run_view(run, request(), engine, COUNTS, "en")["engine"]["price"] is None


def test_a_session_cut_short_does_not_replace_a_complete_one_of_the_same_machine(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path)
    assert prices(settings) is None
    cut = BENCH.model_copy(update={"complete": False, "engines": ()})
    assert keep(settings, cut)
    assert keep(settings, BENCH)
    assert not keep(settings, cut)
    assert prices(settings) == BENCH
    elsewhere = cut.model_copy(update={"machine": Machine(device="cuda")})
    assert keep(settings, elsewhere)
    assert prices(settings) == elsewhere


@pytest.mark.parametrize("content", ["", "{}", "[1"])
def test_a_file_that_is_no_session_is_nothing_measured(tmp_path: Path, content: str) -> None:
    (tmp_path / "bench.json").write_text(content)
    assert prices(Settings(data_dir=tmp_path)) is None
