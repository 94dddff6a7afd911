"""One run as one HTML file: no script, no request to anywhere, light and dark, made to be read by others.

The template escapes everything it is given; nothing that a model or a person wrote is taken as HTML.
The words are shown as they came, formulas as their source: it is the record, not its rendering.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template
from markupsafe import Markup

from llm_backend.phrases import VerdictLine, field_label, run_summary, run_warning, short_digest
from llm_backend.receipt import EngineFingerprint, Receipt
from llm_backend.render import Rows, sampling_rows
from llm_backend.run import Run
from llm_backend.strings import Language, text
from llm_backend.thinking import ThinkSplitter
from llm_backend.token_text import printable

_TEMPLATES = Path(__file__).with_name("templates")

_ENGINE_ROWS = ("model", "model_revision", "vllm_version", "device", "device_names", "cpu_model", "profile")
"""What of the engine is told to strangers; the receipt has the rest."""


def run_html(
    run: Run,
    receipt: Receipt,
    verdicts: Sequence[VerdictLine],
    lang: Language,
    receipt_href: str,
    receipt_suffix: str,
) -> str:
    """The whole file; `receipt_href`: where the receipt can be downloaded, a data: address in a file."""
    splitter = ThinkSplitter()
    splitter.feed(receipt.completion.text)
    splitter.finish()
    messages = receipt.request.messages
    return _template().render(
        lang=lang,
        style=Markup(_style()),
        style_hash=style_hash(),
        say=lambda key, **values: text(key, lang, **values),
        question=printable(messages[-1].content) if messages else "",
        earlier=[(message.role, printable(message.content)) for message in messages[:-1]],
        thinking=printable(splitter.thinking.strip()),
        answer=printable(splitter.answer.strip()),
        date=run.started_at.strftime("%Y-%m-%d %H:%M UTC"),
        summary=run_summary(run, lang),
        warning=run_warning(run.invalid_positions, lang),
        verdicts=verdicts,
        settings=sampling_rows(receipt.request.sampling, receipt.request.effective, lang),
        engine=_engine_rows(receipt.engine, lang),
        digest=receipt.digest,
        fingerprint=short_digest(receipt.engine.digest),
        receipt_href=receipt_href,
        receipt_name=f"encore-{short_digest(receipt.digest)}{receipt_suffix}",
    )


def _engine_rows(engine: EngineFingerprint, lang: Language) -> Rows:
    known = [(name, getattr(engine, name)) for name in _ENGINE_ROWS if getattr(engine, name)]
    return [
        (field_label("engine", name, lang), ", ".join(value) if isinstance(value, tuple) else str(value))
        for name, value in known
    ]


def style_hash() -> str:
    """What a content security policy says to allow the page's own style and no other."""
    return f"sha256-{base64.b64encode(hashlib.sha256(_style().encode()).digest()).decode()}"


@lru_cache(maxsize=1)
def _style() -> str:
    return (_TEMPLATES / "share.css").read_text(encoding="utf-8")


@lru_cache(maxsize=1)
def _template() -> Template:
    environment = Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("share.html")
