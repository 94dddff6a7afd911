"""The settings form: good values in, bad ones refused with a sentence, the last good one kept."""

from __future__ import annotations

import pytest

from llm_backend.receipt import Sampling
from llm_backend.ui.settings_form import FIELDS, read_form, widgets

GOOD = Sampling(seed=7, temperature=0.5)


@pytest.mark.parametrize("typed", [None, "", "1.5", "abc", "9223372036854775808", "1e3", "-1"])
@pytest.mark.parametrize("lang", ["en", "zh-CN"])
def test_a_seed_outside_the_range_is_refused_and_the_last_good_one_kept(typed: object, lang: str) -> None:
    """RC-04: empty comes as null."""
    reading = read_form({"seed": typed}, GOOD, lang)  # type: ignore[arg-type]
    assert reading.sampling == GOOD
    (sentence,) = reading.refusals
    assert "9223372036854775807" in sentence


@pytest.mark.parametrize(
    ("typed", "seed"), [("0", 0), ("-5", -5), (" 42 ", 42), ("9223372036854775807", 2**63 - 1)]
)
def test_a_seed_within_the_range_is_taken_exactly(typed: str, seed: int) -> None:
    reading = read_form({"seed": typed}, GOOD, "en")
    assert (reading.sampling.seed, reading.refusals) == (seed, ())


def test_good_fields_are_applied_beside_bad_ones() -> None:
    reading = read_form({"seed": "x", "temperature": "0.9", "top_k": "-3"}, GOOD, "en")
    assert reading.sampling == GOOD.model_copy(update={"temperature": 0.9})
    assert len(reading.refusals) == 2


@pytest.mark.parametrize("value", ["0", "20"])
def test_alternatives_go_from_0_to_20(value: str) -> None:
    assert read_form({"top_logprobs": value}, GOOD, "en").sampling.top_logprobs == int(value)


@pytest.mark.parametrize("value", ["-1", "21"])
def test_more_alternatives_than_the_engine_gives_are_refused(value: str) -> None:
    """RC-14"""
    assert read_form({"top_logprobs": value}, GOOD, "en").refusals


def test_the_form_shows_what_it_would_read_back() -> None:
    sampling = Sampling(seed=2**63 - 1, temperature=0.1, top_p=0.95, max_tokens=60)
    shown = {widget.id: widget.initial for widget in widgets(sampling, "be brief", "zh-CN")}
    reading = read_form(shown, Sampling(), "zh-CN")
    assert (reading.sampling, reading.system_prompt, reading.refusals) == (sampling, "be brief", ())
    assert set(shown) == {*FIELDS, "system_prompt"}


def test_an_emptied_system_prompt_is_no_system_prompt() -> None:
    assert read_form({"system_prompt": None}, GOOD, "en").system_prompt == ""
