"""What the app writes about itself: lines for people, or one JSON object per line.

Neither form has any chat's text or a secret. A failure is told by its type and place: what it says may
quote a prompt (a validation error quotes its input), so only Encore's own sentences are kept.
"""

from __future__ import annotations

import json
import logging
import traceback
from datetime import UTC, datetime
from typing import Any, Literal

from llm_backend.errors import EncoreError

_PLAIN = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "color_message", "taskName"}
"""What every record has; the rest came with `extra`."""

CHATTY = ("alembic", "httpx", "httpx2", "openai", "socketio", "engineio")
"""Loggers whose everyday lines nobody needs, or that would print request bodies."""


class JsonLines(logging.Formatter):
    """`{"time": …, "level": …, "logger": …, "message": …, …extra, "error": …, "traceback": […]}`"""

    def format(self, record: logging.LogRecord) -> str:
        document: dict[str, Any] = {
            "time": _utc(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **_extra(record),
        }
        if record.exc_info and record.exc_info[1] is not None:
            document["error"] = _named(record.exc_info[1])
            document["traceback"] = _places(record.exc_info[1])
        return json.dumps(document, ensure_ascii=False, default=str)


class TextLines(logging.Formatter):
    """The same for people: `time LEVEL logger: message key=value …`, a traceback's places below."""

    def format(self, record: logging.LogRecord) -> str:
        extra = "".join(f" {key}={value}" for key, value in _extra(record).items() if value is not None)
        line = f"{_utc(record)} {record.levelname} {record.name}: {record.getMessage()}{extra}"
        if record.exc_info and record.exc_info[1] is not None:
            error = record.exc_info[1]
            line = "\n".join([line, *(f"  {place}" for place in _places(error)), f"  {_named(error)}"])
        return line


def configure(form: Literal["text", "json"]) -> None:
    """Replace whatever was set up before: once, when the process starts."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines() if form == "json" else TextLines())
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    for chatty in CHATTY:
        logging.getLogger(chatty).setLevel(logging.WARNING)


def _utc(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")


def _extra(record: logging.LogRecord) -> dict[str, Any]:
    return {key: value for key, value in record.__dict__.items() if key not in _PLAIN}


def _named(error: BaseException) -> str:
    kind = type(error).__name__
    return f"{kind}: {error}" if isinstance(error, EncoreError) else kind


def _places(error: BaseException) -> list[str]:
    frames = traceback.extract_tb(error.__traceback__)
    return [f"{frame.filename}:{frame.lineno} in {frame.name}" for frame in frames]
