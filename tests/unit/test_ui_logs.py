"""What the app's log says, and what it never says."""

from __future__ import annotations

import json
import logging
import sys

import pytest

from llm_backend.errors import EngineUnreachable
from llm_backend.ui.logs import JsonLines, TextLines

SECRET = "Wie heißt mein Passwort? geheim-4711"


def record_of(error: Exception) -> logging.LogRecord:
    try:
        raise error
    except Exception:
        return logging.LogRecord(
            "encore", logging.ERROR, __file__, 1, "unexpected error", None, sys.exc_info()
        )


def test_a_line_is_one_object_with_its_fields() -> None:
    record = logging.makeLogRecord({"name": "encore", "levelname": "INFO", "msg": "run ended"})
    record.digest, record.run = "sha256:abc", "r1"
    document = json.loads(JsonLines().format(record))
    assert (document["level"], document["message"]) == ("info", "run ended")
    assert (document["digest"], document["run"]) == ("sha256:abc", "r1")
    assert document["time"].endswith("+00:00")
    assert TextLines().format(record).endswith("INFO encore: run ended digest=sha256:abc run=r1")


@pytest.mark.parametrize("form", [JsonLines(), TextLines()])
def test_an_error_tells_its_place_and_never_what_it_quotes(form: logging.Formatter) -> None:
    line = form.format(record_of(ValueError(SECRET)))
    assert "ValueError" in line
    assert "test_ui_logs.py" in line
    assert SECRET not in line


def test_encore_s_own_sentence_is_kept() -> None:
    document = json.loads(JsonLines().format(record_of(EngineUnreachable("http://127.0.0.1:8100"))))
    assert "8100" in document["error"]
    assert "\n" not in JsonLines().format(record_of(ValueError("two\nlines")))
