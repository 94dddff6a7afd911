import sys
from types import ModuleType
from typing import Any

import pytest

from encore_strict_gemm.sampling import CALLERS, companies, fork_of_top_p, pin_top_p

KERNEL = "vllm.v1.sample.ops.topk_topp_triton"


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> dict[str, ModuleType]:
    """Modules with vLLM's names: the switch is imported by the first two callers only."""
    modules = {name: ModuleType(name) for name in (KERNEL, *CALLERS)}
    vars(modules[KERNEL])["apply_top_k_top_p_triton"] = lambda logits, k, p: ("kernel", logits, k, p)
    for name in CALLERS[:2]:
        vars(modules[name])["apply_top_k_top_p"] = lambda logits, k, p: ("switch", logits, k, p)
    for name, module in modules.items():
        parts = name.split(".")
        for depth in range(1, len(parts)):
            monkeypatch.setitem(sys.modules, ".".join(parts[:depth]), ModuleType(".".join(parts[:depth])))
        monkeypatch.setitem(sys.modules, name, module)
    return modules


def call(module: ModuleType, *arguments: Any) -> Any:
    return vars(module)["apply_top_k_top_p"](*arguments)


def test_every_caller_of_the_switch_uses_the_kernel(engine: dict[str, ModuleType]) -> None:
    pin_top_p()
    assert [call(engine[name], "logits", None, "p")[0] for name in CALLERS[:2]] == ["kernel", "kernel"]


def test_a_module_without_the_switch_is_left_alone(engine: dict[str, ModuleType]) -> None:
    pin_top_p()
    assert "apply_top_k_top_p" not in vars(engine[CALLERS[2]])


def test_without_a_filter_the_logits_pass_through(engine: dict[str, ModuleType]) -> None:
    pin_top_p()
    assert call(engine[CALLERS[0]], "logits", None, None) == "logits"


def test_a_vllm_without_the_switch_is_refused(engine: dict[str, ModuleType]) -> None:
    for name in CALLERS[:2]:
        del vars(engine[name])["apply_top_k_top_p"]
    with pytest.raises(AttributeError, match="no apply_top_k_top_p"):
        pin_top_p()


def test_the_proof_covers_both_sides_of_the_switch_and_every_row_alone() -> None:
    tried = list(companies(64))
    assert {count for _, count in tried} >= set(range(1, 64))
    assert {first for first, count in tried if count == 1} == set(range(64))
    assert all(first + count <= 64 for first, count in tried)


def test_a_filter_that_switches_at_eight_rows_is_found_and_one_that_does_not_passes() -> None:
    def switching(first: int, count: int) -> list[tuple[int, str]]:
        kernel = "sort" if count < 8 else "triton"
        return [(row, kernel) for row in range(first, first + count)]

    def steady(first: int, count: int) -> list[int]:
        return list(range(first, first + count))

    assert fork_of_top_p(steady, list.__eq__) is None
    assert fork_of_top_p(switching, list.__eq__) == "rows 0 to 0 keep other tokens than among 64 rows"
