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


def test_arguments_show_only_the_flags_that_differ_with_their_values() -> None:
    before = engine(argv=("--seed", "42", "--max-num-seqs", "1", "--enforce-eager"))
    after = engine(argv=("--seed", "42", "--max-num-seqs", "16"))
    (change,) = changes(before, after)
    assert (change.reference, change.candidate) == ("--max-num-seqs 1, --enforce-eager", "--max-num-seqs 16")


def test_arguments_in_another_order_are_shown_whole() -> None:
    (change,) = changes(engine(argv=("--a", "--b")), engine(argv=("--b", "--a")))
    assert (change.reference, change.candidate) == ("--a, --b", "--b, --a")


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
