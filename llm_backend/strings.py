"""Every sentence people read, in English and Simplified Chinese.

The words live in `locale/<language>/*.json` as flat dotted keys; both languages carry the same keys
with the same fields (a unit test holds them to it), so a missing translation is found before a
person meets it. Fields are those of `str.format`, plus four specs numbers need in every sentence:

    {n:token|tokens}   the first word when n is 1, the second otherwise
    {p:percent}        a probability as "42.0 %"; never "0 %" for a small one
    {x:nats}           a logprob or a difference of two, three significant digits
    {t:duration}       seconds as "320 ms" or "4.2 s"

None is shown as "n/a" whatever the spec: unknown is never a number.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from string import Formatter
from types import MappingProxyType
from typing import Any, Literal, get_args

Language = Literal["en", "zh-CN"]

LANGUAGES: tuple[Language, ...] = get_args(Language)

_BY_PRIMARY_TAG: dict[str, Language] = {"en": "en", "zh": "zh-CN"}

_LOCALE = Path(__file__).parent / "locale"


def text(key: str, lang: Language = "en", **values: Any) -> str:
    """The sentence under `key` with its fields filled in; an unknown key is a bug and raises KeyError."""
    words = catalogue(lang)
    return _Sentence(words["value.unknown"]).vformat(words[key], (), values)


@lru_cache(maxsize=len(LANGUAGES))
def catalogue(lang: Language) -> Mapping[str, str]:
    """All templates of one language, for the parts of the page that fill them in themselves."""
    words: dict[str, str] = {}
    for file in sorted((_LOCALE / lang).glob("*.json")):
        for key, template in json.loads(file.read_text(encoding="utf-8")).items():
            if key in words:
                raise ValueError(f"{file.name} ({lang}) repeats the key {key}")
            words[key] = template
    return MappingProxyType(words)


def pick_language(accept: str | None) -> Language:
    """The best of our languages for an `Accept-Language` header or a locale name such as `zh_CN.UTF-8`.

    Any Chinese is served Simplified Chinese: nearer to the reader than English.
    """
    best: Language = "en"
    best_weight = 0.0
    for entry in (accept or "").split(","):
        tag, _, parameter = entry.strip().lower().replace("_", "-").partition(";")
        language = _BY_PRIMARY_TAG.get(tag.partition("-")[0])
        weight = _weight(parameter)
        if language and weight > best_weight:
            best, best_weight = language, weight
    return best


def percent(probability: float) -> str:
    """A probability for people: one decimal, and what rounds to 0 or 100 without being it says so."""
    if probability < 0.0005:
        return "< 0.1 %"
    if 0.9995 <= probability < 1:
        return "> 99.9 %"
    return f"{probability * 100:.1f} %"


def nats(value: float) -> str:
    """Three significant digits; the unit belongs to the sentence."""
    return f"{value:.3g}"


def duration(seconds: float) -> str:
    """Milliseconds below one second, minutes from one minute on."""
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s"


class _Sentence(Formatter):
    def __init__(self, unknown: str) -> None:
        self._unknown = unknown

    def format_field(self, value: Any, format_spec: str) -> str:
        if value is None:
            return self._unknown
        if "|" in format_spec:
            one, many = format_spec.split("|")
            return one if value == 1 else many
        match format_spec:
            case "percent":
                return percent(value)
            case "nats":
                return nats(value)
            case "duration":
                return duration(value)
        return str(super().format_field(value, format_spec))


def _weight(parameter: str) -> float:
    """The q value of one `Accept-Language` entry; 1 when absent, 0 when unreadable."""
    name, _, value = parameter.strip().partition("=")
    if name != "q":
        return 1.0
    try:
        return float(value)
    except ValueError:
        return 0.0
