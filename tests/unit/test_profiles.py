"""What each profile launches, and that nobody launches what is known to break."""

from __future__ import annotations

from dataclasses import replace

import pytest

from llm_backend.engine.profiles import (
    PROFILES,
    Device,
    Entry,
    LaunchValues,
    Profile,
    arguments,
    environment,
    explain,
    rows,
)

HOPPER = LaunchValues(seed=42, max_model_len=32768, compute_capability=9)
ADA = LaunchValues(seed=42, max_model_len=32768, compute_capability=8)
CPU = LaunchValues(seed=7, max_model_len=4096)


def launched(profile: Profile, device: Device, values: LaunchValues) -> tuple[list[str], dict[str, str]]:
    table = rows(profile, device, values)
    return list(arguments(table)), environment(table)


def value_of(argv: list[str], flag: str) -> str:
    return argv[argv.index(flag) + 1]


@pytest.mark.parametrize(("cores", "expected"), [(1, "0"), (2, "0"), (3, None), (None, None)])
def test_a_small_machine_computes_on_all_its_cores(cores: int | None, expected: str | None) -> None:
    table = rows("fast", "cpu", replace(CPU, cores=cores))
    environ = environment(table)
    assert environ.get("VLLM_CPU_NUM_OF_RESERVED_CPU") == expected
    assert ("OMP_WAIT_POLICY" in environ) == (expected is not None)  # never the one without the other


def test_strict_on_hopper_is_the_combination_that_passed_every_cell() -> None:
    """RC-01, RC-02"""
    argv, environ = launched("strict", "cuda", HOPPER)
    assert environ["VLLM_BATCH_INVARIANT"] == "1"
    assert environ["VLLM_USE_FLASHINFER_SAMPLER"] == "0"
    assert value_of(argv, "--attention-backend") == "TRITON_ATTN"
    assert "--no-enable-prefix-caching" in argv
    assert environ["ENCORE_STRICT_GEMM"] == "cublas"
    assert environ["ENCORE_STRICT_ATTENTION"] == "segments"
    assert value_of(argv, "--max-num-batched-tokens") == "8192"


@pytest.mark.parametrize(("profile", "device"), [("fast", "cuda"), ("fast", "cpu"), ("strict", "cpu")])
def test_only_strict_on_a_gpu_asks_for_the_plugin(profile: Profile, device: Device) -> None:
    argv, environ = launched(profile, device, HOPPER if device == "cuda" else CPU)
    assert "ENCORE_STRICT_GEMM" not in environ
    assert "--max-num-batched-tokens" not in argv


def test_strict_elsewhere_pins_flash_attention() -> None:
    argv, environ = launched("strict", "cuda", ADA)
    assert argv.count("--attention-backend") == 1
    assert value_of(argv, "--attention-backend") == "FLASH_ATTN"
    assert "ENCORE_STRICT_ATTENTION" not in environ, "it serves the Triton backend alone"


@pytest.mark.parametrize("values", [HOPPER, ADA])
def test_batch_invariance_never_comes_with_enforce_eager(values: LaunchValues) -> None:
    """Measured: eager mode takes another RMSNorm kernel, and it forked."""
    argv, environ = launched("strict", "cuda", values)
    assert "VLLM_BATCH_INVARIANT" in environ
    assert "--enforce-eager" not in argv


@pytest.mark.parametrize("profile", PROFILES)
def test_a_cpu_never_gets_batch_invariance(profile: Profile) -> None:
    """The server would start, say it is healthy, and die at the first request."""
    _, environ = launched(profile, "cpu", CPU)
    assert "VLLM_BATCH_INVARIANT" not in environ


def test_strict_on_cpu_runs_one_sequence_at_a_time() -> None:
    """RC-01, RC-02: alone in the engine, and nothing cached between runs."""
    argv, _ = launched("strict", "cpu", CPU)
    assert value_of(argv, "--max-num-seqs") == "1"
    assert "--no-enable-prefix-caching" in argv
    assert "--enforce-eager" in argv


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_fast_leaves_batching_and_prefix_caching_to_vllm(device: Device) -> None:
    argv, environ = launched("fast", device, HOPPER if device == "cuda" else CPU)
    assert "--max-num-seqs" not in argv
    assert "--no-enable-prefix-caching" not in argv
    assert "VLLM_BATCH_INVARIANT" not in environ


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize(("device", "values"), [("cpu", CPU), ("cuda", HOPPER)])
def test_every_launch_pins_seed_length_and_defaults(
    profile: Profile, device: Device, values: LaunchValues
) -> None:
    """RC-06, RC-10: no default of the model or of vLLM decides anything."""
    argv, _ = launched(profile, device, values)
    assert value_of(argv, "--seed") == str(values.seed)
    assert value_of(argv, "--max-model-len") == str(values.max_model_len)
    assert value_of(argv, "--generation-config") == "vllm"
    assert value_of(argv, "--dtype") == "bfloat16"
    assert value_of(argv, "--tensor-parallel-size") == "1"
    assert value_of(argv, "--logprobs-mode") == "raw_logprobs"
    assert len(argv) == len(set(argv)) + repeated_values(argv), "a flag is given twice"


def repeated_values(argv: list[str]) -> int:
    values = [part for part in argv if not part.startswith("--")]
    return len(values) - len(set(values))


@pytest.mark.parametrize("entry", [entry for profile in PROFILES.values() for entry in profile])
def test_every_entry_says_why_and_where_from(entry: Entry) -> None:
    assert entry.why.endswith(".")
    assert entry.source
    assert "\n" not in entry.why


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize(("device", "values"), [("cpu", CPU), ("cuda", HOPPER), ("cuda", ADA)])
def test_a_recorded_launch_is_explained_by_the_rows_it_was_made_from(
    profile: Profile, device: Device, values: LaunchValues
) -> None:
    table = rows(profile, device, values)
    assert set(explain(arguments(table), environment(table))) == set(table)


def test_a_variable_of_the_deployers_own_is_listed_without_a_reason() -> None:
    (row,) = explain((), {"OMP_NUM_THREADS": "2"})
    assert (row.name, row.value, row.why) == ("OMP_NUM_THREADS", "2", "")
