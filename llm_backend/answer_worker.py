"""Says whether two answers have the same value: one JSON object per line in, one out.

Run as a process of its own (`answer_judge` starts, times and kills it), because a short expression can
take all the time and memory there is: `9^{9^{9^9}}`. Its memory is limited here, and its processor time per
job too, so that it ends even when nobody is left to kill it.

math-verify reads the LaTeX and SymPy compares. Both are more generous than a teacher: 12 cm equals 12 km,
50 % equals 50, 0.333333 equals 1/3. So units and words are looked at here first, decimals are taken as
the exact fractions they are, and "different" is said only of values known to differ.
"""

from __future__ import annotations

import json
import logging
import os
import re
import resource
import sys
import unicodedata
from typing import Any

import sympy
from latex2sympy2_extended import NormalizationConfig
from math_verify import LatexExtractionConfig, parse, verify
from sympy.parsing.sympy_parser import parse_expr, rationalize, standard_transformations

from llm_backend.answers import closing_brace

MEMORY_BYTES = 1 << 30
CPU_SECONDS = 15
"""Per job; more than the judge's limit, so that the judge speaks first."""

LONGEST_VALUE = 60
"""Characters of a computed value that are worth showing."""

# Only LaTeX: math-verify's reader of plain expressions would evaluate Python.
_READ = (
    LatexExtractionConfig(
        boxed_match_priority=0,
        normalization_config=NormalizationConfig(
            basic_latex=True, units=False, malformed_operators=True, nits=True, boxed="last", equations=False
        ),
    ),
)
_SAFE = re.compile(r"[-+*/().\d]+")

_UNIT = re.compile(
    r"(?:\\[,;:! ]|~|\s)*(?P<unit>"
    r"\\(?:text|mathrm|mbox|textrm|rm|operatorname)\s*\{[^{}]*\}(?:\s*\^\s*\{?-?\d\}?)?"
    r"|\^\s*\{?\\circ\}?(?:\s*[CF])?|°[CF]?|[\u3400-\u4dbf\u4e00-\u9fff]+"
    r"|(?<=\d)\s*[a-zA-Z]{1,3}(?:\^\{?[23]\}?)?)$"
)
_WORD = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{3,}|[\u3400-\u4dbf\u4e00-\u9fff]")
_TEXT = re.compile(r"\\(?:text|mathrm|mbox|textrm|textbf)\s*\{([^{}]*)\}")
_DIGIT_GROUP = re.compile(r"(?<=\d)(?:\\[,;:! ]|~|\{,\}|\{\\,\}|[ \u00a0\u2009\u202f])(?=\d{3}(?!\d))")
_APART = re.compile(r"\d(?:\\[,;:! ]|~|\s)+\d")


def same_value(expected: str, answer: str) -> dict[str, str]:
    """SAME, DIFFERENT or UNKNOWN with a reason; neither answer is altered but for reading it."""
    left, right = _tidy(expected), _tidy(answer)
    if _as_text(left) == _as_text(right):
        return _same()
    (left, left_unit), (right, right_unit) = _without_unit(left), _without_unit(right)
    if _wordy(left) or _wordy(right):
        return _unknown("words")
    if len(left) == len(right) == 1 and left.isalpha() and right.isalpha():
        return _different()  # the choices of a question
    a, b = _read(left), _read(right)
    if a is None or b is None:
        return _unknown("unreadable")
    if left_unit and right_unit and left_unit != right_unit:
        return _unknown("units")
    opinion = _percentage(a, b) if ("%" in left) != ("%" in right) else _compare(a, b)
    degrees = {left_unit, right_unit} & {"°", "°C", "°F"}
    return _unknown("units") if degrees and left_unit != right_unit and opinion != _same() else opinion


def computed(expression: str, answer: str) -> dict[str, str]:
    """How `answer` relates to the value of `expression`, with the value where it can be shown."""
    if not _SAFE.fullmatch(expression):
        raise ValueError("not arithmetic")
    value = parse_expr(expression, transformations=(*standard_transformations, rationalize))
    if not value.is_finite:
        return _unknown("unreadable")
    rest, _ = _without_unit(_tidy(answer))
    read = None if _wordy(rest) else _read(rest)
    if read is None:
        opinion = _unknown("words" if _wordy(rest) else "unreadable")
    else:
        opinion = _percentage(value, read) if "%" in rest else _compare(value, read)
    shown = str(value) if abs(value) < 10**LONGEST_VALUE else ""
    return opinion | ({"value": shown} if 0 < len(shown) <= LONGEST_VALUE else {})


def _compare(a: Any, b: Any) -> dict[str, str]:
    exact_a, exact_b = _exact(a), _exact(b)
    if verify(exact_a, exact_b, timeout_seconds=None) or verify(exact_b, exact_a, timeout_seconds=None):
        return _same()
    exact_a, exact_b = _right_hand(exact_a, exact_b)
    if exact_a.free_symbols != exact_b.free_symbols:
        return _unknown("symbols")
    if not (isinstance(exact_a, sympy.Expr) and isinstance(exact_b, sympy.Expr)):
        # Sets, pairs, intervals and matrices of numbers were compared element by element.
        return _unknown("symbols") if exact_a.free_symbols else _different()
    if exact_a.has(sympy.zoo, sympy.nan) or exact_b.has(sympy.zoo, sympy.nan):
        return _unknown("unreadable")
    if _rounded(a, exact_b) or _rounded(b, exact_a):
        return _unknown("rounded")
    return _different() if exact_a.equals(exact_b) is False else _unknown("symbols")


def _percentage(a: Any, b: Any) -> dict[str, str]:
    """One side has a per cent sign: 50 % is 0.5, and whether it may stand for 50 is not ours to say."""
    exact_a, exact_b = _exact(a), _exact(b)
    if exact_a == exact_b:
        return _same()
    hundredfold = exact_a == 100 * exact_b or exact_b == 100 * exact_a
    return _unknown("units") if hundredfold else _compare(exact_a, exact_b)


def _exact(value: Any) -> Any:
    """Decimals as the fractions they are: 0.333333 is not 1/3."""
    if not isinstance(value, sympy.Basic):
        return value
    exact = value.xreplace({number: sympy.Rational(str(number)) for number in value.atoms(sympy.Float)})
    return exact.doit() if isinstance(exact, sympy.Expr) else exact


def _rounded(decimal: Any, other: Any) -> bool:
    """`other`, rounded or cut to the decimal's places, is the decimal: 0.333 beside 1/3."""
    if not isinstance(decimal, sympy.Float) or not other.is_real or other.is_infinite:
        return False
    exact = _exact(decimal)
    places = next(k for k in range(exact.q.bit_length() + 1) if 10**k % exact.q == 0)
    beyond = sympy.N((abs(other) - abs(exact)) * 10**places)
    return bool(-0.5 <= beyond < 1 and (other < 0) == (exact < 0))


def _right_hand(a: Any, b: Any) -> tuple[Any, Any]:
    """x = 7 beside 8, or beside x = 8: what the letter is said to be."""
    equations = [side for side in (a, b) if isinstance(side, sympy.Eq) and side.lhs.is_Symbol]
    if not equations or len({side.lhs for side in equations}) > 1:
        return a, b
    return tuple(side.rhs if side in equations else side for side in (a, b))


def _read(latex: str) -> Any:
    if not latex or _APART.search(latex) or closing_brace(latex + "}", 0) != len(latex):
        return None  # "1 25" would be read as 1 + 25, and of "5}{" only the 5
    found = parse(
        f"\\boxed{{{latex}}}",
        extraction_config=_READ,
        fallback_mode="no_fallback",
        extraction_mode="first_match",
        parsing_timeout=None,
    )
    return found[0] if found and not isinstance(found[0], str) else None


def _tidy(answer: str) -> str:
    tidy = unicodedata.normalize("NFKC", answer).strip().rstrip(".。").lstrip("=").strip()
    return _DIGIT_GROUP.sub("", tidy)


def _without_unit(answer: str) -> tuple[str, str]:
    unit = _UNIT.search(answer)
    if unit is None or not re.search(r"\d", answer[: unit.start()]):
        return answer, ""
    name = "".join(_TEXT.sub(r"\1", unit["unit"]).split())
    name = re.sub(r"\^\{?\\circ\}?", "°", name)
    return answer[: unit.start()], re.sub(r"[{}]", "", name)


def _wordy(answer: str) -> bool:
    """Words cannot be compared as mathematics: letters would be multiplied, and "TF" equal "FT"."""
    plain = _TEXT.sub(r" \1 ", answer)
    letters = re.sub(r"[\s,;.]", "", plain)
    return bool(_WORD.search(plain)) or (letters.isalpha() and len(letters) > 1)


def _as_text(answer: str) -> str:
    return "".join(_TEXT.sub(r"\1", answer).split()).casefold()


def _same() -> dict[str, str]:
    return {"sameness": "SAME"}


def _different() -> dict[str, str]:
    return {"sameness": "DIFFERENT"}


def _unknown(reason: str) -> dict[str, str]:
    return {"sameness": "UNKNOWN", "reason": reason}


def _allow_cpu() -> None:
    spent = resource.getrusage(resource.RUSAGE_SELF)
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    until = int(spent.ru_utime + spent.ru_stime) + CPU_SECONDS + 1
    resource.setrlimit(resource.RLIMIT_CPU, (until, hard))


def _answer(job: dict[str, str]) -> dict[str, str]:
    try:
        if "expression" in job:
            return computed(job["expression"], job["answer"])
        return same_value(job["expected"], job["answer"])
    except MemoryError:
        return _unknown("memory")
    except Exception:  # whatever two libraries raise about a text that is no mathematics
        return _unknown("unreadable")


def main() -> None:
    """Answer jobs until the input ends."""
    replies = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    sys.stdout = sys.stderr  # what the libraries print is no reply
    logging.disable(logging.CRITICAL)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    _reply(replies, {"ready": True})
    for line in sys.stdin:
        _allow_cpu()
        _reply(replies, _answer(json.loads(line)))


def _reply(replies: Any, reply: dict[str, Any]) -> None:
    replies.write(json.dumps(reply) + "\n")
    replies.flush()


if __name__ == "__main__":
    main()
