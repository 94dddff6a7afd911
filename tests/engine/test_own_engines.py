"""A short bench on real engines of Encore's own: figures that can be, and nothing left running."""

from __future__ import annotations

import pytest

from llm_backend.bench import BenchPlan, Session, keep, prices
from llm_backend.config import Settings
from llm_backend.price import ratio, spread
from llm_backend.price_phrases import bench_text

pytestmark = pytest.mark.engine


async def test_strict_is_measured_in_turns_with_fast(own_settings: Settings) -> None:
    names: list[str] = []
    plan = BenchPlan(flags=("batch_invariance",), tokens=16, times=2, neighbours=(4,))
    session = Session(own_settings, plan, on_progress=lambda now: names.append(now.name))
    bench = await session.run()
    fast, strict = bench.engines
    assert (fast.name, strict.name) == ("fast", "strict")
    assert not fast.failure
    assert not strict.failure
    assert {"fast", "strict"} <= set(names)
    assert len(strict.baseline) == len(strict.samples) == 4
    for engine in bench.engines:
        alone = spread(engine.samples, "tokens_per_second", 0)
        assert alone is not None
        assert alone.n == 2
        assert 0 < alone.least <= alone.median <= alone.most
        assert engine.start_seconds is not None
        assert engine.start_seconds > 1
        assert engine.memory_bytes is not None
        assert engine.memory_bytes > 10**9
    # One sequence at a time: on any machine, five in a batch get more done than five in a queue.
    together = ratio(strict, "total_per_second", 4)
    assert together is not None
    assert together < 1
    assert max(sample.neighbours_seen for sample in fast.samples) == 4
    assert bench.not_measured == {"batch_invariance": "cuda_only"}
    assert bench.machine.model
    assert bench.machine.names
    assert "strict takes one request at a time" in bench_text(bench)
    assert keep(own_settings, bench)
    assert prices(own_settings) == bench
    assert not list((own_settings.run_dir / "own").iterdir()), "both engines were ended and cleared away"
