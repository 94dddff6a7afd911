"""Reads sampling settings as people type them; the chat and the command line share these rules.

Everything arrives as text (Chainlit's widgets deliver strings, empty ones as null, and a 64-bit seed
does not survive a JavaScript number), is checked against the range the engine accepts, and leaves as
a `Sampling` or as one sentence with the allowed range.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping

from llm_backend.config import SEED_MAX, SEED_MIN
from llm_backend.errors import SettingsError
from llm_backend.receipt import Sampling

MAX_TOP_LOGPROBS = 20
"""vLLM's `--max-logprobs` default, which both profiles pin."""


def parse_sampling(values: Mapping[str, object], base: Sampling) -> Sampling:
    """`base` with `values` read over it; raises `SettingsError` for the first bad one.

    Unknown names raise too: a field that silently does nothing is how seeds get lost.
    """
    parsed: dict[str, int | float] = {}
    for name, raw in values.items():
        if name not in _PARSERS:
            raise SettingsError(f"There is no setting called {name}.", f"Known: {', '.join(_PARSERS)}.")
        parsed[name] = _PARSERS[name]("" if raw is None else str(raw).strip())
    return base.model_copy(update=parsed)


def _integer(name: str, low: int, high: int, note: str = "") -> Callable[[str], int]:
    allowed = f"Use a whole number from {low} to {high}{note}."

    def parse(typed: str) -> int:
        # int() alone would take "1_000" and "٣"; the engine's logs and receipts should show what was typed.
        if not re.fullmatch(r"[+-]?[0-9]{1,20}", typed):
            raise SettingsError(f"{name} cannot be {_shown(typed)}.", allowed)
        value = int(typed)
        if not low <= value <= high:
            raise SettingsError(f"{name} {value} is out of range.", allowed)
        return value

    return parse


def _seed(typed: str) -> int:
    value = _integer("Seed", SEED_MIN, SEED_MAX, " except -1")(typed)
    if value == -1:
        raise SettingsError(
            "Seed -1 means 'no seed' to the engine, so the answer could not be reproduced.",
            f"Use a whole number from {SEED_MIN} to {SEED_MAX} except -1.",
        )
    return value


def _decimal(name: str, low: float, high: float, above: bool = False) -> Callable[[str], float]:
    allowed = f"Use a number {'above' if above else 'from'} {low:g} {'up ' if above else ''}to {high:g}."

    def parse(typed: str) -> float:
        try:
            value = float(typed)
        except ValueError:
            value = math.nan
        if not math.isfinite(value) or "_" in typed:
            raise SettingsError(f"{name} cannot be {_shown(typed)}.", allowed)
        if not low <= value <= high or (above and value == low):
            raise SettingsError(f"{name} {typed} is out of range.", allowed)
        return value

    return parse


def _shown(typed: str) -> str:
    return f"“{typed[:40]}”" if typed else "empty"


_PARSERS: dict[str, Callable[[str], int | float]] = {
    "seed": _seed,
    "temperature": _decimal("Temperature", 0, 2),
    "top_p": _decimal("top_p", 0, 1, above=True),
    "top_k": _integer("top_k", 0, 1_000_000, " (0 turns it off)"),
    "min_p": _decimal("min_p", 0, 1),
    "max_tokens": _integer("Max tokens", 1, 131_072),
    "top_logprobs": _integer("Alternatives per token", 0, MAX_TOP_LOGPROBS),
}
