"""What came of an import, in sentences."""

from __future__ import annotations

import json
from dataclasses import asdict

from llm_backend.exchange import Imported
from llm_backend.strings import Language, text


def import_text(result: Imported, lang: Language = "en") -> str:
    """`3 receipts imported, 1 known already, 2 lines refused:` and the refused lines below it."""
    more = result.refused - len(result.refusals)
    lines = [
        text("exchange.result", lang, **{name: getattr(result, name) for name in _COUNTS}),
        *(
            text("exchange.refusal", lang, file=refusal.file, line=refusal.line, problem=refusal.problem)
            for refusal in result.refusals
        ),
        *([text("exchange.more", lang, n=more)] if more else []),
    ]
    return "\n".join(lines)


def import_markdown(result: Imported, lang: Language = "en") -> str:
    first, *rest = import_text(result, lang).split("\n")
    return "\n".join([f"**{first}**", *(f"- {line}" for line in rest)])


def import_json(result: Imported) -> str:
    return json.dumps(asdict(result), ensure_ascii=False, indent=2)


_COUNTS = ("imported", "known", "refused")
