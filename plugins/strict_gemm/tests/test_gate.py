import pytest

from encore_strict_gemm.gate import Gate, switched_on
from encore_strict_gemm.proof import Fork, Proof, Shape

QKV, HEAD = Shape(5120, 3072, "bfloat16"), Shape(200064, 3072, "bfloat16")
HOLDS = Proof(limit=8, batches=3, fork=None)
FORKS = Proof(limit=8, batches=2, fork=Fork(row=4, first=0, count=5))


@pytest.mark.parametrize(
    ("environ", "on", "complains"),
    [
        ({}, False, False),
        ({"VLLM_BATCH_INVARIANT": "1"}, False, False),
        ({"ENCORE_STRICT_GEMM": "cublas", "VLLM_BATCH_INVARIANT": "1"}, True, False),
        ({"ENCORE_STRICT_GEMM": "cublas"}, False, True),
        ({"ENCORE_STRICT_GEMM": "cublas", "VLLM_BATCH_INVARIANT": "0"}, False, True),
        ({"ENCORE_STRICT_GEMM": "1", "VLLM_BATCH_INVARIANT": "1"}, False, True),
    ],
)
def test_only_an_explicit_switch_in_batch_invariant_mode_turns_it_on(
    environ: dict[str, str], on: bool, complains: bool
) -> None:
    acts, complaint = switched_on(environ)
    assert (acts, complaint is not None) == (on, complains)


def test_each_shape_is_proven_once() -> None:
    calls: list[Shape] = []

    def prove() -> Proof:
        calls.append(QKV)
        return HOLDS

    gate = Gate(on_refusal=lambda: None)
    assert [gate.admit(QKV, prove) for _ in range(3)] == [True, True, True]
    assert len(calls) == 1
    assert gate.report()["linear"] == "cublas"


def test_one_fork_refuses_every_shape_from_then_on_and_undoes_the_others() -> None:
    undone: list[bool] = []
    gate = Gate(on_refusal=lambda: undone.append(True))
    assert gate.admit(QKV, lambda: HOLDS)
    assert not gate.admit(HEAD, lambda: FORKS)
    assert not gate.admit(QKV, lambda: HOLDS)
    assert undone == [True]
    report = gate.report()
    assert report["linear"] == "triton"
    assert report["refusal"] == (
        "200064x3072 bfloat16: row 4 computed among 5 rows differs from itself in the largest batch"
    )


def test_a_check_that_cannot_run_refuses() -> None:
    def out_of_memory() -> Proof:
        raise RuntimeError("CUDA out of memory")

    gate = Gate(on_refusal=lambda: None)
    assert not gate.admit(HEAD, out_of_memory)
    assert "could not run (CUDA out of memory)" in (gate.refusal or "")


def test_a_gate_nobody_asked_does_not_claim_cublas() -> None:
    assert Gate(on_refusal=lambda: None).report()["linear"] is None


@pytest.mark.parametrize(
    ("why", "pinned"), [(None, True), ("rows 0 to 6 keep other tokens than among 64 rows", False)]
)
def test_top_p_is_checked_once_and_reported(why: str | None, pinned: bool) -> None:
    calls: list[None] = []

    def pin_and_prove() -> str | None:
        calls.append(None)
        return why

    gate = Gate(on_refusal=lambda: None)
    for _ in range(2):
        gate.check_top_p(pin_and_prove)
    assert len(calls) == 1
    assert (gate.report()["top_p_pinned"], gate.report()["top_p_refusal"]) == (pinned, why)


def test_another_vllm_leaves_top_p_unpinned_and_the_linear_layers_alone() -> None:
    def moved() -> str | None:
        raise ModuleNotFoundError("No module named 'vllm.v1.sample.ops.topk_topp_triton'")

    gate = Gate(on_refusal=lambda: None)
    gate.check_top_p(moved)
    assert gate.top_p_pinned is False
    assert "topk_topp_triton" in (gate.top_p_refusal or "")
    assert gate.admit(QKV, lambda: HOLDS)


@pytest.mark.parametrize(("why", "allowed", "attention"), [(None, True, None), ("off by 0.3", False, "vllm")])
def test_attention_is_named_by_what_ran_and_not_by_what_was_allowed(
    why: str | None, allowed: bool, attention: str | None
) -> None:
    gate = Gate(on_refusal=lambda: None)
    assert gate.check_attention(lambda: why) is allowed
    assert (gate.report()["attention"], gate.report()["attention_refusal"]) == (attention, why)
