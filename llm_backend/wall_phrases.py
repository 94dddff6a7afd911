"""What a replay wall says: one big sentence, what the load means, and each card's line."""

from __future__ import annotations

from collections.abc import Sequence

from llm_backend.compare import Verdict
from llm_backend.receipt import EngineFingerprint
from llm_backend.strings import Language, text
from llm_backend.token_text import printable
from llm_backend.wall import AnswerGroup, Card, WallKind, WallPlan, by_size

MOST_NAMED = 3
"""Answers that the sentence names; the rest are "other"."""

LONGEST_ANSWER = 40
"""Characters of an answer in the sentence and beside a bar."""

SHAPES = {Verdict.IDENTICAL: "●", Verdict.DRIFTED: "◐", Verdict.DIVERGED: "✕", Verdict.INCOMPARABLE: "?"}


def short_answer(answer: str | None, lang: Language = "en") -> str:
    """One line, with what it cannot hold cut off."""
    if answer is None:
        return text("wall.no_answer", lang)
    flat = printable(" ".join(answer.split()))
    return flat if len(flat) <= LONGEST_ANSWER else flat[: LONGEST_ANSWER - 1] + "…"


def wall_sentence(
    plan: WallPlan, cards: Sequence[Card], groups: Sequence[AnswerGroup], lang: Language = "en"
) -> str:
    """`12 seeds: 9 × 112330, 3 × other`; while runs are missing it says how many there are."""
    counted = counted_cards(plan, cards)
    done = sum(card.state == "complete" for card in counted)
    numbers = {card.number for card in counted}
    parts = _tally(groups, numbers, lang)
    key = "wall.sum.seeds" if plan.kind is WallKind.SEEDS else "wall.sum.replays"
    head = text(key, lang, n=len(counted))
    if done < len(counted):
        head = text("wall.sum.so_far", lang, head=head, done=done)
    said = text("wall.sum.joint", lang).join(parts)
    return text("wall.sum", lang, head=head, tally=said) if said else head


def counted_cards(plan: WallPlan, cards: Sequence[Card]) -> list[Card]:
    """The recorded run is what replays are compared with, and one of the seeds."""
    return list(cards if plan.kind is WallKind.SEEDS else cards[1:])


def _tally(groups: Sequence[AnswerGroup], numbers: set[int], lang: Language) -> list[str]:
    counts = [(group, len(numbers.intersection(group.cards))) for group in by_size(groups)]
    counts = [(group, count) for group, count in counts if count]
    named = counts if len(counts) <= MOST_NAMED else counts[: MOST_NAMED - 1]
    parts = [text("wall.sum.part", lang, n=n, answer=short_answer(group.answer, lang)) for group, n in named]
    other = sum(count for _, count in counts[len(named) :])
    return [*parts, text("wall.sum.other", lang, n=other)] if other else parts


def token_sentence(plan: WallPlan, cards: Sequence[Card], lang: Language = "en") -> str:
    """How many came out the same token by token, which the answers say nothing about."""
    ended = [card for card in cards[1:] if card.state == "complete" and card.comparable]
    forks = [card.fork.position for card in ended if card.fork]
    if not ended:
        return ""
    if plan.kind is WallKind.SEEDS:
        if not forks:
            return text("wall.tokens.seeds_same", lang)
        return text("wall.tokens.seeds", lang, n=len(forks), of=len(ended), first=min(forks))
    same = len(ended) - len(forks)
    key = "wall.tokens.forked" if forks else "wall.tokens.same"
    return text(key, lang, same=same, of=len(ended), first=min(forks, default=0))


def load_sentence(plan: WallPlan, engine: EngineFingerprint | None, lang: Language = "en") -> str:
    """What running them at once, or in turns, means for what the wall can show."""
    if not plan.together:
        return text("wall.load.turns", lang)
    if engine is not None and engine.max_num_seqs == 1:
        return text("wall.load.queue", lang)
    if engine is not None and engine.batch_invariant:
        return text("wall.load.invariant", lang)
    return text("wall.load.together", lang)


def card_title(card: Card, plan: WallPlan, lang: Language = "en") -> str:
    if plan.kind is WallKind.SEEDS:
        return text("wall.card.seed", lang, seed=str(card.seed))
    if card.number == 0:
        return text("wall.card.recorded", lang)
    return text("wall.card.replay", lang, n=card.number)


def card_line(card: Card, plan: WallPlan, lang: Language = "en") -> str:
    """How the run stands: waiting, so many tokens, the same as the first, forked, broken off."""
    if card.state != "complete":
        return text(f"wall.state.{card.state}", lang, n=len(card.tokens))
    if card.number == 0:
        return text("wall.state.first", lang, n=len(card.tokens))
    if not card.comparable:
        return text("wall.state.no_ids", lang)
    if card.fork:
        return text("wall.state.forked", lang, n=card.fork.position)
    if card.verdict in (Verdict.DRIFTED, Verdict.INCOMPARABLE) and plan.kind is WallKind.REPLAYS:
        return text(f"wall.state.{card.verdict.value.lower()}", lang, n=len(card.tokens))
    return text("wall.state.same", lang, n=len(card.tokens))


def card_shape(card: Card, plan: WallPlan) -> str:
    """Never colour alone."""
    if card.state != "complete" or card.number == 0:
        return ""
    if not card.comparable:
        return SHAPES[Verdict.INCOMPARABLE]
    if card.fork:
        return SHAPES[Verdict.DIVERGED]
    if plan.kind is WallKind.REPLAYS and card.verdict:
        return SHAPES[card.verdict]
    return SHAPES[Verdict.IDENTICAL]
