"""Both languages say the same things, and numbers are worded right in each."""

from __future__ import annotations

import json
from pathlib import Path
from string import Formatter

import pytest

import llm_backend
from llm_backend.receipt import EngineFingerprint, Sampling
from llm_backend.strings import LANGUAGES, Language, catalogue, duration, nats, percent, pick_language, text

LOCALE = Path(llm_backend.__file__).parent / "locale"


def fields(template: str) -> set[str]:
    return {name for _, name, _, _ in Formatter().parse(template) if name is not None}


def test_both_languages_have_the_same_keys() -> None:
    assert catalogue("en").keys() == catalogue("zh-CN").keys()


@pytest.mark.parametrize("key", sorted(catalogue("en")))
def test_a_sentence_has_the_same_fields_in_both_languages(key: str) -> None:
    assert fields(catalogue("en")[key]) == fields(catalogue("zh-CN")[key])


@pytest.mark.parametrize("lang", LANGUAGES)
def test_no_key_is_written_twice_in_one_file(lang: Language) -> None:
    for file in (LOCALE / lang).glob("*.json"):
        pairs = json.loads(file.read_text(encoding="utf-8"), object_pairs_hook=list)
        assert len(pairs) == len({key for key, _ in pairs}), file


@pytest.mark.parametrize("lang", LANGUAGES)
@pytest.mark.parametrize(
    "key",
    [
        *(f"engine.{field}" for field in EngineFingerprint.model_fields),
        *(f"sampling.{field}" for field in Sampling.model_fields),
    ],
)
def test_every_field_has_words(key: str, lang: Language) -> None:
    assert text(key, lang)


def test_an_unknown_key_is_an_error() -> None:
    with pytest.raises(KeyError):
        text("no.such.key")


@pytest.mark.parametrize(
    ("n", "said"), [(0, "0 tokens"), (1, "1 token"), (2, "2 tokens"), (32768, "32,768 tokens")]
)
def test_plurals(n: int, said: str) -> None:
    assert text("run.tokens", n=n) == said


def test_chinese_needs_no_plural() -> None:
    assert text("run.tokens", "zh-CN", n=1) == "1 个词元"


@pytest.mark.parametrize(("lang", "said"), [("en", "n/a"), ("zh-CN", "未知")])
def test_unknown_is_never_a_number(lang: Language, said: str) -> None:
    assert text("fork.token", lang, token="x", p=None).count(said) == 1


@pytest.mark.parametrize(
    ("accept", "expected"),
    [
        ("zh-CN,zh;q=0.9", "zh-CN"),
        ("zh", "zh-CN"),
        ("zh-TW", "zh-CN"),
        ("zh_CN.UTF-8", "zh-CN"),
        ("en-GB,en;q=0.9,zh;q=0.8", "en"),
        ("en;q=0.5, zh;q=0.7", "zh-CN"),
        ("fr,zh;q=0.3", "zh-CN"),
        ("fr-CH, de", "en"),
        ("zh;q=0", "en"),
        ("zh;q=nonsense", "en"),
        ("*", "en"),
        ("", "en"),
        (None, "en"),
    ],
)
def test_language_choice(accept: str | None, expected: str) -> None:
    assert pick_language(accept) == expected


@pytest.mark.parametrize(
    ("probability", "said"),
    [
        (1.0, "100.0 %"),
        (0.99999, "> 99.9 %"),
        (0.42, "42.0 %"),
        (0.4249, "42.5 %"),
        (0.001, "0.1 %"),
        (0.0004, "< 0.1 %"),
        (0.0, "< 0.1 %"),
    ],
)
def test_percentages_never_round_to_certainty_or_impossibility(probability: float, said: str) -> None:
    assert percent(probability) == said


@pytest.mark.parametrize(
    ("value", "said"), [(0.0241, "0.0241"), (0.08712, "0.0871"), (0.0, "0"), (2.4e-5, "2.4e-05")]
)
def test_nats(value: float, said: str) -> None:
    assert nats(value) == said


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (0.0321, "32 ms"),
        (0.9999, "1.0 s"),
        (4.23, "4.2 s"),
        (59.96, "60.0 s"),
        (61, "1 min 1 s"),
        (3600, "60 min 0 s"),
    ],
)
def test_durations(seconds: float, said: str) -> None:
    assert duration(seconds) == said
