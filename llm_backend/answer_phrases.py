"""The answer line in words: `Answer 112330 · ✓ right: 235*478 = 112330`.

About what an answer means, never about whether a replay came out the same: that is the verdict's line.
"""

from __future__ import annotations

from llm_backend.answers import AnswerCheck, AnswerPair, Sameness
from llm_backend.strings import Language, text
from llm_backend.token_text import printable

CHECK_SHAPES = {Sameness.SAME: "✓", Sameness.DIFFERENT: "✗", Sameness.UNKNOWN: "?"}
PAIR_SHAPES = {Sameness.SAME: "=", Sameness.DIFFERENT: "≠", Sameness.UNKNOWN: "?"}

LONGEST_SHOWN = 200
"""Characters of an answer in a line; the rest is in the answer itself."""


def answer_line(check: AnswerCheck, lang: Language = "en") -> str:
    """The answer verbatim and, where something was expected, whether it has that value."""
    if check.answer is None:
        none = text("answer.none", lang)
        if not check.expected:
            return none
        return f"{none} · {text('answer.expected', lang, expected=_shown(check.expected))}"
    line = text("answer.line", lang, answer=_shown(check.answer))
    judged = answer_judged(check, lang)
    return f"{line} · {judged}" if judged else line


def answer_judged(check: AnswerCheck, lang: Language = "en") -> str:
    """`✓ right: 235*478 = 112330`; empty when nothing was expected."""
    opinion = check.opinion
    if opinion is None:
        return ""
    expected = _shown(check.expected) if check.expected else None
    if check.source == "arithmetic":
        expression = _written(check.expression or "")
        detail = f"{expression} = {expected}" if expected else expression
    else:
        detail = text("answer.expected", lang, expected=expected)
    key = f"answer.{opinion.sameness.value.lower()}"
    said = text(key, lang, shape=CHECK_SHAPES[opinion.sameness], detail=detail)
    why = text(f"answer.why.{opinion.reason}", lang) if opinion.reason else ""
    return f"{said} ({why})" if why else said


def pair_line(pair: AnswerPair, lang: Language = "en") -> str:
    """How the answers of two runs with different words relate; empty when neither gave one."""
    if pair.reference is None and pair.candidate is None:
        return ""
    none = text("answer.pair.none", lang)
    values = {
        "reference": none if pair.reference is None else _shown(pair.reference),
        "candidate": none if pair.candidate is None else _shown(pair.candidate),
    }
    if pair.opinion is None:
        return text("answer.pair.one", lang, shape="?", **values)
    sameness = pair.opinion.sameness
    said = text(f"answer.pair.{sameness.value.lower()}", lang, shape=PAIR_SHAPES[sameness], **values)
    why = text(f"answer.why.{pair.opinion.reason}", lang) if pair.opinion.reason else ""
    return f"{said} ({why})" if why else said


def _shown(answer: str) -> str:
    flat = printable(" ".join(answer.split()))
    return flat if len(flat) <= LONGEST_SHOWN else flat[: LONGEST_SHOWN - 1] + "…"


def _written(expression: str) -> str:
    return expression.replace("**", "^").replace("*", " × ")
