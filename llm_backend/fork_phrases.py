"""Choices and forks in words, for the panel and the command line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llm_backend.answer_phrases import LONGEST_SHOWN, PAIR_SHAPES
from llm_backend.answers import AnswerPair
from llm_backend.compare import NearTie, receipt_end
from llm_backend.fork import Choice, ForkPoint, close_calls, is_close
from llm_backend.layout import columns, fenced, literal, markdown_table, strict_json
from llm_backend.phrases import end_phrase, short_digest
from llm_backend.receipt import Receipt
from llm_backend.strings import Language, text
from llm_backend.token_text import alternative_text, printable, quoted, token_texts

Names = Mapping[int, str]
"""Texts of token ids, as far as they are known."""


def margin_phrase(margin: float | None, threshold: NearTie, lang: Language = "en") -> str:
    """How close a call was: the margin, and whether that is a near tie by which measure."""
    if margin is None:
        return text("fork.margin.unknown", lang)
    if margin == 0:
        return text("fork.margin.tie", lang)
    basis = text(f"fork.basis.{threshold.basis}", lang)
    key = "fork.margin.close" if is_close(margin, threshold) else "fork.margin.clear"
    return text(key, lang, x=margin, threshold=threshold.nats, basis=basis)


def choice_phrase(choice: Choice, names: Names, lang: Language = "en") -> str:
    """`" 2" (41.0 %, id 362)`."""
    token = quoted(alternative_text(choice.id, names))
    return text("fork.choice", lang, token=token, p=choice.probability, id=choice.id)


def fork_sentences(fork: Receipt, point: ForkPoint, lang: Language = "en") -> list[str]:
    """What happened after the fork, in tokens; the answers are another matter."""
    sampling = fork.request.sampling
    whole = point.same_after == point.recorded_after == point.generated
    said = []
    if point.same_token:
        after = point.position + 1 + point.same_after
        different = "fork.control.different" if sampling.greedy else "fork.control.sampled"
        said.append(
            text("fork.control.same", lang, n=point.same_after)
            if whole
            else text(different, lang, position=after)
        )
    elif whole:
        said.append(text("fork.next.ended", lang, n=point.same_after))
    elif point.same_after:
        said.append(text("fork.next.same", lang, n=point.same_after))
    else:
        said.append(text("fork.next.none", lang))
    end = end_phrase(receipt_end(fork), lang)
    counts = {"generated": point.generated, "recorded": point.recorded_after}
    said.append(text("fork.length", lang, end=end, **counts))
    if not sampling.greedy:
        said.append(text("fork.sampled", lang, temperature=sampling.temperature))
    return said


def fork_answers_line(pair: AnswerPair, lang: Language = "en") -> str:
    """How the two final answers relate."""
    if pair.reference is None and pair.candidate is None:
        return text("fork.answers.none", lang)
    none = text("answer.pair.none", lang)
    values = {
        "reference": none if pair.reference is None else _short(pair.reference),
        "candidate": none if pair.candidate is None else _short(pair.candidate),
    }
    if pair.opinion is None:
        return text("fork.answers.one", lang, shape="?", **values)
    sameness = pair.opinion.sameness
    said = text(f"fork.answers.{sameness.value.lower()}", lang, shape=PAIR_SHAPES[sameness], **values)
    why = text(f"answer.why.{pair.opinion.reason}", lang) if pair.opinion.reason else ""
    return f"{said} ({why})" if why else said


# -- reports of `encore fork` ----------------------------------------------------------------------


def fork_text(
    parent: Receipt,
    fork: Receipt,
    point: ForkPoint,
    threshold: NearTie,
    names: Names,
    pair: AnswerPair,
    lang: Language = "en",
) -> str:
    """The report, with how the fork's answer goes on at its end."""
    rows, sentences = _rows(point, names, lang), _sentences(fork, point, pair, lang)
    margin = margin_phrase(point.margin, threshold, lang)
    head = text("fork.at", lang, position=point.position, margin=margin)
    kept = text("fork.kept", lang, digest=short_digest(fork.digest))
    return "\n".join([head, *(f"  {row}" for row in columns(rows)), *sentences, kept, "", _tail(fork, names)])


def fork_markdown(
    parent: Receipt,
    fork: Receipt,
    point: ForkPoint,
    threshold: NearTie,
    names: Names,
    pair: AnswerPair,
    lang: Language = "en",
) -> str:
    margin = margin_phrase(point.margin, threshold, lang)
    head = text("fork.at", lang, position=point.position, margin=margin)
    sentences = [f"- {literal(said)}" for said in _sentences(fork, point, pair, lang)]
    kept = literal(text("fork.kept", lang, digest=short_digest(fork.digest)))
    table = markdown_table([("", ""), *_rows(point, names, lang)])
    tail = fenced(_tail(fork, names))
    return "\n".join([f"**{literal(head)}**", "", table, "", *sentences, "", kept, "", tail])


def fork_json(
    parent: Receipt, fork: Receipt, point: ForkPoint, threshold: NearTie, names: Names, pair: AnswerPair
) -> str:
    """Everything measured; logprobs and margins in nats."""
    return strict_json(
        {
            "parent": parent.digest,
            "fork": fork.digest,
            "position": point.position,
            "margin": point.margin,
            "near_tie": is_close(point.margin, threshold),
            "threshold": threshold.model_dump(mode="json"),
            "recorded": {"id": point.recorded.id, "text": names.get(point.recorded.id)},
            "taken": {
                "id": point.taken.id,
                "text": names.get(point.taken.id),
                "rank": point.taken.rank,
                "logprob": point.taken.logprob,
                "probability": point.taken.probability,
            },
            "same_after": point.same_after,
            "recorded_after": point.recorded_after,
            "generated": point.generated,
            "end": receipt_end(fork),
            "answers": pair.model_dump(mode="json"),
            "text": fork.completion.text,
        }
    )


def close_calls_report(receipt: Receipt, threshold: NearTie, most: int) -> list[dict[str, Any]]:
    """The closest calls of an answer: where a fork says most."""
    tokens = receipt.completion.tokens
    texts = token_texts(tokens)
    return [
        {
            "position": call.position,
            "margin": call.margin,
            "near_tie": is_close(call.margin, threshold),
            "id": tokens[call.position].id,
            "text": texts[call.position],
        }
        for call in close_calls(tokens, most)
    ]


def close_calls_rows(calls: list[dict[str, Any]], lang: Language = "en") -> list[tuple[str, str, str, str]]:
    """Position, token, margin, and whether it is a near tie."""
    return [
        (
            str(call["position"]),
            quoted(call["text"]),
            text("panel.diff.margin", lang, x=f"{call['margin']:.3g}"),
            text("fork.close.near", lang) if call["near_tie"] else "",
        )
        for call in calls
    ]


def _rows(point: ForkPoint, names: Names, lang: Language) -> list[tuple[str, str]]:
    recorded = Choice(point.recorded.id, point.recorded.logprob, None, True)
    taken = text("fork.again" if point.same_token else "fork.taken", lang)
    return [
        (text("fork.recorded", lang), choice_phrase(recorded, names, lang)),
        (taken, choice_phrase(point.taken, names, lang)),
    ]


def _sentences(fork: Receipt, point: ForkPoint, pair: AnswerPair, lang: Language) -> list[str]:
    return [*fork_sentences(fork, point, lang), fork_answers_line(pair, lang)]


def _tail(fork: Receipt, names: Names) -> str:
    taken = alternative_text(fork.request.prompt_token_ids[-1], names)
    return printable(f"…{taken}{fork.completion.text}")


def _short(answer: str) -> str:
    flat = printable(" ".join(answer.split()))
    return flat if len(flat) <= LONGEST_SHOWN else flat[: LONGEST_SHOWN - 1] + "…"
