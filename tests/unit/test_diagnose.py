"""A diagnosis claims no more than the records show, and says which record shows it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from sample_receipts import engine, receipt, request, token

from llm_backend.compare import compare
from llm_backend.diagnose import Cause, Diagnosis, diagnose
from llm_backend.phrases import diagnosis_sentence, evidence_sentence
from llm_backend.receipt import EngineFingerprint, GenerationRequest, Message, Receipt, Status
from llm_backend.scoring import Calibration

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


def drifting(positions: int, *, drift: float, gap: float) -> tuple[Receipt, Receipt]:
    """A greedy fork after `positions` equal tokens, whose two tokens the reference saw `gap` nats apart."""
    before = [token(7, -0.5)] * positions + [token(1, -0.7, top={1: -0.7, 2: -0.7 - gap})]
    after = [token(7, -0.5 - drift)] * positions + [token(2, -0.7, top={2: -0.7, 1: -0.71})]
    return receipt(before), receipt(after)


def sent(**body: Any) -> GenerationRequest:
    return request().model_copy(update={"body": json.dumps(body)})


def keys(diagnosis: Diagnosis) -> list[str]:
    return [evidence.key for evidence in diagnosis.evidence]


class TestNothingToExplain:
    def test_identical(self) -> None:
        assert explain(receipt(), receipt()) == Diagnosis(cause=Cause.NONE)

    def test_another_model_has_its_own_reasons(self) -> None:
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

    def test_a_body_key_that_shapes_tokens_is_named_as_sent(self) -> None:
        before, _ = forked(asked=sent(chat_template_kwargs={"thinking": True}))
        _, after = forked(asked=sent())
        found = explain(before, after)
        assert (found.cause, found.evidence[0].values["field"]) == (
            Cause.REQUEST_DIFFERS,
            "chat_template_kwargs",
        )
        assert '{"thinking": true} recorded, not sent replayed' in diagnosis_sentence(found)

    @pytest.mark.parametrize("key", ["logprobs", "stream", "return_token_ids"])
    def test_asking_for_less_is_named_but_not_blamed(self, key: str) -> None:
        before, _ = forked(asked=sent(**{key: True}))
        _, after = forked(asked=sent())
        found = explain(before, after)
        assert found.cause is Cause.UNEXPLAINED
        assert keys(found) == ["evidence.no_neighbours", "evidence.observation"]
        assert "two records cannot show it" in evidence_sentence(found.evidence[1])

    def test_an_unreadable_body_tells_of_no_change(self) -> None:
        before, _ = forked(asked=sent(stop=["x"]))
        _, after = forked(asked=request().model_copy(update={"body": "?"}))
        assert explain(before, after).cause is Cause.UNEXPLAINED


class TestPrompt:
    """What the prompt was made of decides whose change it is."""

    def pair(self, **changed: Any) -> tuple[Receipt, Receipt]:
        before = receipt(asked=request(prompt=(1, 2, 3)), engine=engine(chat_template_digest="sha256:a"))
        after = receipt(asked=request(prompt=(1, 2, 4), **changed), engine=before.engine)
        return before, after

    def test_other_messages(self) -> None:
        found = explain(*self.pair(question="Another?"))
        assert (found.cause, keys(found)) == (Cause.REQUEST_DIFFERS, ["evidence.messages"])
        assert found.evidence[0].values == {"message": 1, "reference": 1, "candidate": 1}

    def test_a_message_more(self) -> None:
        before, after = self.pair()
        longer = (*after.request.messages, Message(role="assistant", content="x"))
        after = after.model_copy(update={"request": after.request.model_copy(update={"messages": longer})})
        assert explain(before, after).evidence[0].values == {"message": 2, "reference": 1, "candidate": 2}

    @pytest.mark.parametrize(
        ("digest", "key"),
        [
            ("sha256:b", "evidence.template"),
            ("sha256:a", "evidence.template_same"),
            (None, "evidence.template_unknown"),
        ],
    )
    def test_the_same_messages_in_other_tokens(self, digest: str | None, key: str) -> None:
        before, after = self.pair()
        after = after.model_copy(update={"engine": engine(chat_template_digest=digest)})
        found = explain(before, after)
        assert (found.cause, keys(found)) == (Cause.REQUEST_DIFFERS, [key])

    def test_what_the_template_was_told_comes_first(self) -> None:
        before, after = self.pair()
        told = before.request.model_copy(update={"body": '{"chat_template_kwargs": {"thinking": true}}'})
        assert keys(explain(before.model_copy(update={"request": told}), after)) == [
            "evidence.request",
            "evidence.template_same",
        ]

    def test_another_tokenizer_is_not_put_down_to_the_request(self) -> None:
        before, after = self.pair()
        after = after.model_copy(update={"engine": engine(tokenizer_digest="sha256:other")})
        assert explain(before, after).cause is Cause.NONE


class TestEngine:
    def test_a_bit_relevant_change_comes_before_load(self) -> None:
        """RC-08"""
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

    def test_a_drawn_token_outside_the_most_likely_does_not_hide_that_they_are_equal(self) -> None:
        """vLLM lists the drawn token too; only what both sides list can be compared."""
        likely = {1: -0.7, 2: -0.8, 3: -4.0}
        before = receipt([token(8, -6.0, top={8: -6.0, **likely})], asked=self.SAMPLED)
        after = receipt([token(9, -7.0, top={9: -7.0, **likely})], asked=self.SAMPLED)
        assert explain(before, after).cause is Cause.SEED_NOT_HONOURED

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
        found = keys(explain(*forked(NEAR), neighbours=12))
        assert found == ["evidence.load", "evidence.near_tie", "evidence.threshold.assumed"]

    def test_near_is_what_the_measured_drift_allows(self) -> None:
        """Twice the largest drift before the fork, once there are enough positions to say."""
        found = explain(*drifting(9, drift=0.04, gap=0.07))
        assert (found.cause, found.evidence[1].key) == (Cause.NEAR_TIE, "evidence.threshold.drift")
        assert found.evidence[1].values == {"threshold": pytest.approx(0.08), "positions": 9}
        assert explain(*drifting(9, drift=0.04, gap=0.09)).cause is Cause.UNEXPLAINED
        assert explain(*drifting(9, drift=0.2, gap=0.3)).cause is Cause.NEAR_TIE, "wider than assumed"

    @pytest.mark.parametrize(("positions", "drift"), [(7, 0.01), (9, 0.0)])
    def test_too_little_drift_measured_leaves_the_assumed_threshold(
        self, positions: int, drift: float
    ) -> None:
        found = explain(*drifting(positions, drift=drift, gap=0.12))
        assert keys(found) == ["evidence.near_tie", "evidence.threshold.assumed"]
        assert explain(*drifting(positions, drift=drift, gap=0.13)).cause is Cause.UNEXPLAINED

    def test_the_engines_own_self_check_comes_before_what_is_assumed(self) -> None:
        before, after = drifting(3, drift=0.01, gap=0.29)
        checked = Calibration(engine="sha256:e", positions=128, largest=0.15).near_tie
        comparison = compare(before, after, self_check=checked)
        found = diagnose(comparison, before, after, neighbours=0)
        assert keys(found) == ["evidence.near_tie", "evidence.threshold.self_check"]
        exact = Calibration(engine="sha256:e", positions=128, largest=0.0).near_tie
        comparison = compare(before, after, self_check=exact)
        assert diagnose(comparison, before, after, neighbours=0).cause is Cause.UNEXPLAINED

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
    """RC-02: never a silent match, and never a cause that was not there."""

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


class TestColdStart:
    """RC-01: the first run is never passed off as reproduced."""

    def explained(self, first: bool, **facts: Any) -> Diagnosis:
        before, after = forked(**facts)
        return diagnose(compare(before, after), before, after, neighbours=0, first_after_start=first)

    def test_the_first_request_after_a_start_against_a_later_one(self) -> None:
        found = self.explained(True)
        assert (found.cause, keys(found)) == (Cause.COLD_START, ["evidence.cold_start"])
        assert "consistent with" in diagnosis_sentence(found)

    def test_otherwise_it_is_not_named(self) -> None:
        assert self.explained(False).cause is Cause.UNEXPLAINED

    def test_equal_numbers_do_not_come_from_it(self) -> None:
        before, after = forked(EXACT, drift=False)
        found = diagnose(compare(before, after), before, after, neighbours=0, first_after_start=True)
        assert keys(found) == ["evidence.exact_tie"]


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
        (receipt(), receipt(asked=request(prompt=(1, 9))), 0),
        (receipt(), receipt(asked=request(prompt=(1, 9), question="Another?")), 0),
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
