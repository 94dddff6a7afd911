"""Suites as data: the shipped one, and files that people write."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from sample_receipts import engine

from llm_backend.errors import SettingsError
from llm_backend.suite import without_login
from llm_backend.suites import load_suite
from llm_backend.verify_plan import Pace, choose

MINE = """
name = "mine"
seed = 7
temperature = 0.6

[[prompts]]
name = "sum"
text = "2 + 2 = ?"
sampling = ["greedy", "seeded"]
max_tokens = 8

[[prompts]]
name = "taught"
text = "2 + 3 = ?"
system = "Be brief."
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "我的 suite.toml"


def test_the_shipped_suite_asks_in_both_languages_short_and_long_greedy_and_seeded() -> None:
    suite = load_suite()
    texts = {prompt.name: prompt.text for prompt in suite.prompts}
    assert texts["product-zh"] == "请计算235乘以478的结果是多少？"
    assert texts["pythagoras-zh"] == "请解释勾股定理，并给出一个例子"
    assert "What is 235 times 478?" in texts.values()
    assert max(map(len, texts.values())) > 3500, "about 1,500 tokens"
    ways = {name.rpartition("/")[2] for name, _, _ in suite.cases()}
    assert ways == {"greedy", "seeded"}
    assert all(sampling.seed == 42 for _, _, sampling in suite.cases())


def test_quick_keeps_what_is_marked_or_else_the_first() -> None:
    assert [prompt.name for prompt in load_suite().quick().prompts] == ["product-en"]


def test_cases_carry_their_own_sampling(file: Path) -> None:
    file.write_text(MINE, encoding="utf-8")
    suite = load_suite(file)
    cases = {name: (prompt, sampling) for name, prompt, sampling in suite.cases()}
    assert list(cases) == ["sum/greedy", "sum/seeded", "taught/greedy"]
    assert cases["sum/greedy"][1].greedy
    seeded = cases["sum/seeded"][1]
    assert (seeded.seed, seeded.temperature, seeded.max_tokens) == (7, 0.6, 8)
    assert cases["taught/greedy"][1].max_tokens == 128
    assert [message.role for message in cases["taught/greedy"][0].messages] == ["system", "user"]
    assert suite.quick().prompts == suite.prompts[:1]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("name = ", "is not TOML"),
        ("name = 'x'", "prompts: Field required"),
        ("name = 'x'\nprompts = []", "prompts: Tuple should have at least 1 item"),
        ("name = 'x'\n[[prompts]]\nname = 'A b'\ntext = 'q'", "prompts.0.name"),
        ("name = 'x'\n[[prompts]]\nname = 'a'\ntext = 'q'\nsampling = ['beam']", "'greedy' or 'seeded'"),
        ("name = 'x'\n[[prompts]]\nname = 'a'\ntext = 'q'\ntemperature = 1", "prompts.0.temperature: Extra"),
        ("name = 'x'\nseed = -1\n[[prompts]]\nname = 'a'\ntext = 'q'", "seed -1 means 'no seed'"),
        ("name = 'x'\n" + "[[prompts]]\nname = 'a'\ntext = 'q'\n" * 2, "two prompts have the same name"),
    ],
)
def test_a_suite_that_cannot_be_used_is_refused_with_its_place(file: Path, content: str, words: str) -> None:
    file.write_text(content, encoding="utf-8")
    with pytest.raises(SettingsError) as refusal:
        load_suite(file)
    assert words in refusal.value.problem
    assert str(file) in refusal.value.problem


def test_a_suite_that_is_no_text_or_not_there_is_refused(file: Path) -> None:
    with pytest.raises(SettingsError, match="cannot be read: No such file"):
        load_suite(file)
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(SettingsError, match="is not TOML"):
        load_suite(file)


@pytest.mark.parametrize(
    ("facts", "quick", "times", "counts"),
    [
        ({"device": "cpu", "max_num_seqs": None}, False, 3, (0, 7)),
        ({"device": "cpu", "max_num_seqs": 1}, True, 2, (0, 7)),
        ({"device": "cuda", "max_num_seqs": None}, False, 10, (0, 7, 31, 63)),
        ({"device": "cuda", "max_num_seqs": 32}, False, 10, (0, 7, 31)),
        ({"device": "cuda", "max_num_seqs": 1}, False, 3, (0, 7)),
        ({"device": None, "max_num_seqs": None}, True, 3, (0, 31)),
    ],
)
def test_loads_and_times_fit_the_engine(
    facts: dict[str, object], quick: bool, times: int, counts: tuple[int, ...]
) -> None:
    choice = choose(engine(**facts), quick=quick)
    assert (choice.times, choice.counts) == (times, counts)


def test_the_time_left_is_learned_and_a_load_not_tried_costs_the_slowest() -> None:
    pace = Pace(Counter({0: 3, 7: 2}))
    assert pace.left() is None
    pace.done(0, 4.0)
    assert pace.left() == 2 * 4.0 + 2 * 4.0
    pace.done(7, 10.0)
    assert pace.left() == 2 * 4.0 + 1 * 10.0
    pace.skip(0, 2)
    assert pace.left() == 10.0


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("https://me:secret@gpu.example:8000/engine", "https://gpu.example:8000/engine"),
        ("http://127.0.0.1:8100", "http://127.0.0.1:8100"),
    ],
)
def test_a_report_does_not_tell_the_login_of_an_address(url: str, told: str) -> None:
    assert without_login(url) == told
