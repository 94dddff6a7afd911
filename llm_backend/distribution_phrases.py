"""The recorded alternatives of two runs in sentences: what moved, what changed places, what is unknown."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

from llm_backend.compare import NEAR_TIE, Comparison
from llm_backend.distributions import Distributions, TvBound
from llm_backend.strings import Language, text

_MODES = ("raw_logprobs", "processed_logprobs", "raw_logits", "processed_logits")

_DIGITS = 2
"""Significant digits of a total variation."""


def distribution_sentences(found: Distributions, lang: Language = "en") -> list[str]:
    """One sentence each; empty when no position could be compared."""
    return list(_sentences(found, lang)) if found.positions or found.at_fork else []


def strip_summary(comparison: Comparison, found: Distributions, lang: Language = "en") -> str:
    """What the strip chart of a comparison shows, for those who do not see it."""
    margins, fork = found.margins, comparison.first_divergence
    parts = [text("strip.positions", lang, n=comparison.compared)]
    if comparison.level == "tokens":
        parts.append(text("strip.unknown", lang))
    elif comparison.drifted_positions:
        values = {"n": comparison.drifted_positions, "first": comparison.first_drift}
        parts.append(text("strip.drift", lang, largest=comparison.max_abs_logprob_diff, **values))
    else:
        parts.append(text("strip.no_drift", lang))
    if margins.known:
        parts.append(text("strip.ties", lang, near=margins.near_ties, exact=margins.exact_ties))
    if fork:
        parts.append(text("strip.fork", lang, position=fork.position))
    return " ".join(parts)


def _sentences(found: Distributions, lang: Language) -> Iterator[str]:
    yield from _alternatives(found, lang)
    if found.largest and found.largest_upper is not None and not _nothing_moved(found):
        # Where nothing is proven no position stands out; then the bound is the one that holds at all.
        upper = found.largest.upper if found.largest.lower else found.largest_upper
        yield _bound("largest", found.largest.model_copy(update={"upper": upper}), lang)
    if found.at_fork:
        yield _bound("fork", found.at_fork, lang)
    if found.at_fork or (found.largest and not _nothing_moved(found)):
        yield text("distribution.bound.means", lang)
    elif found.measured and not found.bounded:
        yield text("distribution.bound.none", lang)
    margins = found.margins
    if margins.known:
        key = "distribution.margins" if margins.near_ties else "distribution.margins.clear"
        yield text(key, lang, limit=NEAR_TIE, **margins.model_dump())


def _alternatives(found: Distributions, lang: Language) -> Iterator[str]:
    if not found.reference_k and not found.candidate_k:
        if found.positions:
            yield text("distribution.none", lang)
        return
    if not found.reference_k or not found.candidate_k:
        side = "replayed" if not found.reference_k else "recorded"
        yield text(f"distribution.only_{side}", lang)
        return
    if not found.comparable:
        yield text("distribution.other_quantity", lang)
        return
    mode = found.logprobs_mode if found.logprobs_mode in _MODES else "unknown"
    values = found.model_dump(exclude={"margins", "largest", "at_fork"})
    values["quantity"] = text(f"distribution.mode.{mode}", lang)
    yield text("distribution.other_k" if found.k_differs else "distribution.compared", lang, **values)
    if found.max_abs_diff == 0:
        yield text("distribution.equal", lang, **values)
    elif found.max_abs_diff is not None:
        yield text("distribution.moved", lang, **values)
    if found.reordered or found.replaced:
        yield text("distribution.ranks", lang, **values)
    elif found.measured and not _nothing_moved(found):
        yield text("distribution.ranks.same", lang)
    if found.one_sided or found.unknown:
        yield text("distribution.unknown", lang, n=found.one_sided + found.unknown)


def _nothing_moved(found: Distributions) -> bool:
    """Everything listed is equal: order and bound have nothing to add for people (JSON has them)."""
    proven = found.largest.lower if found.largest else 0
    return found.max_abs_diff == 0 and not found.one_sided and not proven


def _bound(where: str, bound: TvBound, lang: Language) -> str:
    """Rounded outwards: neither end may promise more than was measured."""
    key = f"distribution.bound.{where}" + ("" if bound.lower else ".zero")
    values = {"lower": _outwards(bound.lower, math.floor), "upper": _outwards(bound.upper, math.ceil)}
    return text(key, lang, position=bound.position, **values)


def _outwards(value: float, to_whole: Callable[[float], int]) -> str:
    if not value:
        return "0"
    unit = 10.0 ** (math.floor(math.log10(value)) + 1 - _DIGITS)
    return f"{min(to_whole(value / unit) * unit, 1.0):.{_DIGITS}g}"
