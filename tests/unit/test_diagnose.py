"""A diagnosis claims no more than the records show, and says which record shows it."""

from __future__ import annotations

from typing import Any

import pytest
from sample_receipts import engine, receipt, request, token

from llm_backend.compare import compare
from llm_backend.diagnose import Cause, Diagnosis, diagnose
from llm_backend.phrases import diagnosis_sentence, evidence_sentence
from llm_backend.receipt import EngineFingerprint, Receipt, Status

NEAR = {1: -0.70, 2: -0.75}
EXACT = {1: -0.70, 2: -0.70}
FAR = {1: -0.10, 2: -3.00}


def explain(reference: Receipt, candidate: Receipt, neighbours: int | None = 0) -> Diagnosis:
    return diagnose(compare(reference, candidate), reference, candidate, neighbours=neighbours)


def forked(
    top: dict[int, float | None] = FAR,
    *,
    drift: bool = True,
    other_top: dict[int, float | None] | None = None,
    **both: Any,
) -> tuple[Receipt, Receipt]:
    """Two receipts that fork at position 1; with `drift` their first tokens' logprobs differ too."""
    second = dict(reversed(top.items())) if other_top is None else other_top
    before = receipt([token(7, -0.5), token(1, top[1], top=top)], **both)
    after = receipt([token(7, -0.4 if drift else -0.5), token(2, top[2], top=second)], **both)
    return before, after


def keys(diagnosis: Diagnosis) -> list[str]:
    return [evidence.key for evidence in diagnosis.evidence]


class TestNothingToExplain:
    def test_identical(self) -> None:
        assert explain(receipt(), receipt()) == Diagnosis(cause=Cause.NONE)

    def test_incomparable_has_its_own_reasons(self) -> None:
        assert explain(receipt(), receipt(engine=engine(model="other"))).cause is Cause.NONE

    def test_the_same_but_cut_short(self) -> None:
        found = explain(receipt(), receipt([7, 8], status=Status.STOPPED))
        assert (found.cause, keys(found)) == (Cause.TRUNCATED, ["evidence.cut_replayed"])

    def test_an_unchanged_answer_needs_no_explanation_even_under_load(self) -> None:
        assert explain(receipt(), receipt(), neighbours=12).cause is Cause.NONE


class TestRequest:
    def test_another_seed_explains_another_sample(self) -> None:
        before, _ = forked(asked=request(temperature=0.8, seed=1))
        _, after = forked(asked=request(temperature=0.8, seed=2))
        found = explain(before, after)
        assert found.cause is Cause.REQUEST_DIFFERS
        assert found.evidence[0].values == {"field": "seed", "reference": "1", "candidate": "2"}

    def test_a_longer_limit_explains_no_token(self) -> None:
        before, _ = forked(asked=request(max_tokens=60))
        _, after = forked(asked=request(max_tokens=120))
        assert explain(before, after).cause is Cause.UNEXPLAINED

    def test_settings_do_not_move_raw_logprobs(self) -> None:
        before = receipt([token(7, -0.5)], asked=request(temperature=0.8, seed=1))
        after = receipt([token(7, -0.4)], asked=request(temperature=0.8, seed=2))
        assert explain(before, after).cause is Cause.UNEXPLAINED

    def test_no_seed_was_sent(self) -> None:
        assert explain(*forked(asked=request(temperature=0.8, seed=None))).cause is Cause.UNSEEDED


class TestEngine:
    def test_a_bit_relevant_change_comes_before_load(self) -> None:
        before, _ = forked()
        _, after = forked(engine=engine(vllm_version="0.32.0"))
        found = explain(before, after, neighbours=12)
        assert found.cause is Cause.ENGINE_CHANGED
        assert keys(found) == ["evidence.engine", "evidence.load"]

    @pytest.mark.parametrize(
        "changed", [{"lock_digest": "sha256:x"}, {"vllm_version": None}, {"engine_seed": 7}]
    )
    def test_an_unknown_or_harmless_change_explains_nothing(self, changed: dict[str, Any]) -> None:
        before, _ = forked()
        _, after = forked(engine=engine(**changed))
        assert explain(before, after).cause is Cause.UNEXPLAINED


class TestSeed:
    SAMPLED = request(temperature=0.8, seed=42)

    def test_equal_distributions_and_seed_but_another_token(self) -> None:
        found = explain(*forked(drift=False, asked=self.SAMPLED), neighbours=12)
        assert (found.cause, keys(found)) == (Cause.SEED_NOT_HONOURED, ["evidence.seed"])

    def test_any_drift_before_the_fork_takes_the_evidence_away(self) -> None:
        assert explain(*forked(drift=True, asked=self.SAMPLED)).cause is Cause.UNEXPLAINED

    def test_another_distribution_at_the_fork_takes_it_away(self) -> None:
        pair = forked(drift=False, other_top={2: -2.9, 1: -0.1}, asked=self.SAMPLED)
        assert explain(*pair).cause is Cause.UNEXPLAINED

    def test_without_recorded_alternatives_nothing_is_claimed(self) -> None:
        before = receipt([token(1, -0.5)], asked=self.SAMPLED)
        after = receipt([token(2, -0.5)], asked=self.SAMPLED)
        assert explain(before, after).cause is Cause.UNEXPLAINED

    def test_unknown_logprobs_before_the_fork_take_it_away(self) -> None:
        before = receipt([token(7, None), token(1, -0.1, top=FAR)], asked=self.SAMPLED)
        after = receipt([token(7, -0.5), token(2, -3.0, top=FAR)], asked=self.SAMPLED)
        assert explain(before, after).cause is Cause.UNEXPLAINED


class TestTies:
    def test_an_exact_tie_with_nothing_else_different(self) -> None:
        found = explain(*forked(EXACT, drift=False), neighbours=12)
        assert (found.cause, keys(found)) == (Cause.EXACT_TIE, ["evidence.exact_tie"])

    def test_a_near_tie_without_a_better_explanation(self) -> None:
        found = explain(*forked(NEAR))
        assert found.cause is Cause.NEAR_TIE
        assert found.evidence[0].values["margin"] == pytest.approx(0.05)

    def test_a_near_tie_goes_along_with_load(self) -> None:
        assert keys(explain(*forked(NEAR), neighbours=12)) == ["evidence.load", "evidence.near_tie"]

    def test_a_wide_margin_is_no_tie(self) -> None:
        assert explain(*forked(FAR)).cause is Cause.UNEXPLAINED

    def test_a_near_tie_between_other_tokens_explains_nothing(self) -> None:
        top = {1: -0.70, 3: -0.71, 2: -5.0}
        before, _ = forked(top)
        after = receipt([token(7, -0.4), token(2, -5.0, top=top)])
        assert explain(before, after).cause is Cause.UNEXPLAINED

    def test_ending_early_is_no_tie(self) -> None:
        assert explain(receipt([7]), receipt([7, 8])).cause is Cause.UNEXPLAINED

    def test_a_sampled_choice_is_not_explained_by_a_tie(self) -> None:
        assert explain(*forked(NEAR, asked=request(temperature=0.8))).cause is Cause.UNEXPLAINED


class TestLoad:
    @pytest.mark.parametrize("pair", [forked(), (receipt([token(7, -0.5)]), receipt([token(7, -0.4)]))])
    def test_neighbours_on_an_engine_that_mixes_requests(self, pair: tuple[Receipt, Receipt]) -> None:
        found = explain(*pair, neighbours=12)
        assert (found.cause, found.evidence[0].values) == (Cause.LOAD_DEPENDENT, {"neighbours": 12})

    def test_an_engine_that_does_not_tell_is_said_not_to_have_told(self) -> None:
        found = explain(*forked(engine=engine(batch_invariant=None)), neighbours=12)
        assert keys(found) == ["evidence.load_unknown_invariance"]

    @pytest.mark.parametrize(
        ("changed", "neighbours", "key"),
        [
            ({}, 0, "evidence.no_neighbours"),
            ({}, None, "evidence.load_not_known"),
            ({"batch_invariant": True}, 12, "evidence.invariance_broken"),
            ({"max_num_seqs": 1}, 12, "evidence.one_at_a_time"),
        ],
    )
    def test_load_that_cannot_explain_is_named_as_excluded(
        self, changed: dict[str, Any], neighbours: int | None, key: str
    ) -> None:
        found = explain(*forked(engine=engine(**changed)), neighbours=neighbours)
        assert (found.cause, keys(found)) == (Cause.UNEXPLAINED, [key])


class TestPrefixCache:
    def pair(
        self, before: int | None, after: int | None, facts: EngineFingerprint
    ) -> tuple[Receipt, Receipt]:
        first, second = forked(engine=facts)
        return tuple(  # type: ignore[return-value]
            side.model_copy(
                update={"completion": side.completion.model_copy(update={"cached_prompt_tokens": cached})}
            )
            for side, cached in ((first, before), (second, after))
        )

    def test_another_number_of_cached_prompt_tokens(self) -> None:
        found = explain(*self.pair(0, 16, engine()))
        assert found.cause is Cause.PREFIX_CACHE
        assert found.evidence[0].values == {"reference": 0, "candidate": 16}

    @pytest.mark.parametrize(("before", "after"), [(None, 16), (0, None), (16, 16)])
    def test_unknown_or_equal_numbers_explain_nothing(self, before: int | None, after: int | None) -> None:
        assert explain(*self.pair(before, after, engine())).cause is Cause.UNEXPLAINED

    def test_a_batch_invariant_engine_does_not_depend_on_it(self) -> None:
        assert explain(*self.pair(0, 16, engine(batch_invariant=True))).cause is Cause.UNEXPLAINED


@pytest.mark.parametrize("lang", ["en", "zh-CN"])
@pytest.mark.parametrize(
    ("reference", "candidate", "neighbours"),
    [
        (*forked(), 12),
        (*forked(), 1),
        (*forked(), None),
        (*forked(NEAR), 0),
        (*forked(EXACT, drift=False), 0),
        (*forked(drift=False, asked=request(temperature=0.8)), 0),
        (*forked(asked=request(temperature=0.8, seed=None)), 0),
        (forked()[0], forked(engine=engine(vllm_version="0.32.0"))[1], 0),
        (forked()[0], forked(asked=request(temperature=0.8))[1], 0),
        (receipt(), receipt([7], status=Status.INTERRUPTED), 0),
    ],
)
def test_every_explanation_can_be_said_in_both_languages(
    reference: Receipt, candidate: Receipt, neighbours: int | None, lang: Any
) -> None:
    found = explain(reference, candidate, neighbours)
    assert diagnosis_sentence(found, lang)
    for evidence in found.evidence:
        assert "{" not in evidence_sentence(evidence, lang)


def test_a_diagnosis_survives_json() -> None:
    found = explain(*forked(NEAR), neighbours=12)
    assert Diagnosis.model_validate_json(found.model_dump_json()) == found


def test_load_is_worded_as_consistent_with_the_evidence_not_as_proven() -> None:
    sentence = diagnosis_sentence(explain(*forked(), neighbours=12))
    assert sentence.startswith("12 other requests were running and this engine is not batch-invariant")
    assert "consistent with" in sentence
    assert "1 other request was running" in diagnosis_sentence(explain(*forked(), neighbours=1))
