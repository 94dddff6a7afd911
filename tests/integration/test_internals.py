"""What `encore logits` and `encore attention` refuse before any model is loaded, and how scripts end."""

from __future__ import annotations

import asyncio
import os
import shlex
import sys
from pathlib import Path

import pytest
from sample_receipts import receipt, token

from llm_backend.config import Settings
from llm_backend.engine.offline import run_offline
from llm_backend.errors import EncoreError, LaunchError
from llm_backend.internals import LONGEST_ATTENTION, look_at_attention, look_at_logits
from llm_backend.receipt import Receipt

FAKE = Path(__file__).parents[1] / "fakes" / "engine_python"


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    (tmp_path / "small").mkdir()
    (tmp_path / "small" / "config.json").write_text('{"vocab_size": 8}')
    (tmp_path / "small" / "model.safetensors").write_bytes(b"")
    return Settings(
        engine="cpu",
        engine_python=FAKE,
        model=str(tmp_path / "small"),
        run_dir=tmp_path / "run",
        data_dir=tmp_path / "data",
    )


def long(recorded: Receipt) -> Receipt:
    tokens = tuple(token(7) for _ in range(LONGEST_ATTENTION))
    return recorded.model_copy(
        update={"completion": recorded.completion.model_copy(update={"tokens": tokens})}
    )


def without_prompt(recorded: Receipt) -> Receipt:
    return recorded.model_copy(
        update={"request": recorded.request.model_copy(update={"prompt_token_ids": ()})}
    )


@pytest.mark.parametrize("look", [look_at_logits, look_at_attention])
class TestRefusals:
    async def refusal(self, look, settings: Settings, recorded: Receipt, **files: Path) -> str:
        given = {"save": None, "against": None} | files
        with pytest.raises(EncoreError) as caught:
            await look(settings, recorded, last=4, on_stage=lambda *_: None, **given)
        return caught.value.diagnostics()

    async def test_a_receipt_without_prompt_ids(self, look, settings) -> None:
        said = await self.refusal(look, settings, without_prompt(receipt([1, 2])))
        assert "no token ids of the prompt" in said

    async def test_another_model(self, look, settings) -> None:
        said = await self.refusal(look, settings, receipt([1, 2]))
        assert said == (
            "The receipt was recorded with microsoft/Phi-4-mini-reasoning; the configured model is small. "
            "Set ENCORE_MODEL to the recorded model."
        )

    async def test_saving_over_a_file(self, look, settings, tmp_path) -> None:
        (tmp_path / "there").write_text("mine")
        said = await self.refusal(look, settings, receipt([1, 2]), save=tmp_path / "there")
        assert said.endswith("there exists already. Choose another name.")
        assert (tmp_path / "there").read_text() == "mine"

    async def test_comparing_with_no_file(self, look, settings, tmp_path) -> None:
        said = await self.refusal(look, settings, receipt([1, 2]), against=tmp_path / "gone")
        assert "There is no file" in said


async def test_attention_of_a_long_answer_is_refused_before_anything_starts(settings: Settings) -> None:
    with pytest.raises(EncoreError, match="up to 4,096"):
        await look_at_attention(
            settings, long(receipt([1])), last=4, save=None, against=None, on_stage=lambda *_: None
        )


class TestTheRunner:
    """With interpreters of a few lines: what the app sees of a script that misbehaves."""

    def interpreter(self, tmp_path: Path, body: str) -> Path:
        script = tmp_path / "script.py"
        script.write_text(f"import json, os, sys, time\n{body}\n")
        file = tmp_path / "interpreter"
        # Not the interpreter's own path after #!, which must not hold a space.
        file.write_text(f"#!/bin/sh\nexec {shlex.quote(sys.executable)} {shlex.quote(str(script))}\n")
        file.chmod(0o755)
        return file

    async def run(self, tmp_path: Path, body: str, stages: list[str] | None = None) -> dict[str, object]:
        seen = [] if stages is None else stages
        return await run_offline(
            "logits",
            {"last": 1},
            interpreter=self.interpreter(tmp_path, body),
            environ=os.environ,
            log=tmp_path / "run" / "logits.log",
            on_stage=lambda stage, done, total: seen.append(f"{stage} {done}/{total}"),
        )

    async def test_stages_then_the_result(self, tmp_path) -> None:
        stages: list[str] = []
        body = (
            'print(json.dumps({"stage": "load", "done": 0, "total": 1}), flush=True)\n'
            'print(json.dumps({"result": json.load(sys.stdin)}))'
        )
        assert await self.run(tmp_path, body, stages) == {"last": 1}
        assert stages == ["load 0/1"]

    async def test_a_script_that_dies_is_quoted_with_its_last_line(self, tmp_path) -> None:
        with pytest.raises(LaunchError, match="ended with code 3: no memory") as caught:
            await self.run(tmp_path, 'print("no memory", file=sys.stderr); sys.exit(3)')
        assert "logits.log" in caught.value.advice

    async def test_a_refusal_is_its_own_sentence(self, tmp_path) -> None:
        with pytest.raises(LaunchError, match=r"^It is not a file of tensors\.$"):
            await self.run(tmp_path, 'print(json.dumps({"refused": "It is not a file of tensors."}))')

    async def test_cancelling_ends_the_script_and_what_it_started(self, tmp_path) -> None:
        body = (
            "child = os.fork()\n"
            'if child: print(json.dumps({"stage": str(child), "done": 0, "total": 1}), flush=True)\n'
            "time.sleep(600)"
        )
        started = asyncio.Event()
        children: list[int] = []

        async def work() -> None:
            await run_offline(
                "attention",
                {},
                interpreter=self.interpreter(tmp_path, body),
                environ=os.environ,
                log=tmp_path / "attention.log",
                on_stage=lambda stage, *_: (children.append(int(stage)), started.set()),
            )

        task = asyncio.create_task(work())
        async with asyncio.timeout(30):
            await started.wait()
            task.cancel()
            await asyncio.wait({task})
            while running(children[0]):
                await asyncio.sleep(0.01)
        assert task.cancelled()


def running(pid: int) -> bool:
    """Not a zombie that its new parent has yet to collect."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] != "Z"
    except FileNotFoundError:
        return False
