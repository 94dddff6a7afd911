"""Recognises a question that is nothing but arithmetic, so that its answer can be computed.

This reads no mathematics: it takes the words of asking away, replaces "times" and "乘以" by signs, and
accepts what is left only if Python reads it as numbers, signs and brackets, in an order that leaves no doubt.
Everything else ("2 plus 3 times 4", "6÷2(1+2)", "2^3^2", "80 - 15%", dates) is no arithmetic question.
SymPy computes it (`answer_worker`), Python never does: 9^(9^9) must not be tried here.
"""

from __future__ import annotations

import ast
import re
import unicodedata

_ASKING = re.compile(
    r"(?:please\s+)?(?:what(?:'s|\s+is)(?:\s+the\s+(?:result|value)\s+of)?|how\s+much\s+is|calculate|compute"
    r"|evaluate|work\s+out|find)\s+(?P<en>.+)"
    r"|(?:请问|请)?(?:你)?(?:计算|算一下|算出|求)?(?:一下)?[::,,\s]*(?P<zh>.+?)"
    r"(?:的)?(?:计算)?(?:结果|值|得数)?(?:是多少|等于多少|等于几|得多少|是几|=\s*[??])?",
    re.IGNORECASE | re.DOTALL,
)
_HOW_TO_ANSWER = re.compile(
    r"[^0-9]*(?:\bsteps?\b|\breasoning\b|\bworking\b|\\boxed|\bexplain\b|步骤|过程|推理|一步)[^0-9]*",
    re.IGNORECASE,
)
"""A second sentence that says how to answer, not what: "Show the steps."."""

_WORDS = (
    (re.compile(r"(?<=[\d)%])\s*(?:times|multiplied\s+by)\s*(?=[\d(-])", re.IGNORECASE), "*"),
    (re.compile(r"(?<=[\d)%])\s*plus\s*(?=[\d(-])", re.IGNORECASE), "+"),
    (re.compile(r"(?<=[\d)%])\s*minus\s*(?=[\d(-])", re.IGNORECASE), "-"),
    (re.compile(r"(?<=[\d)%])\s*(?:divided\s+by|over)\s*(?=[\d(-])", re.IGNORECASE), "/"),
    (re.compile(r"(?<=%)\s*of\s*(?=[\d(])", re.IGNORECASE), "*"),
    (re.compile(r"(?<=[\d)%])\s*乘以?\s*(?=[\d(-])"), "*"),
    (re.compile(r"(?<=[\d)%])\s*加上?\s*(?=[\d(-])"), "+"),
    (re.compile(r"(?<=[\d)%])\s*减去?\s*(?=[\d(-])"), "-"),
    # "2除8" is 8/2 and "2除以8" is 2/8: only the second cannot be misread.
    (re.compile(r"(?<=[\d)%])\s*除以\s*(?=[\d(-])"), "/"),
)
_SIGNS = (
    (re.compile(r"[×·⋅∙*]|\\times|\\cdot|(?<=\d)\s*[xX]\s*(?=\d)"), "*"),
    (re.compile(r"[÷∕]|\\div"), "/"),
    (re.compile(r"[−–]"), "-"),
    (re.compile(r"\^|\*\*"), "^"),
    (re.compile(r"(?<=\d),(?=\d{3}(?!\d))"), ""),
)
_PERCENT = re.compile(r"(\d+(?:\.\d+)?)\s*%")
_ONLY_ARITHMETIC = re.compile(r"[-+*/^()\d.\s]+")
_ALLOWED = (ast.BinOp, ast.UnaryOp, ast.Constant, ast.operator, ast.USub)
_LOOKS_LIKE_A_DATE = re.compile(r"\d{4}[-/]\d{1,2}[-/]\d{1,2}|\d{1,2}/\d{1,2}/\d{2,4}")

LONGEST_QUESTION = 400


def arithmetic(question: str) -> str | None:
    """What is to be computed, in Python's notation (`235*478`); None unless there is no doubt."""
    if len(question) > LONGEST_QUESTION:
        return None
    asked = unicodedata.normalize("NFKC", question).strip()
    asked, _, rest = _first_sentence(asked)
    if rest and not _HOW_TO_ANSWER.fullmatch(rest):
        return None
    asking = _ASKING.fullmatch(asked)
    if asking is None:
        return None
    expression = (asking["en"] or asking["zh"]).strip().removesuffix("=").strip()
    if _LOOKS_LIKE_A_DATE.search(expression):
        return None
    spoken = 0
    for words, sign in _WORDS:
        expression, count = words.subn(sign, expression)
        spoken += count
    for written, sign in _SIGNS:
        expression = written.sub(sign, expression)
    return _checked(expression, spoken)


def _first_sentence(text: str) -> tuple[str, str, str]:
    """Up to the first `?`, `。`, `!`, line end, or full stop that ends a sentence; what follows it."""
    end = re.search(r"\s*=?\s*[??。!]|\.(?=\s|$)|\n", text)
    if end is None:
        return text, "", ""
    return text[: end.start()].strip(), end.group(), text[end.end() :].strip()


def _checked(expression: str, spoken: int) -> str | None:
    """`expression` in Python's notation if it is arithmetic with one reading."""
    expression, percentages = _PERCENT.subn(r"(\1/100)", expression)
    if not _ONLY_ARITHMETIC.fullmatch(expression):
        return None
    written = "".join(expression.replace("^", "**").split()) if _one_number_each(expression) else ""
    try:
        tree = ast.parse(written, mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    nodes = list(ast.walk(tree.body))
    operators = [type(node.op) for node in nodes if isinstance(node, ast.BinOp)]
    asked = len(operators) - percentages
    if not all(isinstance(node, _ALLOWED) for node in nodes) or asked < 1:
        return None
    if spoken and asked > 1:
        return None  # "2 plus 3 times 4": said aloud, the order is open
    if percentages and (asked > 1 or ast.Mult not in operators):
        return None  # "80 - 15%" means 68 to some and 79.85 to others
    if operators.count(ast.Pow) > 1 and "(" not in written:
        return None
    return written


def _one_number_each(expression: str) -> bool:
    """No two numbers side by side: "1 250" is not one number, nor two."""
    return not re.search(r"\d\s+[\d.]", expression)
