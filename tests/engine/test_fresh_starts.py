"""What a fresh start of a real engine must not change: the first run, a restart, a model's own defaults."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from engine.conftest import INSTALLED, ROOT, started
from engine.test_real_engine import ask

from llm_backend.compare import Verdict
from llm_backend.engine.client import EngineClient
from llm_backend.engine.embedded import EMBEDDED_MODEL
from llm_backend.phrases import notes
from llm_backend.replay import replay
from llm_backend.store import Store

pytestmark = pytest.mark.engine

MARK = "periwinkle"
"""A word that stands nowhere but in the question."""

QUESTION = (
    "List the first 40 triangular numbers, then say why the differences grow by one. "
    + f"The {MARK} paragraph that follows is only there to make this prompt a long one. " * 18
)
"""About 300 tokens, so that a prefix cache would have something to keep."""

OWN_DEFAULTS = {"temperature": 0.8, "top_p": 0.95, "repetition_penalty": 1.07}


def with_own_defaults(folder: Path) -> Path:
    """The embedded model beside a generation_config.json that would change every answer."""
    source = Path(INSTALLED.get("models_dir", ROOT / "models")) / EMBEDDED_MODEL
    folder.mkdir()
    for file in source.iterdir():
        if file.name != "generation_config.json":
            (folder / file.name).symlink_to(file)
    own = json.loads((source / "generation_config.json").read_text())
    (folder / "generation_config.json").write_text(json.dumps(own | OWN_DEFAULTS))
    return folder


async def test_the_first_run_after_a_start_and_runs_after_a_restart_are_alike(
    store: Store, tmp_path: Path
) -> None:
    """RC-01, RC-06, RC-08, RC-43: cold, warm and restarted are identical, with the restart noted; the model's
    own sampling defaults change nothing; the log keeps no prompt."""
    model = str(with_own_defaults(tmp_path / "SmolLM2 自带默认"))
    with started(tmp_path, "strict", ENCORE_MODEL=model) as (url, manifest):
        async with EngineClient(url, manifest_file=manifest) as engine:
            cold, receipt = await ask(engine, store, QUESTION)
            assert cold.first_after_start
            assert len(receipt.request.prompt_token_ids) > 300
            assert receipt.engine.prefix_caching is False
            assert receipt.request.effective.repetition_penalty == 1.0
            for _ in range(2):
                comparison = (await replay(engine, store, cold, chat_id="test")).comparison
                assert (comparison.verdict, comparison.level) == (Verdict.IDENTICAL, "logprobs")
                assert not comparison.engine_restarted
        log = (tmp_path / "llm.log").read_text()
    assert "overridden" not in log
    assert MARK not in log
    with started(tmp_path, "strict", ENCORE_MODEL=model) as (url, manifest):
        async with EngineClient(url, manifest_file=manifest) as engine:
            comparison = (await replay(engine, store, cold, chat_id="test")).comparison
    assert (comparison.verdict, comparison.engine_changes) == (Verdict.IDENTICAL, ())
    assert "The engine was restarted between the two runs." in notes(comparison)
