"""Whatever bytes arrive: the receipt that was exported, or one sentence. Never another receipt."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from sample_receipts import engine, receipt, request, token

from llm_backend.errors import ReceiptInvalid, SignatureInvalid
from llm_backend.exported import Exported, RunFacts, export_document, parse_exported
from llm_backend.receipt import (
    Completion,
    EngineFingerprint,
    Frozen,
    GenerationRequest,
    Message,
    Receipt,
    Sampling,
    TokenRecord,
)
from llm_backend.signature import Signed, new_key, private_key, public_key, sign, verify

RECEIPT = receipt(
    [
        token(7, -0.30000000000000004, text="<é\n>", top={7: -0.30000000000000004, 8: None, 9: -1e-7}),
        TokenRecord(8, None, None),
        token(9, -12.5, text="\x00?"),
    ],
    asked=request(question="naïve\r\n\u2028𠮷", seed=2**63 - 1, top_p=0.95),
)
RUNS = (
    RunFacts(kind="ask", started_at=datetime(2026, 12, 1, 5, 53, 25, 123456, UTC), ttft_s=0.25),
    RunFacts(kind="replay", started_at=datetime(2026, 12, 1, 6, tzinfo=UTC), duration_s=2.5, neighbours=7),
)
LINE = export_document(RECEIPT.digest, RECEIPT.canonical.decode(), RUNS).encode()

PRIVATE, PUBLIC = new_key()
KEY = public_key(PUBLIC)
ENVELOPE = sign(private_key(PRIVATE), [Signed.of(parse_exported(LINE))])

flips = st.integers(1, 255)


def refused(text: str | bytes) -> str:
    """The one sentence with which `text` is refused; anything else that is raised fails the test."""
    with pytest.raises(ReceiptInvalid) as caught:
        parse_exported(text)
    sentence = caught.value.diagnostics()
    assert "\n" not in sentence
    assert len(sentence) < 500
    return sentence


def value_of(text: bytes) -> Any:
    """The JSON value, told apart where Python's `==` would not: true from 1, a name written twice."""

    def pairs(members: list[tuple[str, Any]]) -> Any:
        return "object", [[name, value] for name, value in sorted(members, key=lambda member: member[0])]

    def same(value: Any) -> Any:
        if isinstance(value, list | tuple):
            return type(value)(same(part) for part in value)
        if isinstance(value, int) and not isinstance(value, bool):
            return float(value)
        return value

    return repr(same(json.loads(text, object_pairs_hook=pairs)))


def flipped(content: bytes, position: int, mask: int) -> bytes:
    return content[:position] + bytes([content[position] ^ mask]) + content[position + 1 :]


def test_the_line_reads_back() -> None:
    assert parse_exported(LINE) == Exported(
        digest=RECEIPT.digest,
        receipt=RECEIPT,
        runs=RUNS,
        runs_digest=parse_exported(LINE).runs_digest,
    )


@settings(max_examples=1500, deadline=None, derandomize=True)
@given(st.integers(0, len(LINE) - 1), flips)
def test_a_changed_byte_is_refused_or_changes_no_value(position: int, mask: int) -> None:
    """Some bytes may change (1e-7 to 1E-7, the 17th digit): then the JSON value is still the same."""
    changed = flipped(LINE, position, mask)
    try:
        read = parse_exported(changed)
    except ReceiptInvalid:
        return
    assert value_of(changed) == value_of(LINE)
    assert read == parse_exported(LINE)
    assert read.receipt.canonical == RECEIPT.canonical


@settings(max_examples=300, deadline=None, derandomize=True)
@given(st.integers(0, len(ENVELOPE) - 2), flips)
def test_a_changed_byte_of_an_envelope_is_always_found(position: int, mask: int) -> None:
    with pytest.raises(SignatureInvalid):
        verify(flipped(ENVELOPE, position, mask), KEY)


def test_the_envelope_itself_is_accepted() -> None:
    """The negative control of the test above."""
    assert verify(ENVELOPE, KEY) == (Signed.of(parse_exported(LINE)),)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.integers(0, len(LINE) - 1), st.integers(1, 40))
def test_missing_bytes_are_found(start: int, length: int) -> None:
    refused(LINE[:start] + LINE[start + length :])


SPELLINGS = {
    "white space": lambda text: json.dumps(json.loads(text), indent=3, ensure_ascii=False),
    "escapes": lambda text: json.dumps(json.loads(text)),
    "order of members": lambda text: json.dumps(dict(reversed(json.loads(text).items()))),
    "line end": lambda text: text.decode() + "\r\n",
}


@pytest.mark.parametrize("spelling", SPELLINGS.values(), ids=SPELLINGS)
def test_how_json_is_spelled_is_not_content(spelling: Any) -> None:
    assert spelling(LINE).encode() != LINE
    assert parse_exported(spelling(LINE)) == parse_exported(LINE)


@pytest.mark.parametrize(
    ("old", "new", "where"),
    [
        ('"format":1,', "", "receipt.format"),
        ('"format":1', '"format":true', "receipt.format"),
        ('"id":7', '"id":"7"', "tokens.0.id"),
        ('"id":7', '"id":true', "tokens.0.id"),
        ('"id":7', '"id":9007199254740993', "tokens.0.id"),
        ('"id":7', '"id":' + "9" * 5000, "number out of range"),
        ('"logprob":-12.5', '"logprob":NaN', "tokens.2.logprob"),
        ('"logprob":-12.5', '"logprob":-1e999', "tokens.2.logprob"),
        ('"seed":"9223372036854775807"', '"seed":"+9223372036854775807"', "sampling.seed"),
        ('"seed":"9223372036854775807"', '"seed":9223372036854775807', "sampling.seed"),
        ('"seed":"9223372036854775807"', '"seed":"' + "9" * 5000 + '"', "sampling.seed"),
        ('"AD8="', '"AD9="', "tokens.2.bytes"),
        ('"AD8="', '"A D8="', "tokens.2.bytes"),
        ('"role":"user"', '"role":"user","role":"user"', "role is there twice"),
        ('"role":"user"', '"role":"user","\\u0007\\n":1', "messages.0"),
        ('"text":"', '"text":"\\ud800', "the file"),
        ('"runs_digest":"sha256:', '"runs_digest":"sha256:0', "runs_digest"),
        ('"kind":"ask"', '"kind":"replay"', "runs_digest"),
        ('"format":1', '"format":2', "format 2; this Encore reads format 1. Update"),
        ('"format":1', '"format":0', "format 0; this Encore reads format 1. There is no"),
    ],
)
def test_what_is_not_the_record_is_refused_by_its_field(old: str, new: str, where: str) -> None:
    text = LINE.decode()
    assert old in text
    assert where in refused(text.replace(old, new, 1))


def test_a_field_with_a_default_is_not_filled_in() -> None:
    """With a digest that fits the filled-in receipt, only the missing field itself gives it away."""
    document = json.loads(RECEIPT.to_json())
    del document["receipt"]["request"]["sampling"]["min_p"]
    assert "receipt.request.sampling.min_p: missing" in refused(json.dumps(document))


def test_fields_younger_than_the_format_are_there_or_left_out_but_never_null() -> None:
    """Known, they are content like any other; unknown, a null is not how the format says it."""
    known = receipt(
        [TokenRecord(7, None, None, unknown="row_not_numbers")],
        engine=engine(linear_kernel="cublas", top_p_pinned=True, attention_kernel="segments"),
    )
    assert parse_exported(known.to_json()).receipt == known
    for written, changed in (
        ('"linear_kernel":"cublas"', '"linear_kernel":"triton"'),
        ('"top_p_pinned":true', '"top_p_pinned":false'),
        ('"attention_kernel":"segments",', ""),
        (',"unknown":"row_not_numbers"', ""),
    ):
        assert written in known.to_json()
        assert "its content hashes to" in refused(known.to_json().replace(written, changed))
    document = json.loads(RECEIPT.to_json())
    document["receipt"]["engine"]["linear_kernel"] = None
    assert "receipt.engine.linear_kernel" in refused(json.dumps(document))


def test_runs_of_another_receipt_do_not_fit() -> None:
    other = json.loads(export_document((other := receipt()).digest, other.canonical.decode(), RUNS))
    mine = json.loads(LINE)
    mine["runs"], mine["runs_digest"] = other["runs"], other["runs_digest"]
    assert "do not hash to their runs_digest" in refused(json.dumps(mine))


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=400, deadline=timedelta(seconds=2), derandomize=True)
@given(anything)
@example({"digest": "", "receipt": {}})
def test_any_json_is_refused_in_one_sentence(document: Any) -> None:
    refused(json.dumps(document))


@settings(max_examples=400, deadline=timedelta(seconds=2), derandomize=True)
@given(st.binary(max_size=200) | st.text(st.characters(exclude_categories=()), max_size=200))
@example("\ud800")
@example('"\\ud800"')
@example('{"digest":"\\udc00"}')
def test_any_text_is_refused_in_one_sentence(text: str | bytes) -> None:
    refused(text)


def paths(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(found for key, part in parts for found in paths(part, (*path, key)))]


@settings(max_examples=600, deadline=timedelta(seconds=2), derandomize=True)
@given(st.sampled_from(paths(json.loads(LINE))[1:]), anything)
def test_any_value_anywhere_is_refused_or_is_the_one_that_was_there(
    path: tuple[Any, ...], value: Any
) -> None:
    document = json.loads(LINE)
    target = document
    for key in path[:-1]:
        target = target[key]
    target[path[-1]] = value
    text = json.dumps(document).encode()
    if value_of(text) == value_of(LINE):
        assert parse_exported(text) == parse_exported(LINE)
    else:
        refused(text)


@pytest.mark.parametrize("text", ["[" * 10**6, '{"a":' * 10**6, '{"receipt":' + "[" * 10**5])
def test_deep_nesting_is_refused(text: str) -> None:
    assert "recursion limit" in refused(text)


class TestFormatPage:
    """docs/receipt-format.md, checked with what the page says and the standard library alone."""

    PAGE = (Path(__file__).parents[2] / "docs" / "receipt-format.md").read_text(encoding="utf-8")
    (EXAMPLE,) = re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)

    def test_the_pages_own_code_confirms_the_example(self, tmp_path: Path) -> None:
        (code,) = re.findall(r"```python\n(.*?)```", self.PAGE, re.DOTALL)
        (tmp_path / "example.json").write_text(self.EXAMPLE, encoding="utf-8")
        command = [sys.executable, "-I", "-W", "ignore", "-c", code]
        subprocess.run(command, cwd=tmp_path, check=True)
        (tmp_path / "example.json").write_text(self.EXAMPLE.replace("-0.25", "-0.75"), encoding="utf-8")
        failed = subprocess.run(command, cwd=tmp_path, capture_output=True, check=False)
        assert b"AssertionError" in failed.stderr

    def test_the_example_is_a_receipt(self) -> None:
        read = parse_exported(self.EXAMPLE)
        assert f"has {len(read.receipt.canonical)} bytes" in self.PAGE

    @pytest.mark.parametrize(
        "model", [RunFacts, GenerationRequest, Message, Sampling, Completion, EngineFingerprint, Receipt]
    )
    def test_the_page_names_every_field(self, model: type[Frozen]) -> None:
        assert [name for name in model.model_fields if f"`{name}`" not in self.PAGE] == []
