"""A receipt's digest covers all of it, survives the trip through JSON, and notices any change."""

from __future__ import annotations

import json
import math

import pytest
from pydantic import ValidationError
from sample_receipts import ENGINE, receipt, request, token

from llm_backend.errors import ReceiptInvalid
from llm_backend.exported import parse_receipt
from llm_backend.receipt import (
    EngineFingerprint,
    Receipt,
    Sampling,
    Status,
    TokenRecord,
    known_logprob,
)

AWKWARD = "CRLF\r\n U+2028\u2028 nul\x00 𠮷×2 naïve 👩‍🔬"


@pytest.mark.parametrize(
    "original",
    [
        receipt(),
        receipt(asked=request(seed=2**63 - 1)),
        receipt(asked=request(seed=-(2**63))),
        receipt(asked=request(seed=None, temperature=0.8)),
        receipt(asked=request(question=AWKWARD), text=AWKWARD),
        receipt([TokenRecord(7, None, None), token(8, None), TokenRecord(9, -0.0, b"\xf0\x9f")]),
        receipt([token(7, -1.0, top={7: -1.0, 8: None})]),
        receipt([], status=Status.INTERRUPTED, detail="the engine closed the connection"),
    ],
    ids=["plain", "seed max", "seed min", "no seed", "unicode", "nulls and bytes", "whole floats", "empty"],
)
def test_export_and_parse_give_the_same_receipt(original: Receipt) -> None:
    again = parse_receipt(original.to_json())
    assert again == original
    assert again.digest == original.digest


def test_fields_added_since_leave_the_digests_of_earlier_receipts_alone() -> None:
    """Both digests were computed before `linear_kernel`, `top_p_pinned` and `attention_kernel` existed."""
    recorded = receipt()
    assert recorded.engine.digest == "sha256:9effbde9bdcc55b432fc5c5f09136d433b93c3bb53e13376336b5ef9965e9327"
    assert recorded.digest == "sha256:a5e4f5edce39fda098ba0157d50dcb16e343782e528787a55769354cd7685596"
    assert "linear_kernel" not in recorded.to_json()


def test_a_known_self_check_is_part_of_the_digest_and_survives_the_trip() -> None:
    known = receipt(engine=ENGINE.model_copy(update={"linear_kernel": "cublas", "top_p_pinned": False}))
    assert known.digest != receipt().digest
    assert parse_receipt(known.to_json()).engine == known.engine


def test_seeds_keep_all_their_digits_in_json() -> None:
    exported = json.loads(receipt(asked=request(seed=2**63 - 1)).to_json())
    assert exported["receipt"]["request"]["sampling"]["seed"] == "9223372036854775807"


def test_equal_content_has_equal_digests() -> None:
    assert receipt().digest == receipt().digest


@pytest.mark.parametrize(
    "other",
    [
        receipt([7, 8, 10]),
        receipt([token(7, -0.5000000000000001), token(8), token(9)]),
        receipt([token(7, None), token(8), token(9)]),
        receipt(asked=request(seed=43)),
        receipt(asked=request(prompt=(1, 2, 4))),
        receipt(text="another text"),
        receipt(finish_reason="length"),
        receipt(status=Status.STOPPED),
        receipt(engine=EngineFingerprint(model="other")),
    ],
)
def test_any_difference_changes_the_digest(other: Receipt) -> None:
    assert other.digest != receipt().digest


def test_a_changed_file_is_refused_with_both_digests() -> None:
    original = receipt()
    tampered = original.to_json().replace('"text":"t7t8t9"', '"text":"t7t8t8"')
    assert tampered != original.to_json()
    with pytest.raises(ReceiptInvalid, match=original.digest[:19]):
        parse_receipt(tampered)


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        "a,b\n1,2",
        "{}",
        receipt().to_json()[:-1] + ",}",
    ],
    ids=["empty", "list", "csv", "object", "trailing comma"],
)
def test_what_is_no_receipt_is_refused_with_a_sentence(content: str) -> None:
    with pytest.raises(ReceiptInvalid, match="not an Encore receipt"):
        parse_receipt(content)


def test_unknown_fields_are_refused() -> None:
    with pytest.raises(ValidationError):
        Sampling.model_validate({"temprature": 0.5})


@pytest.mark.parametrize("value", [None, math.nan, math.inf, -math.inf, -9999.0, -1e30])
def test_values_that_say_nothing_are_unknown(value: float | None) -> None:
    assert known_logprob(value) is None


@pytest.mark.parametrize("value", [0.0, -0.0, -0.5, -9998.9])
def test_real_values_are_kept(value: float) -> None:
    assert known_logprob(value) == value


@pytest.mark.parametrize(
    ("value", "why"), [(math.nan, "not_a_number"), (-math.inf, "floor"), (math.inf, "floor")]
)
def test_a_number_that_json_cannot_hold_is_null_with_a_reason(value: float, why: str) -> None:
    """RC-12: whatever is fed to it, an export is strict JSON."""
    exported = receipt([token(7, value, top={7: value, 8: -1.0})])
    document = json.loads(exported.to_json(), parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    (written,) = document["receipt"]["completion"]["tokens"]
    assert (written["logprob"], written["unknown"]) == (None, why)
    assert [other["logprob"] for other in written["top"]] == [None, -1.0]
    assert parse_receipt(exported.to_json()) == exported


def test_a_known_value_needs_no_reason_and_keeps_older_digests() -> None:
    """RC-12: records without a reason are written as they were before there was one."""
    assert "unknown" not in receipt([token(7, -0.5), token(8, None)]).to_json()


def test_greedy_requests_ignore_seed_and_filters() -> None:
    effective = Sampling(seed=42, temperature=0.0, top_p=0.5, top_k=10, min_p=0.1).effective()
    assert effective == Sampling(seed=None, temperature=0.0)


def test_low_temperatures_are_raised_as_vllm_does() -> None:
    assert Sampling(seed=1, temperature=0.001, top_k=-1).effective().temperature == 0.01
    assert Sampling(seed=1, temperature=0.001, top_k=-1).effective().top_k == 0
