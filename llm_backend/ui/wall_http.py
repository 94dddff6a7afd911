"""The wall's page and what it asks for. News come in batches, and only what the page does not know yet."""

from __future__ import annotations

import json
import time
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Body, Header
from fastapi.responses import HTMLResponse, JSONResponse
from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template

from llm_backend import wall_phrases as phrases
from llm_backend.answers import Sameness
from llm_backend.strings import Language, catalogue, pick_language, text
from llm_backend.token_text import quoted
from llm_backend.ui.backend import backend
from llm_backend.ui.problems import sentence
from llm_backend.ui.walls import Wall
from llm_backend.wall import CLASSROOM_TEMPERATURE, MOST_CARDS, Card, by_size

router = APIRouter()

AcceptLanguage = Annotated[str | None, Header()]

_TEMPLATES = Path(__file__).parents[1] / "templates"
_MARKS = {Sameness.SAME: "✓", Sameness.DIFFERENT: "✗", Sameness.UNKNOWN: "?"}


@router.get("/walls/{wall_id}")
async def wall_page(wall_id: str, accept_language: AcceptLanguage = None) -> HTMLResponse:
    """The page: a form, then the cards. Everything a model or a person wrote reaches it as JSON."""
    lang = pick_language(accept_language)
    wall = await backend().walls.get(backend(), wall_id)
    words = {key.removeprefix("wall.page."): said for key, said in catalogue(lang).items()
             if key.startswith("wall.page.")}  # fmt: skip
    sampling = wall.request.sampling
    page = _template().render(
        lang=lang,
        root=backend().settings.root_path,
        wall=wall.id,
        words=json.dumps(words, ensure_ascii=False),
        t=lambda key, **values: text(f"wall.page.{key}", lang, **values),
        seed="" if sampling.seed is None else str(sampling.seed),
        temperature=CLASSROOM_TEMPERATURE if sampling.greedy else sampling.temperature,
        greedy=sampling.greedy,
        recorded=wall.origin is not None,
        preset=wall.preset,
        most=MOST_CARDS,
        question=wall.question,
    )
    return HTMLResponse(page, headers={"Cache-Control": "no-store"})


@lru_cache(maxsize=1)
def _template() -> Template:
    environment = Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("wall.html")


@router.get("/walls/{wall_id}/news")
async def news(
    wall_id: str,
    epoch: str = "",
    at: Annotated[str, "pieces the page knows of each card, with commas"] = "",
    seen: Annotated[str, "versions of the cards it knows"] = "",
    accept_language: AcceptLanguage = None,
) -> JSONResponse:
    """The wall as it stands: no card that has not changed, and of a text only the pieces from `at` on."""
    lang, wall = pick_language(accept_language), await backend().walls.get(backend(), wall_id)
    wall.looked_at = time.monotonic()
    known = epoch == wall.epoch
    known_pieces, known_versions = (_numbers(at), _numbers(seen)) if known else ([], [])
    cards = []
    for card in wall.cards:
        if card.version != _nth(known_versions, card.number, -1):
            cards.append(_card(wall, card, _nth(known_pieces, card.number, 0), lang))
    document = {
        "epoch": wall.epoch,
        "state": wall.state,
        "cards": cards,
        "count": len(wall.cards),
        **_summary(wall, lang),
    }
    return JSONResponse(document, headers={"Cache-Control": "no-store"})


@router.post("/walls/{wall_id}/start")
async def start(
    wall_id: str, values: Annotated[dict[str, Any], Body()], accept_language: AcceptLanguage = None
) -> dict[str, str]:
    """What the form says; refused with one sentence."""
    walls = backend().walls
    wall = await walls.get(backend(), wall_id)
    await walls.start(backend(), wall, values, pick_language(accept_language))
    return {"state": wall.state}


@router.post("/walls/{wall_id}/stop")
async def stop(wall_id: str) -> dict[str, str]:
    """End it; what is done is kept."""
    wall = await backend().walls.get(backend(), wall_id)
    await backend().walls.stop(wall)
    return {"state": wall.state}


@router.post("/walls/{wall_id}/again")
async def again(wall_id: str) -> dict[str, str]:
    """A new wall about the same run."""
    wall = await backend().walls.get(backend(), wall_id)
    first = wall.origin.id if wall.origin else next((card.run_id for card in wall.cards if card.run_id), None)
    if first is None:
        made = backend().walls.of_question(wall.request, wall.chat_id)
    else:
        made = await backend().walls.of_run(backend(), first, wall.chat_id)
    return {"wall": made.id}


def _summary(wall: Wall, lang: Language) -> dict[str, Any]:
    problem = sentence(wall.problem, lang) if wall.problem else ""
    if wall.plan is None:
        return {"sentence": "", "tokens": "", "load": "", "groups": [], "problem": problem}
    counted = {card.number for card in phrases.counted_cards(wall.plan, wall.cards)}
    groups = [
        {
            "answer": group.answer,
            "short": phrases.short_answer(group.answer, lang),
            "cards": [number for number in group.cards if number in counted],
            "unsure": text("wall.group.unsure", lang) if group.unsure else "",
            "mark": _MARKS[group.expected] if group.expected else "",
            "judged": text(f"wall.group.{group.expected.value.lower()}", lang) if group.expected else "",
        }
        for group in by_size(wall.groups)
    ]
    return {
        "sentence": phrases.wall_sentence(wall.plan, wall.cards, wall.groups, lang),
        "tokens": phrases.token_sentence(wall.plan, wall.cards, lang),
        "load": phrases.load_sentence(wall.plan, wall.engine, lang),
        "groups": [group for group in groups if group["cards"]],
        "expected": text("wall.expected", lang, value=wall.expected) if wall.expected else "",
        "problem": problem,
    }


def _card(wall: Wall, card: Card, known: int, lang: Language) -> dict[str, Any]:
    assert wall.plan is not None
    fork = card.fork
    return {
        "number": card.number,
        "version": card.version,
        "title": phrases.card_title(card, wall.plan, lang),
        "state": card.state,
        "line": phrases.card_line(card, wall.plan, lang),
        "shape": phrases.card_shape(card, wall.plan),
        "at": known,
        "pieces": len(card.pieces),
        "text": "".join(card.pieces[known:]),
        "tokens": len(card.tokens),
        "same": card.same,
        "first": card.number == 0,
        "fork": None
        if fork is None
        else {
            "characters": fork.characters,
            "said": text(
                "wall.fork",
                lang,
                n=fork.position,
                recorded=_token(fork.recorded, lang),
                token=_token(fork.token, lang),
            ),
            "margin": "" if fork.margin is None else text("wall.fork.margin", lang, x=fork.margin),
        },
        "answer": card.answer,
        "problem": sentence(card.problem, lang) if card.problem else "",
        "neighbours": text("wall.neighbours", lang, n=card.neighbours) if card.neighbours else "",
        "digest": card.digest,
    }


def _token(shown: str | None, lang: Language) -> str:
    return text("wall.fork.end", lang) if shown is None else quoted(shown)


def _numbers(listed: str) -> list[int]:
    """What the page said it knows; anything else than small numbers is nothing known."""
    parts = listed.split(",")[: MOST_CARDS + 1]
    return [int(part) if part.isascii() and part.isdecimal() and len(part) < 10 else -1 for part in parts]


def _nth(numbers: list[int], index: int, otherwise: int) -> int:
    return numbers[index] if index < len(numbers) and numbers[index] >= 0 else otherwise
