"""The answer line: which box is the answer, which questions are arithmetic, when two answers are the same."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from llm_backend.answer_judge import AnswerJudge
from llm_backend.answers import LONGEST, boxed_answer, typed_answer
from llm_backend.arithmetic import arithmetic


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"so \(\boxed{112330}\).", "112330"),
        (r"\boxed{1}, no: \boxed{2}", "2"),
        (r"\boxed{\dfrac{3}{8}} and \boxed{4", r"\dfrac{3}{8}"),
        (r"<think>\boxed{5}</think>\boxed{6}", "6"),
        (r"<think>\boxed{5}</think>six", None),
        (r"<think>\boxed{5}", None),
        (r"\boxed{5}</think>\boxed{6}", "6"),
        (r"\boxed{ 1{,}250 }", " 1{,}250 "),
        (r"\boxed{\{1,2\}}", r"\{1,2\}"),
        (r"\boxed{\boxed{7}}", "7"),
        (r"\boxed{7} in \boxed{}", "7"),
        (r"use `\boxed{5}`", None),
        ("```tex\n\\boxed{5}\n```", None),
        (r"\fbox{9}", "9"),
        (r"\boxed 5.", "5"),
        (r"\boxed 12", None),
        (r"a\\boxed{5}", None),
        (r"a\\\boxed{5}", "5"),
        ("no box", None),
    ],
)
def test_the_answer_is_the_last_complete_box_of_the_answer_part(text: str, answer: str | None) -> None:
    """RC-50"""
    assert boxed_answer(text) == answer


def test_what_a_teacher_types_loses_only_its_wrapping() -> None:
    assert [typed_answer(t) for t in ("$5$", r"\(5\)", r" \boxed{5} ", r"$\frac12$", "x=5")] == [
        "5",
        "5",
        "5",
        r"\frac12",
        "x=5",
    ]


@pytest.mark.parametrize(
    ("question", "expression"),
    [
        ("What is 235 times 478?", "235*478"),
        ("请计算235乘以478的结果是多少？", "235*478"),
        ("What is 235 × 478? Show the steps.", "235*478"),
        ("235 × 478 等于多少？请写出步骤。", "235*478"),
        ("12 + 30", "12+30"),
        ("１２＋３０＝？", "12+30"),
        ("1/3 + 1/6 = ?", "1/3+1/6"),
        ("1,250 + 3", "1250+3"),
        ("What is 15% of 80?", "(15/100)*80"),
        ("What is 2+2? Put your final answer within \\boxed{}.", "2+2"),
        ("7除以2", "7/2"),
    ],
)
def test_questions_that_are_only_arithmetic_are_recognised(question: str, expression: str) -> None:
    assert arithmetic(question) == expression


@pytest.mark.parametrize(
    "question",
    [
        "2 plus 3 times 4",
        "6÷2(1+2)",
        "2^3^2",
        "2除8",
        "80 - 15%",
        "2024-05-12",
        "05 + 3",
        "12",
        "What is 2+2? Double the result.",
        "Solve x+2=3",
        "__import__('os')",
        "1 250 + 3",
        "(" * 300 + "1+1",
    ],
)
def test_a_question_with_two_readings_is_not_computed(question: str) -> None:
    assert arithmetic(question) is None


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def judge() -> AsyncIterator[AnswerJudge]:
    async with AnswerJudge() as judge:
        yield judge


SAME = [
    ("1{,}250", "1250"),
    (r"1\,250", "1250"),
    (r"\dfrac{3}{8}", "0.375"),
    ("x=7", "7"),
    (r"12\text{ cm}", "12"),
    ("-0", "0"),
    (r"\{1,2\}", r"\{2,1\}"),
    ("x^2+2x+1", "(x+1)^2"),
    (r"50\%", "0.5"),
    (r"\text{Knight}", r"\text{knight}"),
]
DIFFERENT = [
    ("2^{40}", "2^{41}"),
    ("12", "21"),
    (r"\pm3", "3"),
    ("112330", "112331"),
    ("A", "B"),
    ("x=7", "8"),
    ("(1,2)", "(2,1)"),
    ("10000000000000000000000001", "10000000000000000000000002"),
    ("1 250", "1251"),
]
UNKNOWN = [
    (r"12\text{ cm}", r"12\text{ km}", "units"),
    ("50\\%", "50", "units"),
    ("0.333333", r"\frac13", "rounded"),
    ("TF", "FT", "words"),
    ("5}{", "5", "unreadable"),
    (r"\frac{1}{0}", "5", "unreadable"),
    ("x+1", "3", "symbols"),
]


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize(
    ("expected", "answer", "sameness", "reason"),
    [
        *((a, b, "SAME", None) for a, b in SAME),
        *((a, b, "DIFFERENT", None) for a, b in DIFFERENT),
        *((a, b, "UNKNOWN", reason) for a, b, reason in UNKNOWN),
    ],
)
async def test_same_is_said_of_equal_values_different_of_unequal_ones_and_else_neither(
    judge: AnswerJudge, expected: str, answer: str, sameness: str, reason: str | None
) -> None:
    """RC-50; the libraries alone call 12 cm and 12 km, 50 % and 50, and 0.333333 and 1/3 the same."""
    opinion = await judge.compare(expected, answer)
    assert (opinion.sameness, opinion.reason) == (sameness, reason)


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize(
    ("expression", "answer", "sameness", "value"),
    [
        ("235*478", "112,330", "SAME", "112330"),
        ("235*478", "112331", "DIFFERENT", "112330"),
        ("7/2", "3.5", "SAME", "7/2"),
        ("7/3", "2.33", "UNKNOWN", "7/3"),
        ("7/0", "1", "UNKNOWN", None),
    ],
)
async def test_arithmetic_is_computed_exactly(
    judge: AnswerJudge, expression: str, answer: str, sameness: str, value: str | None
) -> None:
    opinion = await judge.compute(expression, answer)
    assert (opinion.sameness, opinion.value) == (sameness, value)


async def test_a_hostile_expression_ends_in_time_and_the_next_question_is_answered() -> None:
    """A tower of powers takes all the time and memory there is; it must not take the app's."""
    async with AnswerJudge(limit_s=2.0) as judge:
        assert (await judge.compare("2", "1+1")).sameness == "SAME"
        begin = time.monotonic()
        assert (await judge.compare("9^{9^{9^9}}", "5")).reason == "timeout"
        assert time.monotonic() - begin < 6
        assert (await judge.compare("5", "7")).sameness == "DIFFERENT"


async def test_a_very_long_answer_is_only_compared_as_text() -> None:
    async with AnswerJudge() as judge:
        long = "1+" * 50_000 + "1"
        assert len(long) > LONGEST
        assert (await judge.compare(long, "1")).reason == "too_long"
        assert (await judge.compare(long, long)).sameness == "SAME"
