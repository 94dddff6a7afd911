"""The answer of a run as lines of its own: what is in the box, whether that is right, and whether a replay
with other words comes to the same. About values only; the verdicts, about tokens, are not touched by it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import APIRouter, Header

from llm_backend.answer_judge import check_box, compare_boxes
from llm_backend.answer_phrases import answer_line, pair_line
from llm_backend.answers import AnswerPair, read_expected
from llm_backend.compare import Verdict
from llm_backend.run import Run
from llm_backend.store import StoredComparison
from llm_backend.strings import Language, pick_language, text
from llm_backend.ui import panel
from llm_backend.ui.backend import backend
from llm_backend.ui.judging import Said
from llm_backend.ui.login import own_run
from llm_backend.ui.session import ChatSession
from llm_backend.ui.starters import starter_answer

router = APIRouter()


@router.get("/runs/{run_id}/answer")
async def run_answer(
    run_id: str, accept_language: Annotated[str | None, Header()] = None
) -> dict[str, Any] | None:
    """The answer lines of one run; null for a run that is going, was stopped or broke off.

    `line` is empty where there is neither a box nor an expected answer, `pair` is null where no replay came
    out in other words.
    """
    lang, judging = pick_language(accept_language), backend().judging
    run = await backend().store.run(run_id)
    if run.status != "complete" or run.digest is None:
        return None
    said = await judging.said(backend().store, run.digest)
    check = await check_box(
        judging,
        said.answer,
        said.question,
        typed=run.expected_answer,
        starter=starter_answer(said.question),
    )
    shown = check.answer is not None or run.expected_answer is not None
    return {
        "answer": check.answer,
        "typed": run.expected_answer or "",
        "line": answer_line(check, lang) if shown else "",
        "sameness": check.opinion.sameness.value if check.opinion else None,
        "source": check.source if shown else None,
        "pair": await _pair(run, said, lang),
    }


async def _pair(run: Run, recorded: Said, lang: Language) -> dict[str, Any] | None:
    """How the answer of the latest replay that diverged relates to the recorded one."""
    replays = [
        found for found in await backend().store.comparisons(run.id) if found.reference_run_id == run.id
    ]
    diverged = next((found for found in replays if found.verdict == Verdict.DIVERGED), None)
    if diverged is None:
        return None
    pair = await _compared(recorded, diverged)
    said = pair_line(pair, lang) if pair else ""
    if pair is None or not said:
        return None
    return {
        "comparison": diverged.id,
        # Right beneath a verdict that says "came out the same" it would seem to contradict it.
        "line": said if diverged is replays[0] else text("answer.pair.earlier", lang, said=said),
        "sameness": pair.opinion.sameness.value if pair.opinion else None,
    }


async def _compared(recorded: Said, replay: StoredComparison) -> AnswerPair | None:
    """None where the words are the same after all, or the replay has no receipt."""
    candidate = await backend().store.run(replay.candidate_run_id)
    if candidate.digest is None:
        return None
    replayed = await backend().judging.said(backend().store, candidate.digest)
    if replayed.words == recorded.words:
        return None
    return await compare_boxes(backend().judging, recorded.answer, replayed.answer)


async def expect_in_chat(session: ChatSession, payload: Mapping[str, Any]) -> None:
    """Keep what someone typed as a run's expected answer and have the page look again.

    Raises `EncoreError` for an answer that is too long and for a run that is not theirs.
    """
    run = await own_run(session.user, str(payload.get("run")))
    expected = read_expected(str(payload.get("answer", "")), session.lang)
    await backend().store.expect(run.id, expected)
    await panel.tell("expected", run=run.id)
