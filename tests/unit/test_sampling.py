"""Settings as people type them: what passes, what is refused with which range (RC-04, RC-14)."""

from __future__ import annotations

import pytest

from llm_backend.errors import SettingsError
from llm_backend.receipt import Sampling
from llm_backend.sampling import parse_sampling

BASE = Sampling(seed=42, temperature=0.8, top_p=0.95)


@pytest.mark.parametrize(
    ("typed", "seed"),
    [
        ("0", 0),
        ("-5", -5),
        (" 42 ", 42),
        ("9223372036854775807", 2**63 - 1),
        ("-9223372036854775808", -(2**63)),
        (7, 7),
    ],
)
def test_good_seeds_are_taken_digit_for_digit(typed: object, seed: int) -> None:
    """RC-04: 0 and negative numbers are seeds."""
    assert parse_sampling({"seed": typed}, BASE).seed == seed


@pytest.mark.parametrize(
    "typed", ["", None, "-1", "1.5", "1e3", "abc", "9223372036854775808", "1_000", "٣", "0x10", "9" * 30]
)
def test_bad_seeds_are_refused_with_the_range(typed: object) -> None:
    """RC-04"""
    with pytest.raises(SettingsError) as caught:
        parse_sampling({"seed": typed}, BASE)
    assert "9223372036854775807" in caught.value.advice


@pytest.mark.parametrize(
    ("name", "typed", "value"),
    [
        ("temperature", "0", 0.0),
        ("temperature", "2", 2.0),
        ("top_p", "0.95", 0.95),
        ("top_p", "1", 1.0),
        ("top_k", "0", 0),
        ("min_p", "0.05", 0.05),
        ("max_tokens", "1", 1),
        ("top_logprobs", "0", 0),
        ("top_logprobs", "20", 20),
    ],
)
def test_values_at_the_edge_of_their_range_pass(name: str, typed: str, value: float) -> None:
    assert getattr(parse_sampling({name: typed}, BASE), name) == value


@pytest.mark.parametrize(
    ("name", "typed", "range_"),
    [
        ("temperature", "2.1", "from 0 to 2"),
        ("temperature", "nan", "from 0 to 2"),
        ("temperature", "inf", "from 0 to 2"),
        ("temperature", "-0.1", "from 0 to 2"),
        ("top_p", "0", "above 0 up to 1"),
        ("top_p", "1.01", "above 0 up to 1"),
        ("top_k", "-1", "from 0 to"),
        ("top_k", "1.5", "from 0 to"),
        ("min_p", "1.5", "from 0 to 1"),
        ("max_tokens", "0", "from 1 to"),
        ("top_logprobs", "21", "from 0 to 20"),
        ("top_logprobs", "-1", "from 0 to 20"),
    ],
)
def test_values_outside_their_range_are_one_sentence(name: str, typed: str, range_: str) -> None:
    """RC-14: 21 and -1 alternatives among them."""
    with pytest.raises(SettingsError) as caught:
        parse_sampling({name: typed}, BASE)
    assert range_ in caught.value.advice


def test_an_unknown_setting_is_an_error_not_a_no_op() -> None:
    with pytest.raises(SettingsError, match="do_sample"):
        parse_sampling({"do_sample": "False"}, BASE)


def test_settings_not_given_keep_their_value() -> None:
    assert parse_sampling({"seed": "1"}, BASE) == BASE.model_copy(update={"seed": 1})


def test_effective_values_are_what_the_engine_applies() -> None:
    greedy = Sampling(seed=7, temperature=0, top_p=0.5, top_k=40, min_p=0.1).effective()
    assert (greedy.top_p, greedy.top_k, greedy.min_p, greedy.seed) == (1.0, 0, 0.0, None)
    raised = Sampling(seed=7, temperature=0.001, top_k=-1).effective()
    assert (raised.temperature, raised.top_k, raised.seed) == (0.01, 0, 7)
