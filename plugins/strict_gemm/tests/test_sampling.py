import sys
from types import ModuleType
from typing import Any

import pytest

from encore_strict_gemm.sampling import CALLERS, pin_top_p

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
