"""The other choice of each setting, and why a device cannot take it."""

from __future__ import annotations

import pytest

from llm_backend.engine.alternatives import NAMES, Machine, alternative
from llm_backend.engine.profiles import Device, LaunchValues, Profile, altered, arguments, environment, rows

CPU, GPU = Machine("cpu"), Machine("cuda", gpus=1)


def table(profile: Profile, device: Device) -> tuple:
    return rows(profile, device, LaunchValues(seed=42, max_model_len=4096, compute_capability=9))


def launched(name: str, profile: Profile, machine: Machine) -> tuple[list[str], dict[str, str]]:
    before = table(profile, machine.device)
    changed = alternative(name, before, machine, patient=True)
    assert changed.obstacle is None
    after = altered(before, dict(changed.changes), changed.without)
    assert after != before, "an alternative that changes nothing measures nothing"
    return list(arguments(after)), environment(after)


@pytest.mark.parametrize("profile", ["fast", "strict"])
@pytest.mark.parametrize("machine", [CPU, GPU, Machine("cuda", gpus=2)])
@pytest.mark.parametrize("name", NAMES)
def test_every_alternative_changes_something_or_says_why_not(
    name: str, machine: Machine, profile: Profile
) -> None:
    before = table(profile, machine.device)
    changed = alternative(name, before, machine)
    if changed.obstacle is None:
        launched(name, profile, machine)
        assert changed.changed
    else:
        assert not changed.changes
        assert not changed.without


def test_a_toggle_goes_both_ways() -> None:
    assert "--no-enable-prefix-caching" in launched("prefix_caching", "fast", CPU)[0]
    assert "--no-enable-prefix-caching" not in launched("prefix_caching", "strict", CPU)[0]
    argv, _ = launched("max_num_seqs", "fast", CPU)
    assert argv[argv.index("--max-num-seqs") + 1] == "1"
    assert "--max-num-seqs" not in launched("max_num_seqs", "strict", CPU)[0]
    assert launched("batch_invariance", "fast", GPU)[1]["VLLM_BATCH_INVARIANT"] == "1"
    assert "VLLM_BATCH_INVARIANT" not in launched("batch_invariance", "strict", GPU)[1]


def test_a_value_may_be_named() -> None:
    argv, _ = launched("max_num_seqs=8", "strict", GPU)
    assert argv[argv.index("--max-num-seqs") + 1] == "8"
    argv, environ = launched("batch_invariance=FLASH_ATTN", "fast", GPU)
    assert argv[argv.index("--attention-backend") + 1] == "FLASH_ATTN"
    assert environ["VLLM_BATCH_INVARIANT"] == "1"
    with pytest.raises(ValueError, match="lunar is no alternative"):
        alternative("lunar", table("fast", "cpu"), CPU)


def test_compiling_on_a_cpu_drops_both_rows_that_keep_it_away() -> None:
    argv, environ = launched("eager", "fast", CPU)
    assert "--enforce-eager" not in argv
    assert "TORCH_COMPILE_DISABLE" not in environ


@pytest.mark.parametrize(
    ("name", "machine", "why"),
    [
        ("batch_invariance", CPU, "cuda_only"),
        ("attention_backend", CPU, "cuda_only"),
        ("tensor_parallel", CPU, "cuda_only"),
        ("tensor_parallel", GPU, "one_gpu"),
        ("tensor_parallel", Machine("cuda", gpus=2), None),
        ("eager", CPU, "slow_compile"),
        ("eager", Machine("cpu", compiler=False), "no_compiler"),
    ],
)
def test_what_a_device_cannot_take_says_why(name: str, machine: Machine, why: str | None) -> None:
    assert alternative(name, table("fast", machine.device), machine).obstacle == why
