"""What changed in the engine: only two known values make a change that can explain anything."""

from __future__ import annotations

import pytest
from sample_receipts import ENGINE, engine

from llm_backend.engine_changes import EngineChange, engine_changes
from llm_backend.receipt import EngineFingerprint


def changes(
    before: EngineFingerprint, after: EngineFingerprint, *, seeded: bool = True
) -> list[EngineChange]:
    return list(engine_changes(before, after, seeded=seeded))


def test_the_same_engine_has_no_changes() -> None:
    assert changes(ENGINE, ENGINE) == []


@pytest.mark.parametrize(
    ("field", "before", "after", "relevance"),
    [
        ("vllm_version", "0.26.0", "0.32.0", "bit-relevant"),
        ("batch_invariant", False, True, "bit-relevant"),
        ("max_num_seqs", 1, 128, "bit-relevant"),
        ("max_model_len", 4096, 32768, "bit-relevant"),
        ("lock_digest", "sha256:a", "sha256:b", "unknown"),
        ("system_fingerprint", "vllm-1", "vllm-2", "unknown"),
        ("vllm_version", None, "0.32.0", "unknown"),
        ("vllm_version", "0.32.0", None, "unknown"),
        ("device_names", (), ("H200",), "unknown"),
        ("device_names", ("H100",), ("H200",), "bit-relevant"),
    ],
)
def test_relevance_of_a_field(field: str, before: object, after: object, relevance: str) -> None:
    (change,) = changes(engine(**{field: before}), engine(**{field: after}))
    assert (change.field, change.relevance) == (field, relevance)


@pytest.mark.parametrize(("seeded", "relevance"), [(True, "harmless"), (False, "bit-relevant")])
def test_the_engine_seed_matters_only_to_requests_without_their_own(seeded: bool, relevance: str) -> None:
    (change,) = changes(engine(engine_seed=0), engine(engine_seed=1), seeded=seeded)
    assert change.relevance == relevance


def test_each_flag_is_its_own_change_ranked_by_what_it_can_do() -> None:
    before = engine(argv=("--block-size", "16", "--port", "1", "--same", "--made-up=x"))
    after = engine(argv=("--same", "--block-size", "128", "--port", "2", "--kv-cache-dtype", "fp8"))
    found = {
        change.field: (change.reference, change.candidate, change.relevance)
        for change in changes(before, after)
    }
    assert found == {
        "argv.--block-size": ("16", "128", "bit-relevant"),
        "argv.--kv-cache-dtype": (None, "fp8", "bit-relevant"),
        "argv.--made-up": ("x", None, "unknown"),
        "argv.--port": ("1", "2", "harmless"),
    }


def test_flags_in_another_order_are_no_change() -> None:
    assert changes(engine(argv=("--a", "--b", "1")), engine(argv=("--b", "1", "--a"))) == []


def test_a_flag_adds_nothing_to_the_fact_that_tells_its_effect() -> None:
    """Another path to the same weights must not pass for another model."""
    argv = ("--model", "/old/place", "--max-num-seqs", "1")
    again = ("--model", "/new/place", "--max-num-seqs", "16")
    (change,) = changes(engine(argv=argv, max_num_seqs=1), engine(argv=again, max_num_seqs=16))
    assert change.field == "max_num_seqs"
    (first, second) = changes(engine(argv=argv, max_num_seqs=None), engine(argv=again, max_num_seqs=16))
    assert (first.field, first.relevance) == ("argv.--max-num-seqs", "bit-relevant")
    assert (second.field, second.relevance) == ("max_num_seqs", "unknown")


def test_a_profile_is_only_a_name() -> None:
    (change,) = changes(engine(profile="fast"), engine(profile="strict"))
    assert change.relevance == "harmless"


def test_each_environment_variable_is_its_own_change() -> None:
    before = engine(env={"OMP_NUM_THREADS": "2", "SAME": "1", "PYTHONHASHSEED": "0"})
    after = engine(env={"OMP_NUM_THREADS": "4", "SAME": "1", "NEW": "x"})
    found = {
        change.field: (change.reference, change.candidate, change.relevance)
        for change in changes(before, after)
    }
    assert found == {
        "env.OMP_NUM_THREADS": ("2", "4", "bit-relevant"),
        "env.PYTHONHASHSEED": ("0", None, "harmless"),
        "env.NEW": (None, "x", "unknown"),
    }


def test_an_engine_that_told_no_environment_told_nothing_about_any_variable() -> None:
    (change,) = changes(engine(env={"OMP_NUM_THREADS": "2"}), engine(env={}))
    assert change.relevance == "unknown"


def test_bit_relevant_changes_come_first() -> None:
    found = changes(
        engine(engine_seed=0, lock_digest="sha256:a", torch_version="2.11.0"),
        engine(engine_seed=1, lock_digest="sha256:b", torch_version="2.13.0"),
    )
    assert [change.relevance for change in found] == ["bit-relevant", "unknown", "harmless"]
