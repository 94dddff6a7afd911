"""The wall's core: cards folded live, forks by token ids, plans read, and the sentence that sums up."""

from __future__ import annotations

from typing import Any

import pytest
from sample_receipts import receipt, token, tokens

from llm_backend.compare import Verdict
from llm_backend.config import SEED_MAX
from llm_backend.errors import EncoreError
from llm_backend.receipt import Sampling, Status
from llm_backend.strings import LANGUAGES, Language
from llm_backend.wall import AnswerGroup, Card, WallKind, WallPlan, by_size, read_wall_plan, seeds_of
from llm_backend.wall_phrases import (
    LONGEST_ANSWER,
    card_line,
    card_shape,
    load_sentence,
    short_answer,
    token_sentence,
    wall_sentence,
)

SAMPLED = Sampling(seed=42, temperature=0.8)
SEEDS = WallPlan(kind=WallKind.SEEDS, count=12, first_seed=1)
REPLAYS = WallPlan(kind=WallKind.REPLAYS, count=3)


def complete(number: int, ids: list[int], reference: Any = None, **more: Any) -> Card:
    card = Card(number, reference=reference)
    done = receipt(ids, **more)
    card.finish(done, done.digest)
    return card


class TestForks:
    def test_a_fork_is_found_by_ids_while_the_answer_still_runs(self) -> None:
        card = Card(1, reference=receipt([1, 2, 3, 4]))
        card.feed(tokens([1, 2]), "t1t2")
        assert card.same == 2
        assert card.fork is None
        card.feed(tokens([9]), "t9")
        assert card.fork is not None
        assert (card.fork.position, card.fork.recorded, card.fork.token) == (2, "t3", "t9")
        assert card.fork.characters == len("t1t2")

    def test_equal_text_of_other_tokens_is_a_fork(self) -> None:
        """Text is never compared: two ids may be written alike."""
        reference = receipt([token(1, text="1"), token(2, text="12")])
        card = Card(1, reference=reference)
        card.feed([token(1, text="1"), token(7, text="12")], "112")
        assert card.fork is not None
        assert card.fork.position == 1

    def test_the_place_in_the_text_counts_as_browsers_count(self) -> None:
        reference = receipt([token(1, text="🧮"), token(2, text="b")])
        card = Card(1, reference=reference)
        card.feed([token(1, text="🧮"), token(3, text="c")], "🧮c")
        assert card.fork is not None
        assert card.fork.characters == 2

    def test_ending_early_is_a_fork_and_being_cut_is_none(self) -> None:
        reference = receipt([1, 2, 3])
        assert (fork := complete(1, [1, 2], reference).fork) is not None
        assert (fork.position, fork.recorded, fork.token) == (2, "t3", None)
        assert complete(1, [1, 2], reference, finish_reason="length").fork is None
        assert complete(1, [1, 2], reference, status=Status.STOPPED, finish_reason=None).fork is None

    def test_going_on_is_a_fork_unless_the_first_was_cut(self) -> None:
        longer = complete(1, [1, 2, 3], receipt([1, 2]))
        assert longer.fork is not None
        assert (longer.fork.position, longer.fork.recorded) == (2, None)
        assert complete(1, [1, 2, 3], receipt([1, 2], finish_reason="length")).fork is None

    def test_without_token_ids_nothing_is_said_about_forks(self) -> None:
        card = complete(1, [], receipt([1, 2]), text="other")
        assert card.fork is None
        assert not card.comparable
        assert "cannot be compared" in card_line(card, REPLAYS)
        assert card_shape(card, REPLAYS) == "?"

    def test_a_page_fetches_only_new_pieces(self) -> None:
        card = Card(0)
        card.feed(tokens([1]), "one")
        known = len(card.pieces)
        card.feed(tokens([2]), " two")
        assert "".join(card.pieces[known:]) == " two"


class TestPlans:
    @pytest.mark.parametrize("lang", LANGUAGES)
    @pytest.mark.parametrize("count", ["", "0", "25", "-1", "1.5", "٣", "1_0", "9" * 400, None, True])
    def test_a_bad_number_is_one_sentence_with_the_range(self, count: object, lang: Language) -> None:
        with pytest.raises(EncoreError, match="24"):
            read_wall_plan({"kind": "replays", "count": count}, SAMPLED, lang)

    @pytest.mark.parametrize(
        ("values", "said"),
        [
            ({"kind": "nonsense", "count": "3"}, "Choose one of the two"),
            ({"kind": "seeds", "count": "1", "seed": "1", "temperature": "1"}, "from 2 to 24"),
            ({"kind": "seeds", "count": "3", "seed": "-1", "temperature": "1"}, "no seed"),
            ({"kind": "seeds", "count": "3", "seed": "many", "temperature": "1"}, "Seed cannot be"),
            ({"kind": "seeds", "count": "3", "seed": str(SEED_MAX), "temperature": "1"}, "out of range"),
            ({"kind": "seeds", "count": "3", "seed": "1", "temperature": "0"}, "the seed plays no part"),
            ({"kind": "seeds", "count": "3", "seed": "1", "temperature": "hot"}, "Temperature cannot be"),
        ],
    )
    def test_what_a_wall_cannot_run_is_refused_with_advice(self, values: dict[str, str], said: str) -> None:
        with pytest.raises(EncoreError, match=said):
            read_wall_plan(values, SAMPLED)

    def test_a_plan_is_read(self) -> None:
        values = {"kind": "seeds", "count": " 3 ", "seed": "-2", "temperature": "0.5", "order": "turns"}
        plan = read_wall_plan(values, SAMPLED)
        assert plan == WallPlan(kind=WallKind.SEEDS, count=3, first_seed=-2, temperature=0.5, together=False)
        assert seeds_of(plan) == [-2, 0, 1], "-1 means no seed"


class TestSentences:
    def cards(self, count: int = 12) -> list[Card]:
        return [complete(number, [1, 2]) for number in range(count)]

    @pytest.mark.parametrize(
        ("lang", "said"),
        [("en", "12 seeds: 9 × 112330, 3 × 112230"), ("zh-CN", "12 个种子：9 × 112330，3 × 112230")],
    )
    def test_one_sentence_sums_up(self, lang: Language, said: str) -> None:
        groups = [AnswerGroup("112230", [0, 1, 2]), AnswerGroup("112330", list(range(3, 12)))]
        assert wall_sentence(SEEDS, self.cards(), groups, lang) == said

    @pytest.mark.parametrize(("lang", "said"), [("en", "2 × other"), ("zh-CN", "2 × 其他")])
    def test_many_answers_are_lumped_together(self, lang: Language, said: str) -> None:
        groups = [AnswerGroup(str(n), cards) for n, cards in enumerate([[0, *range(4, 12)], [1], [2], [3]])]
        sentence = wall_sentence(SEEDS, self.cards(), groups, lang)
        assert sentence.endswith(said)
        assert "9 × 0" in sentence

    def test_answers_without_a_box_are_counted_and_come_last(self) -> None:
        groups = [AnswerGroup(None, list(range(11))), AnswerGroup("7", [11])]
        assert by_size(groups)[0].answer == "7"
        assert wall_sentence(SEEDS, self.cards(), groups) == "12 seeds: 1 × 7, 11 × no boxed answer"

    def test_the_recorded_run_is_no_replay(self) -> None:
        sentence = wall_sentence(REPLAYS, self.cards(4), [AnswerGroup("7", [0, 1, 2, 3])])
        assert sentence == "3 replays: 3 × 7"

    def test_an_unfinished_wall_says_how_far_it_is(self) -> None:
        cards = [*self.cards(2), Card(2), Card(3, state="not_run")]
        assert wall_sentence(REPLAYS, cards, [AnswerGroup("7", [0, 1])]) == "1 of 3 replays: 1 × 7"

    def test_tokens_are_told_apart_from_answers(self) -> None:
        reference = receipt([1, 2, 3])
        cards = [complete(0, [1, 2, 3])]
        cards += [complete(n, ids, reference) for n, ids in enumerate([[1, 2, 3], [1, 9, 3]], start=1)]
        assert token_sentence(REPLAYS, cards).startswith("Token by token, 1 of 2 came out the same")
        assert "at token 1." in token_sentence(REPLAYS, cards)
        assert token_sentence(REPLAYS, cards[:2]) == (
            "Token by token, 1 of 1 came out the same as the first."
        )
        assert "1 of 2 part from the first" in token_sentence(SEEDS, cards)

    def test_load_is_said_honestly(self) -> None:
        engine = receipt([1]).engine
        assert "that alone can make answers fork" in load_sentence(REPLAYS, engine)
        assert "queue" in load_sentence(REPLAYS, engine.model_copy(update={"max_num_seqs": 1}))
        assert "built not to" in load_sentence(REPLAYS, engine.model_copy(update={"batch_invariant": True}))
        turns = REPLAYS.model_copy(update={"together": False})
        assert "no load for each other" in load_sentence(turns, engine)

    def test_a_moved_probability_is_not_called_the_same(self) -> None:
        card = complete(1, [1, 2], receipt([1, 2]))
        card.verdict = Verdict.DRIFTED
        assert "probabilities moved" in card_line(card, REPLAYS)
        assert card_shape(card, REPLAYS) == "◐"

    def test_a_long_answer_is_one_short_line(self) -> None:
        shown = short_answer("\\frac{1}{2}\n" * 40)
        assert "\n" not in shown
        assert len(shown) == LONGEST_ANSWER
