"""The routes beside the chat, on a store filled through the real record and replay."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI
from scripted_engine import Reply, Script

from llm_backend.config import Settings
from llm_backend.exported import parse_receipt
from llm_backend.receipt import Message, Sampling
from llm_backend.record import build_request, record
from llm_backend.replay import ReplayResult, replay
from llm_backend.run import Run
from llm_backend.ui.backend import Backend, running_backend
from llm_backend.ui.http import LARGEST_WINDOW, add_routes


@pytest.fixture
async def backend(scripted_url: str, tmp_path: Path) -> AsyncIterator[Backend]:
    settings = Settings(engine_urls=(scripted_url,), data_dir=tmp_path, run_dir=tmp_path)
    async with running_backend(settings) as backend:
        yield backend


@pytest.fixture
async def client(backend: Backend) -> AsyncIterator[httpx.AsyncClient]:
    app = FastAPI()
    add_routes(app)
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://encore") as client:
        yield client


@pytest.fixture
async def run(backend: Backend) -> Run:
    sampling = Sampling(seed=2**63 - 1)
    request = build_request("scripted", [Message(role="user", content="235 × 478?")], sampling)
    recording = record(backend.engine, backend.store, request, chat_id="chat")
    async with recording:
        async for _ in recording:
            pass
    assert recording.run is not None
    return recording.run


@pytest.fixture
async def fork(backend: Backend, run: Run, engine_script: Script) -> ReplayResult:
    engine_script.enqueue(Reply(fork_at=60))
    return await replay(backend.engine, backend.store, run, chat_id="chat")


class TestReceipts:
    async def test_are_served_by_digest_and_by_prefix(self, client: httpx.AsyncClient, run: Run) -> None:
        assert run.digest is not None
        short = run.digest.removeprefix("sha256:")[:10]
        for name in (run.digest, short):
            receipt = parse_receipt((await client.get(f"/receipts/{name}")).content)
            assert receipt.digest == run.digest

    async def test_download_names_a_file(self, client: httpx.AsyncClient, run: Run) -> None:
        assert run.digest is not None
        plain = await client.get(f"/receipts/{run.digest}")
        file = await client.get(f"/receipts/{run.digest}", params={"download": 1})
        assert "content-disposition" not in plain.headers
        assert file.headers["content-disposition"].startswith('attachment; filename="encore-')
        assert file.content == plain.content

    @pytest.mark.parametrize("name", ["ffffffff", "zz", "sha256:" + "0" * 64])
    async def test_one_that_is_not_there_is_one_sentence(self, client: httpx.AsyncClient, name: str) -> None:
        response = await client.get(f"/receipts/{name}")
        assert response.status_code == 404
        assert response.json()["detail"].endswith(".")

    async def test_tokens_come_in_windows(self, client: httpx.AsyncClient, run: Run) -> None:
        path = f"/receipts/{run.digest}/tokens"
        window = (await client.get(path, params={"start": 10, "stop": 13})).json()
        assert [token["position"] for token in window] == [10, 11, 12]
        whole = (await client.get(path)).json()
        assert len(whole) == run.completion_tokens
        assert len(whole) <= LARGEST_WINDOW
        assert whole[10:13] == window
        assert "".join(token["text"] for token in whole).endswith("\\boxed{112330}\\).")


class TestRuns:
    async def test_a_run_tells_settings_as_sent_and_effective(
        self, client: httpx.AsyncClient, run: Run
    ) -> None:
        view = (await client.get(f"/runs/{run.id}")).json()
        assert view["seed"] == "9223372036854775807"
        seed = next(setting for setting in view["settings"] if setting["key"] == "seed")
        assert seed == {
            "key": "seed",
            "label": "seed",
            "sent": "9223372036854775807",
            "effective": "none",
            "changed": True,
        }
        assert {fact["key"] for fact in view["facts"]} >= {"prompt_tokens", "completion_tokens", "end"}
        assert view["engine"]["model"] == "scripted"
        assert view["engine"]["profile_rows"] == [], "an engine Encore did not start has no profile"

    async def test_a_list_is_of_one_chat_or_of_all(self, client: httpx.AsyncClient, run: Run) -> None:
        assert [item["id"] for item in (await client.get("/runs", params={"chat": "chat"})).json()] == [
            run.id
        ]
        assert (await client.get("/runs", params={"chat": "other"})).json() == []
        assert [item["id"] for item in (await client.get("/runs")).json()] == [run.id]

    async def test_the_line_carries_the_latest_verdict(
        self, client: httpx.AsyncClient, run: Run, fork: ReplayResult
    ) -> None:
        line = (await client.get(f"/runs/{run.id}/line")).json()
        assert line["summary"].startswith("seed 9223372036854775807 · greedy · 118 tokens")
        assert line["replay"]["verdict"] == "DIVERGED"
        candidate = (await client.get(f"/runs/{fork.run.id}/line")).json()
        assert candidate["replay"] is None, "the replay itself has not been replayed"


class TestComparisons:
    async def test_shows_the_fork_and_a_window(self, client: httpx.AsyncClient, fork: ReplayResult) -> None:
        view = (await client.get(f"/comparisons/{fork.comparison_id}")).json()
        assert view["title"] == "Different from token 60 on"
        assert view["window"]["fork"] == 60
        assert view["window"]["folded"] == 36
        assert view["margin"] == pytest.approx(0.05)
        assert view["reason"]

    async def test_speaks_the_reader_s_language(self, client: httpx.AsyncClient, fork: ReplayResult) -> None:
        chinese = {"accept-language": "zh-CN,zh;q=0.9"}
        path = f"/comparisons/{fork.comparison_id}"
        english = (await client.get(path)).json()["title"]
        assert (await client.get(path, headers=chinese)).json()["title"] == "从第 60 个词元起不同"
        assert (await client.get(path)).json()["title"] == english

    async def test_one_that_is_not_there_is_404(self, client: httpx.AsyncClient) -> None:
        assert (await client.get("/comparisons/none")).status_code == 404


class TestHealth:
    async def test_tells_the_engine_apart_from_the_app(
        self, client: httpx.AsyncClient, engine_script: Script, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("llm_backend.ui.engine_watch.MAX_AGE_S", 0.0)
        assert (await client.get("/healthz")).json()["engine"]["kind"] == "ready"
        engine_script.health = 503
        health = (await client.get("/healthz")).json()
        assert health["app"] == "ok"
        assert health["engine"]["kind"] != "ready"
        assert (await client.get("/status")).json()["sentence"]

    async def test_the_embedded_model_carries_its_warning(
        self, client: httpx.AsyncClient, engine_script: Script
    ) -> None:
        assert (await client.get("/status")).json()["note"] == ""
        engine_script.model = "SmolLM2-135M-Instruct"
        assert "135M" in (await client.get("/status")).json()["note"]


class TestElements:
    async def test_the_panel_exists_under_both_titles(self, client: httpx.AsyncClient) -> None:
        english = await client.get("/public/elements/Reproducibility.jsx")
        assert english.text.count("export default") == 1
        assert (await client.get("/public/elements/可复现性.jsx")).text == english.text

    async def test_other_elements_are_files_in_their_folder_only(self, client: httpx.AsyncClient) -> None:
        assert (await client.get("/public/elements/RunLine.jsx")).status_code == 200
        for name in ("..%2F..%2Fapp", "nothing"):
            assert (await client.get(f"/public/elements/{name}.jsx")).status_code == 404

    async def test_every_label_the_panel_uses_exists(self, client: httpx.AsyncClient) -> None:
        strings = (await client.get("/strings")).json()
        source = (await client.get("/public/elements/Reproducibility.jsx")).text
        used = set(re.findall(r"\bt\('([\w.]+)'", source))
        assert used
        assert {f"panel.{key}" for key in used} <= strings.keys()
