"""`/verify` in the chat: an acceptance run with progress, and a link to its report.

The quick suite unless `/verify full` is asked for. Stop ends it; what was measured until then is the
report. A second engine is not started from here: the person at the page may not be the one who owns
the machine.
"""

from __future__ import annotations

import asyncio
import re
import uuid
from pathlib import Path

import chainlit as cl

from llm_backend.access import open_calibrations
from llm_backend.config import Settings
from llm_backend.diagnose import Evidence
from llm_backend.errors import EncoreError, ReceiptNotFound
from llm_backend.receipt import EngineFingerprint
from llm_backend.strings import Language, text
from llm_backend.suite import Acceptance
from llm_backend.suites import load_suite
from llm_backend.tally import Shape
from llm_backend.ui.backend import Backend
from llm_backend.ui.live_text import Pacer
from llm_backend.ui.prose import readable_prose
from llm_backend.verification import Doing, Verification
from llm_backend.verify_html import verification_html
from llm_backend.verify_phrases import doing_line, evidence_text, headline
from llm_backend.verify_plan import Plan, choose, targets_of

COMMAND = re.compile(r"\s*/verify(\s+full)?\s*", re.IGNORECASE)

_REPORT = re.compile(r"[0-9a-f]{32}")

_one_at_a_time = asyncio.Lock()
"""Two verifications would be each other's load."""


def asked_to_verify(content: str) -> bool | None:
    """Whether the whole suite is wanted; None when the message is no such command."""
    match = COMMAND.fullmatch(content)
    return None if match is None else bool(match[1])


def report_file(settings: Settings, report_id: str) -> Path:
    """Where a report is kept; raises `ReceiptNotFound` for what is no id of one or is not there."""
    file = settings.data_dir / "reports" / f"{report_id}.html"
    if not _REPORT.fullmatch(report_id) or not file.is_file():
        raise ReceiptNotFound("There is no such report.", "Make one with /verify or encore verify.")
    return file


async def verify_in_chat(backend: Backend, lang: Language, *, full: bool) -> None:
    """Verify the engine, telling how far it is; ends with the verdict and a link, also when stopped.

    Raises `EngineError`, and `EncoreError` while another verification runs.
    """
    if _one_at_a_time.locked():
        raise EncoreError(text("verify.chat.busy", lang))
    async with _one_at_a_time:
        engine = backend.engine
        identity = await engine.identity()
        message = cl.Message(content=text("verify.chat.begun", lang))
        await message.send()
        progress = _Progress(message, lang)
        acceptance = Acceptance(
            engine,
            backend.store,
            _plan(identity, full=full),
            identity,
            open_calibrations(backend.settings),
            on_progress=progress.show,
        )
        try:
            async with progress.pacer:
                with backend.engines.using(engine):
                    await acceptance.run()
        finally:
            ended = _finish(message, backend.settings, acceptance.report, lang)
            # Stop pressed in the very last moment must not take the report away.
            await asyncio.shield(backend.start(ended))


class _Progress:
    """The line below the command, at most ten times a second."""

    def __init__(self, message: cl.Message, lang: Language) -> None:
        self._message = message
        self._lang = lang
        self._doing: Doing | None = None
        self.pacer = Pacer(self._send)

    def show(self, doing: Doing) -> None:
        self._doing = doing
        self.pacer.poke()

    async def _send(self) -> int:
        assert self._doing is not None
        self._message.content = readable_prose(doing_line(self._doing, self._lang))
        await self._message.update()
        return len(self._message.content)


async def _finish(message: cl.Message, settings: Settings, report: Verification, lang: Language) -> None:
    report_id = uuid.uuid4().hex
    file = settings.data_dir / "reports" / f"{report_id}.html"
    await asyncio.to_thread(_keep, file, verification_html(report, lang))
    link = f"[{text('verify.chat.open', lang)}]({settings.root_path}/reports/{report_id})"
    cut_short = [readable_prose(evidence_text(report.cut_short, lang))] if report.cut_short else []
    said = readable_prose(str(headline(report, lang)))
    message.content = "\n\n".join([f"**{said}**", *cut_short, link])
    await message.update()


def _keep(file: Path, content: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(content, encoding="utf-8")


def _plan(identity: EngineFingerprint, *, full: bool) -> Plan:
    suite, choice = load_suite(), choose(identity, quick=not full)
    return Plan(
        suite=suite.name,
        targets=targets_of(suite if full else suite.quick()),
        times=choice.times,
        counts=choice.counts,
        shape=Shape.MIXED,
        level="logprobs",
        chosen=choice.evidence,
        relaunch=Evidence(key="verify.restart.in_chat"),
    )
