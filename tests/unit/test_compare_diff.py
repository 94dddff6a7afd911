"""The diff a panel shows: aligned, bounded, and readable down to split characters."""

from __future__ import annotations

import json

import pytest
from sample_receipts import receipt, token, tokens

from llm_backend.compare import compare
from llm_backend.diff import ALIGN_LIMIT, STRIP_BUCKETS, align_tail, diff_window, drift_strip, token_window
from llm_backend.receipt import Alternative, Receipt, Status, TokenRecord
from llm_backend.token_text import alternative_text, printable, quoted, token_texts


def window(reference: Receipt, candidate: Receipt, **size: int) -> dict:
    return diff_window(reference, candidate, compare(reference, candidate), **size)


def rebuild(alignment_ops: list[dict], reference: list[int], candidate: list[int]) -> list[int]:
    """Apply the operations to the reference: they must produce the candidate."""
    built: list[int] = []
    for op in alignment_ops:
        if op["kind"] == "equal":
            built += reference[op["reference_start"] : op["reference_stop"]]
        elif op["kind"] == "insert":
            built += candidate[op["candidate_start"] : op["candidate_stop"]]
    return built


class TestAlign:
    def test_insertions_and_deletions_turn_one_side_into_the_other(self) -> None:
        before, after = [1, 2, 3, 4, 5, 6], [1, 2, 9, 4, 6, 7]
        alignment = align_tail(before, after, 2)
        ops = [op.model_dump() for op in alignment.ops]
        assert before[:2] + rebuild(ops, before, after) == after
        assert {op["kind"] for op in ops} == {"equal", "insert", "delete"}
        assert alignment.complete

    def test_it_stops_at_its_limit_and_says_where(self) -> None:
        alignment = align_tail(range(10_000), range(1, 9_000), 100, limit=50)
        assert (alignment.reference_stop, alignment.candidate_stop, alignment.complete) == (150, 150, False)

    def test_the_default_limit_bounds_the_work(self) -> None:
        alignment = align_tail(range(32_768), range(40_000, 72_768), 0)
        assert alignment.reference_stop == ALIGN_LIMIT

    def test_a_side_that_has_ended_is_only_inserted_into(self) -> None:
        alignment = align_tail([1], [1, 2, 3], 1)
        assert [op.kind for op in alignment.ops] == ["insert"]
        assert alignment.complete

    def test_nothing_left_on_both_sides(self) -> None:
        assert align_tail([1], [1], 1).ops == ()


class TestWindow:
    def test_it_folds_the_shared_prefix_and_centres_on_the_fork(self) -> None:
        ids = list(range(1000))
        other = [*ids[:500], 5000, *ids[501:]]
        shown = window(receipt(tokens(ids)), receipt(tokens(other)), before=10, after=20)
        assert (shown["verdict"], shown["fork"], shown["centre"], shown["folded"]) == (
            "DIVERGED",
            500,
            500,
            490,
        )
        recorded, replayed = shown["reference"], shown["candidate"]
        assert [entry["position"] for entry in recorded["tokens"]] == list(range(490, 520))
        assert (recorded["tokens"][10]["id"], replayed["tokens"][10]["id"]) == (500, 5000)
        assert (recorded["length"], recorded["left_out"]) == (1000, 480)
        assert rebuild(shown["ops"], ids, other) == other[490:520]

    def test_identical_runs_show_their_start_without_a_fork(self) -> None:
        shown = window(receipt(), receipt())
        assert (shown["fork"], shown["folded"]) == (None, 0)
        assert [op["kind"] for op in shown["ops"]] == ["equal"]

    def test_drifted_runs_centre_on_the_first_drift(self) -> None:
        moved = [-0.5] * 99 + [-0.6]
        shown = window(receipt(tokens(range(100))), receipt(tokens(range(100), moved)), before=5)
        assert (shown["fork"], shown["centre"], shown["folded"]) == (None, 99, 94)

    def test_a_side_that_ended_at_the_fork_has_no_token_there(self) -> None:
        shown = window(receipt([7, 8]), receipt([7, 8, 9]))
        assert [entry["id"] for entry in shown["reference"]["tokens"]] == [7, 8]
        assert [entry["id"] for entry in shown["candidate"]["tokens"]] == [7, 8, 9]
        assert shown["reference"]["end"] == "stop"

    def test_it_is_small_and_strict_json_however_long_the_answers(self) -> None:
        ids = list(range(32_768))
        top = tuple(Alternative(id, -0.5 - id / 7) for id in range(5))
        records = tuple(TokenRecord(id, -0.123456789, b"abcde", top) for id in ids)
        changed = (*records[:31], TokenRecord(99_999, None), *records[32:])
        shown = window(receipt(records, text="x"), receipt(changed, text="y"))
        assert len(json.dumps(shown, allow_nan=False)) < 200_000

    def test_unknown_values_are_null_not_numbers(self) -> None:
        entry = token_window([token(7, float("nan"), top={7: -9999.0})], 0, 1)[0]
        assert (entry["logprob"], entry["probability"], entry["margin"]) == (None, None, None)
        assert entry["top"][0]["probability"] is None

    def test_certain_tokens_have_probability_one(self) -> None:
        """RC-18"""
        assert token_window([token(7, -0.0)], 0, 1)[0]["probability"] == 1

    @pytest.mark.parametrize("status", [Status.STOPPED, Status.COMPLETE])
    def test_without_token_ids_the_texts_are_set_side_by_side(self, status: Status) -> None:
        before, after = receipt([], text="It is 112330.", status=status), receipt([], text="It is 112329.")
        fork = window(before, after, before=2, after=3)["text_fork"]
        assert fork == {"position": 10, "start": 8, "reference": "2330.", "candidate": "2329."}

    def test_equal_texts_have_no_text_fork(self) -> None:
        assert window(receipt([], text="12"), receipt([], text="12"))["text_fork"] is None


class TestStrip:
    def test_each_bucket_keeps_its_largest_drift_and_smallest_margin(self) -> None:
        before = [token(id, -0.5, top={id: -0.5, 9999: -1.5 if id != 3 else -0.75}) for id in range(6)]
        after = [token(id, -0.5 if id != 4 else -0.625) for id in range(6)]
        strip = drift_strip(before, after, 6, buckets=2)
        assert [(bucket["start"], bucket["stop"]) for bucket in strip] == [(0, 3), (3, 6)]
        assert [bucket["drift"] for bucket in strip] == [0, 0.125]
        assert [bucket["margin"] for bucket in strip] == [1.0, 0.25]
        assert [(bucket["drift_at"], bucket["margin_at"]) for bucket in strip] == [(0, 0), (4, 3)]

    def test_ties_are_counted_not_averaged_away(self) -> None:
        margins = {5: 0.0, 6: 0.1, 7: 0.2}
        tokens = [token(1, -0.5, top={1: -0.5, 2: -0.5 - margins.get(n, 3.0)}) for n in range(32_768)]
        first, *rest = drift_strip(tokens, tokens, len(tokens))
        assert (first["near_ties"], first["exact_ties"], first["margin_at"]) == (2, 1, 5)
        assert not any(bucket["near_ties"] for bucket in rest)

    def test_nothing_known_is_null(self) -> None:
        strip = drift_strip([TokenRecord(1)], [TokenRecord(1)], 1)
        unknown = dict.fromkeys(("drift", "drift_at", "margin", "margin_at"))
        assert strip == [{"start": 0, "stop": 1, **unknown, "near_ties": 0, "exact_ties": 0}]

    @pytest.mark.parametrize("compared", [0, 1, 239, 240, 241, 32_768])
    def test_buckets_cover_every_position_once_and_stay_few(self, compared: int) -> None:
        record = TokenRecord(1)
        strip = drift_strip([record] * compared, [record] * compared, compared)
        assert len(strip) <= STRIP_BUCKETS
        assert sum(bucket["stop"] - bucket["start"] for bucket in strip) == compared


class TestTokenText:
    """RC-15: no replacement character, whatever a token's bytes are."""

    ABACUS = "🧮".encode()

    @pytest.mark.parametrize(
        ("pieces", "shown"),
        [
            ([b"12", b" + 7"], ["12", " + 7"]),
            ([ABACUS[:2], ABACUS[2:], b"!"], ["⟨🧮 1/2⟩", "⟨🧮 2/2⟩", "!"]),
            ([ABACUS[:3], ABACUS[3:] + "算".encode()], ["⟨🧮算 1/2⟩", "⟨🧮算 2/2⟩"]),
            ([None, None, ABACUS], ["⟨🧮 1/3⟩", "⟨🧮 2/3⟩", "⟨🧮 3/3⟩"]),
            ([None, b"a"], ["⟨id 0⟩", "a"]),
            ([None] * 5, [f"⟨id {id}⟩" for id in range(5)]),
            ([b"\xf0\x9f", b"a"], ["⟨F0 9F⟩", "a"]),
            ([b"\xa7\xae"], ["⟨A7 AE⟩"]),
            ([b""], ["⟨id 0⟩"]),
            ([], []),
        ],
    )
    def test_parts_show_the_character_they_build_or_their_bytes(
        self, pieces: list[bytes | None], shown: list[str]
    ) -> None:
        records = [TokenRecord(id, None, piece) for id, piece in enumerate(pieces)]
        assert token_texts(records) == shown

    def test_a_window_that_begins_inside_a_character_still_knows_it(self) -> None:
        records = [TokenRecord(0, None, self.ABACUS[:2]), TokenRecord(1, None, self.ABACUS[2:])]
        assert [entry["text"] for entry in token_window(records, 1, 2)] == ["⟨🧮 2/2⟩"]
        assert [entry["text"] for entry in token_window(records, 0, 1)] == ["⟨🧮 1/2⟩"]

    @pytest.mark.parametrize("text", ["", "\ufffd", "a\ufffd"])
    def test_an_alternative_that_cannot_be_shown_is_named_by_its_id(self, text: str) -> None:
        assert alternative_text(31, {31: text}) == "⟨id 31⟩"

    def test_alternatives_are_named_where_their_text_is_known(self) -> None:
        shown = token_window([token(7, top={7: -0.5, 8: -1.0})], 0, 1, {8: " eight"})[0]["top"]
        assert [other["text"] for other in shown] == ["⟨id 7⟩", " eight"]

    @pytest.mark.parametrize(
        ("text", "shown"),
        [
            (" 2", '" 2"'),
            ("\n", '"\\n"'),
            ('say "no"', '"say \\"no\\""'),
            ("\x1b[31m", '"\\x1b[31m"'),
            ("\u202e", '"\\u202e"'),
            ("算盘", '"算盘"'),
        ],
    )
    def test_quoting_makes_everything_visible(self, text: str, shown: str) -> None:
        assert quoted(text) == shown

    def test_printing_keeps_lines_and_disarms_the_rest(self) -> None:
        assert printable("a\n\tb\x1b[2J") == "a\n\tb\\x1b[2J"
