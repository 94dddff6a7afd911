"""The settings of the next run as a form. Numbers are text fields: a 64-bit seed does not survive a
JavaScript number, and a number field sends what it likes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from chainlit.input_widget import InputWidget, TextInput

from llm_backend.errors import SettingsError
from llm_backend.receipt import Sampling
from llm_backend.sampling import parse_sampling
from llm_backend.strings import Language, text

FIELDS = ("seed", "temperature", "top_p", "top_k", "min_p", "max_tokens", "top_logprobs")
SYSTEM_PROMPT = "system_prompt"

LONGEST_SHOWN = 40


@dataclass(frozen=True, slots=True)
class Reading:
    """What a submitted form means: good values applied, bad ones refused with a sentence each."""

    sampling: Sampling
    system_prompt: str
    refusals: tuple[str, ...]


def widgets(sampling: Sampling, system_prompt: str, lang: Language) -> list[InputWidget]:
    """The form's fields, filled with the values in force."""
    fields: list[InputWidget] = [
        TextInput(
            id=name,
            label=text(f"settings.{name}", lang),
            description=text(f"settings.{name}.help", lang),
            initial=_shown(getattr(sampling, name)),
        )
        for name in FIELDS
    ]
    prompt = TextInput(
        id=SYSTEM_PROMPT,
        label=text("settings.system_prompt", lang),
        description=text("settings.system_prompt.help", lang),
        initial=system_prompt,
        multiline=True,
    )
    return [*fields, prompt]


def read_form(values: Mapping[str, object], sampling: Sampling, lang: Language) -> Reading:
    """Read every field over the values in force; a bad field keeps its last good value."""
    refusals = []
    for name in FIELDS:
        if name not in values:
            continue
        try:
            sampling = parse_sampling({name: values[name]}, sampling)
        except SettingsError as error:
            refusals.append(_refusal(name, values[name], error, lang))
    prompt = values.get(SYSTEM_PROMPT)
    return Reading(sampling, str(prompt) if prompt is not None else "", tuple(refusals))


def _shown(value: object) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    return "" if value is None else str(value)


def _refusal(name: str, typed: object, error: SettingsError, lang: Language) -> str:
    if lang == "en":
        return error.diagnostics()
    shown = str(typed).strip()[:LONGEST_SHOWN] if typed is not None else ""
    key = "settings.refused" if shown else "settings.refused_empty"
    label, allowed = text(f"settings.{name}", lang), text(f"settings.{name}.help", lang)
    return text(key, lang, label=label, typed=shown, allowed=allowed)
