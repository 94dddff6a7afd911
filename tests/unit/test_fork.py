"""Choices at a position, and the request that goes on from another one."""

from __future__ import annotations

import json
from typing import Any

import pytest
from sample_receipts import receipt, request, token

from llm_backend.compare import NearTie
from llm_backend.errors import EncoreError
from llm_backend.fork import (
    CannotFork,
    Take,
    choices,
    close_calls,
    ends_answer,
    fork_point,
    fork_request,
    obstacle,
    parse_take,
    pick,
)
from llm_backend.fork_phrases import fork_sentences, margin_phrase
from llm_backend.receipt import Message, Receipt
from llm_backend.strings import LANGUAGES, Language, text

TIE = token(8, -0.7, top={8: -0.7, 9: -0.75, 10: -3.0})


def recorded(**sampling: Any) -> Receipt:
    generated = (token(7, -0.1, top={7: -0.1, 6: -2.5}), TIE, token(2, -0.1, top={2: -0.1, 5: -3.0}))
    return receipt(generated, asked=request(max_tokens=16, **sampling))


class TestChoices:
    def test_the_most_likely_comes_first_whatever_the_engine_listed_first(self) -> None:
        """vLLM lists the token that was drawn first."""
        listed = choices(token(9, -1.2, top={9: -1.2, 8: -0.5, 10: -3.0}))
        assert [(one.id, one.rank, one.recorded) for one in listed] == [
            (8, 1, False),
            (9, 2, True),
            (10, 3, False),
        ]

    def test_a_drawn_token_behind_all_others_has_no_known_rank(self) -> None:
        listed = choices(token(9, -7.0, top={9: -7.0, 8: -0.5, 10: -3.0}))
        assert [(one.id, one.rank) for one in listed] == [(8, 1), (10, 2), (9, None)]

    def test_what_is_unknown_is_no_choice_to_take_unasked(self) -> None:
        bare = receipt((token(9, -0.5, top={9: -0.5, 8: None}),))
        assert choices(bare.completion.tokens[0])[-1].rank is None
        with pytest.raises(CannotFork, match="No alternative"):
            pick(bare, 0)

    def test_the_runner_up_of_a_drawn_token_is_the_most_likely_one(self) -> None:
        drawn = receipt((token(9, -1.2, top={9: -1.2, 8: -0.5, 10: -3.0}),))
        assert pick(drawn, 0).id == 8

    @pytest.mark.parametrize(
        ("take", "id"), [(None, 9), (Take(rank=1), 8), (Take(rank=3), 10), (Take(id=10), 10)]
    )
    def test_one_is_taken_by_rank_or_id(self, take: Take | None, id: int) -> None:
        assert pick(recorded(), 1, take).id == id

    @pytest.mark.parametrize(
        ("position", "take", "said"),
        [
            (1, Take(rank=4), "4 is not among the 3 recorded choices at token 1"),
            (1, Take(id=77), "id:77 is not among"),
            (3, None, "There is no token 3: the answer has tokens 0 to 2"),
            (-1, None, "There is no token -1"),
        ],
    )
    def test_what_was_not_recorded_cannot_be_taken(self, position: int, take: Take | None, said: str) -> None:
        with pytest.raises(CannotFork, match=said):
            pick(recorded(), position, take)

    @pytest.mark.parametrize(
        ("typed", "take"), [("2", Take(rank=2)), (" id:0 ", Take(id=0)), ("id:1234", Take(id=1234))]
    )
    def test_a_take_is_typed_as_rank_or_id(self, typed: str, take: Take) -> None:
        assert parse_take(typed) == take

    @pytest.mark.parametrize("typed", ["0", "-1", "id:", "two", "", "1.0", "٣"])
    def test_anything_else_is_refused(self, typed: str) -> None:
        with pytest.raises(EncoreError, match="neither a place nor an id"):
            parse_take(typed)

    def test_close_calls_are_listed_by_margin_and_not_by_place(self) -> None:
        calls = close_calls(recorded().completion.tokens, most=2)
        assert [call.position for call in calls] == [1, 0]
        assert calls[0].margin == pytest.approx(0.05)
        assert close_calls((token(1),), most=5) == [], "one alternative tells no margin"


class TestRequest:
    def test_it_sends_prompt_answer_and_token_as_ids_with_the_recorded_settings(self) -> None:
        parent = recorded(temperature=0.8, seed=2**63 - 1, top_p=0.9, top_logprobs=3)
        asked = fork_request(parent, 1, 9, "given")
        body = json.loads(asked.body)
        assert asked.endpoint == "/v1/completions"
        assert body["prompt"] == [1, 2, 3, 7, 9] == list(asked.prompt_token_ids)
        assert (body["seed"], body["temperature"], body["top_p"]) == (2**63 - 1, 0.8, 0.9)
        assert body["max_tokens"] == 14 == asked.sampling.max_tokens, "two of the sixteen are given"
        assert body["logprobs"] == 3
        assert "messages" not in body
        assert "top_logprobs" not in body
        assert body["return_token_ids"]
        assert body["return_tokens_as_token_ids"]
        assert asked.question == parent.request.question
        assert asked.given == "given"

    def test_a_fork_of_a_fork_goes_on_from_all_that_was_given(self) -> None:
        first = fork_request(recorded(), 1, 9, "7 9")
        child = receipt((token(4), token(5)), asked=first, text=" 4 5")
        second = fork_request(child, 1, 6, "7 9 4 6")
        assert json.loads(second.body)["prompt"] == [1, 2, 3, 7, 9, 4, 6]
        assert second.sampling.max_tokens == 12
        assert [message.role for message in second.messages] == ["user", "assistant"]
        assert child.answer == "7 9 4 5"

    def test_what_means_the_same_for_a_continuation_is_sent_along(self) -> None:
        asked = request(max_tokens=16).model_copy(update={"body": '{"cache_salt": "x", "stop": ["\\n"]}'})
        body = json.loads(fork_request(receipt(asked=asked), 0, 9, "").body)
        assert (body["cache_salt"], body["stop"]) == ("x", ["\n"])

    @pytest.mark.parametrize(
        ("body", "said"), [('{"min_tokens": 5}', "cannot carry over: min_tokens"), ("nonsense", "carry over")]
    )
    def test_what_cannot_be_carried_over_is_named(self, body: str, said: str) -> None:
        asked = request(max_tokens=16).model_copy(update={"body": body})
        with pytest.raises(CannotFork, match=said):
            fork_request(receipt(asked=asked), 0, 9, "")

    @pytest.mark.parametrize(
        "penalty", [{"presence_penalty": 0.5}, {"frequency_penalty": -1.0}, {"repetition_penalty": 1.1}]
    )
    def test_penalties_would_count_the_given_beginning_otherwise(self, penalty: dict[str, float]) -> None:
        with pytest.raises(CannotFork, match="penalties"):
            fork_request(recorded(**penalty), 1, 9, "")

    def test_without_prompt_ids_there_is_nothing_to_go_on_from(self) -> None:
        problem = obstacle(receipt(asked=request(prompt=())))
        assert problem is not None
        assert problem.reason == "no_ids"

    def test_nothing_is_left_of_the_limit_at_its_last_token(self) -> None:
        parent = receipt((7, 8, 9), asked=request(max_tokens=3), finish_reason="length")
        assert fork_request(parent, 1, 5, "").sampling.max_tokens == 1
        with pytest.raises(CannotFork, match="nothing is left of the limit of 3 tokens"):
            fork_request(parent, 2, 5, "")

    def test_the_token_that_ended_the_answer_and_those_named_so_end_it(self) -> None:
        assert ends_answer(recorded(), 2, None)
        assert not ends_answer(receipt((7, 8), finish_reason="length"), 8, " t8")
        assert ends_answer(recorded(), 77, "<|im_end|>")
        assert not ends_answer(recorded(), 77, "</think>")


class TestPoint:
    def child(self, *ids: int, taken: int = 9, **sampling: Any) -> tuple[Receipt, Receipt]:
        parent = recorded(**sampling)
        return parent, receipt(tuple(ids), asked=fork_request(parent, 1, taken, "x"))

    def test_it_is_read_from_the_ids(self) -> None:
        parent, child = self.child(2)
        point = fork_point(parent, child)
        assert (point.position, point.recorded.id, point.taken.id, point.taken.rank) == (1, 8, 9, 2)
        assert point.margin == pytest.approx(0.05)
        assert (point.same_after, point.recorded_after, point.generated) == (1, 1, 1)
        assert not point.same_token
        assert "to the end: the same as recorded" in fork_sentences(child, point)[0]

    def test_a_receipt_that_does_not_continue_the_other_is_no_fork_of_it(self) -> None:
        parent, child = self.child(2)
        other = receipt((6, 99), asked=request(max_tokens=16))
        for stranger in (child, receipt((1, 2))):
            with pytest.raises(CannotFork):
                fork_point(other, stranger)
        with pytest.raises(CannotFork):
            fork_point(parent, parent)

    def test_the_recorded_token_taken_again_is_a_control(self) -> None:
        parent, same = self.child(2, taken=8)
        point = fork_point(parent, same)
        assert point.same_token
        assert "gave the recorded continuation: 1 of 1 token the same" in fork_sentences(same, point)[0]
        parent, other = self.child(2, 3, taken=8)
        assert "another continuation from token 3 on" in fork_sentences(other, fork_point(parent, other))[0]
        parent, drawn = self.child(5, taken=8, temperature=0.8)
        sentences = fork_sentences(drawn, fork_point(parent, drawn))
        assert "the draw begins anew" in sentences[0]
        assert "does not take up where the recording was" in sentences[-1]

    @pytest.mark.parametrize("lang", LANGUAGES)
    @pytest.mark.parametrize(
        ("margin", "key"), [(None, "unknown"), (0.0, "tie"), (0.125, "close"), (0.126, "clear")]
    )
    def test_a_margin_says_what_it_is_measured_by(
        self, margin: float | None, key: str, lang: Language
    ) -> None:
        said = margin_phrase(margin, NearTie(), lang)
        basis = text("fork.basis.assumed", lang)
        assert said == text(f"fork.margin.{key}", lang, x=margin, threshold=0.125, basis=basis)

    def test_what_cannot_be_forked_is_said_in_both_languages(self) -> None:
        error = CannotFork("position", position=3, last=2)
        assert error.sentence("en") == error.problem
        assert "3" in error.sentence("zh-CN")
        assert error.sentence("zh-CN") != error.problem


def test_a_chat_that_ends_with_the_model_has_nothing_given() -> None:
    asked = request().model_copy(
        update={"messages": (Message(role="user", content="a"), Message(role="assistant", content="b"))}
    )
    assert (asked.question, asked.given) == ("a", "")
