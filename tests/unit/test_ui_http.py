"""The routes beside the chat, on a store filled through the real record and replay."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from prometheus_client.parser import text_string_to_metric_families
from scripted_engine import Reply, Script

from llm_backend.access import open_calibrations
from llm_backend.check import check
from llm_backend.config import Settings
from llm_backend.errors import EngineInterrupted
from llm_backend.exported import parse_receipt
from llm_backend.receipt import Message, Sampling
from llm_backend.record import build_request, record
from llm_backend.repeat import Repetition
from llm_backend.replay import ReplayResult, replay
from llm_backend.run import Run
from llm_backend.ui.backend import Backend, running_backend
from llm_backend.ui.health import PROOF_S
from llm_backend.ui.http import LARGEST_WINDOW, add_routes
from llm_backend.ui.metrics import count_comparison, count_run


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
        assert [outcome["verdict"] for outcome in line["outcomes"]] == ["DIVERGED"]
        candidate = (await client.get(f"/runs/{fork.run.id}/line")).json()
        assert candidate["outcomes"] == [], "the replay itself has not been replayed"

    async def test_invalid_model_output_is_warned_of_in_the_line_and_the_panel(
        self, client: httpx.AsyncClient, backend: Backend, engine_script: Script, run: Run
    ) -> None:
        """RC-12: visible in both languages; an ordinary run has no warning."""
        engine_script.enqueue(Reply(logprobs="null_rows"))
        request = build_request("scripted", [Message(role="user", content="x")], Sampling())
        recording = record(backend.engine, backend.store, request, chat_id="chat")
        async with recording:
            async for _ in recording:
                pass
        assert recording.run is not None
        for path in (f"/runs/{recording.run.id}", f"/runs/{recording.run.id}/line"):
            warning = (await client.get(path)).json()["warning"]
            assert warning.startswith("Model output invalid: at 24 positions")
            chinese = (await client.get(path, headers={"Accept-Language": "zh-CN"})).json()["warning"]
            assert chinese.startswith("模型输出无效：有 24 处")
        assert (await client.get(f"/runs/{run.id}/line")).json()["warning"] == ""

    async def test_a_list_leaves_replays_out_when_asked(
        self, client: httpx.AsyncClient, run: Run, fork: ReplayResult
    ) -> None:
        asked = (await client.get("/runs", params={"replays": False})).json()
        assert [item["id"] for item in asked] == [run.id]
        assert len((await client.get("/runs")).json()) == 2

    async def test_cached_prompt_tokens_are_among_the_facts(
        self, client: httpx.AsyncClient, backend: Backend, engine_script: Script, run: Run
    ) -> None:
        async def cached(run_id: str) -> str:
            facts = (await client.get(f"/runs/{run_id}")).json()["facts"]
            return str(next(fact["value"] for fact in facts if fact["key"] == "cached_prompt_tokens"))

        assert await cached(run.id) == "n/a", "the scripted engine does not tell"
        receipt = await backend.store.receipt_of(run.id)
        completion = receipt.completion.model_copy(update={"cached_prompt_tokens": 0})
        told = await backend.store.add_receipt(receipt.model_copy(update={"completion": completion}))
        assert await cached(told.id) == "0", "none is not unknown"


class TestOutcomes:
    """What replays, repetitions and checks came to, in the panel and under the answer."""

    @pytest.fixture
    async def repeated(self, backend: Backend, run: Run, fork: ReplayResult, engine_script: Script) -> Run:
        engine_script.enqueue(Reply(), Reply(fork_at=60), Reply())
        await Repetition(backend.engine, backend.store, run, times=3, chat_id="chat").run()
        return run

    async def test_a_repetition_tells_its_replays_and_lists_them_once(
        self, client: httpx.AsyncClient, fork: ReplayResult, repeated: Run
    ) -> None:
        view = (await client.get(f"/runs/{repeated.id}")).json()
        repetition, single = view["outcomes"]
        assert (repetition["kind"], single["kind"], single["id"]) == ("repeat", "replay", fork.comparison_id)
        (step,) = repetition["steps"]
        assert step["title"] == "2 of 3 came out the same alone"
        assert step["detail"] == "so at least 20 % (Wilson 95 %)"
        assert step["verdict"] == "DIVERGED"
        assert [replay["verdict"] for replay in step["replays"]] == ["IDENTICAL", "DIVERGED", "IDENTICAL"]
        assert view["telling_replay"] == step["replays"][1]["id"], "the fork, not the newest replay"
        assert [line["depth"] for line in step["lines"]][-2:] == [1, 1], "the fork tree"
        assert "token 60" in step["lines"][-1]["text"]
        assert repetition["note"].startswith("Measured for this request")

    async def test_the_line_tells_the_repetition_and_not_its_last_replay(
        self, client: httpx.AsyncClient, repeated: Run
    ) -> None:
        line = (await client.get(f"/runs/{repeated.id}/line")).json()
        (outcome,) = line["outcomes"]
        assert outcome["title"] == "2 of 3 came out the same alone"
        assert "First fork at token 60; 2 different answers in 4 runs" in outcome["reason"]

    async def test_a_replay_after_a_repetition_has_its_own_line_on_top(
        self, client: httpx.AsyncClient, backend: Backend, repeated: Run
    ) -> None:
        await replay(backend.engine, backend.store, repeated, chat_id="chat")
        line = (await client.get(f"/runs/{repeated.id}/line")).json()
        assert [outcome["kind"] for outcome in line["outcomes"]] == ["replay", "repeat"]

    async def test_a_repetition_cut_short_says_so(
        self, client: httpx.AsyncClient, backend: Backend, run: Run, engine_script: Script
    ) -> None:
        engine_script.enqueue(Reply(), Reply(ending="close", ending_after=10))
        with pytest.raises(EngineInterrupted):
            await Repetition(backend.engine, backend.store, run, times=4, chat_id="chat").run()
        (outcome,) = (await client.get(f"/runs/{run.id}/line")).json()["outcomes"]
        assert outcome["title"] == "1 of 1 came out the same alone"
        assert outcome["reason"].startswith("Stopped after 1 of 4 replays")
        (whole,) = (await client.get(f"/runs/{run.id}")).json()["outcomes"]
        assert whole["note"].startswith("Stopped after 1 of 4 replays")

    @pytest.mark.parametrize(("language", "title"), [("en", "Check: Bit-exact"), ("zh-CN", "检验：逐位相等")])
    async def test_a_check_survives_a_reload_in_the_reader_s_language(
        self, client: httpx.AsyncClient, backend: Backend, run: Run, language: str, title: str
    ) -> None:
        receipt = await backend.store.receipt_of(run.id)
        found = await check(backend.engine, receipt, open_calibrations(backend.settings))
        await backend.store.add_finding(run.id, found)
        (outcome,) = (await client.get(f"/runs/{run.id}", headers={"accept-language": language})).json()[
            "outcomes"
        ]
        assert (outcome["kind"], outcome["check_verdict"], outcome["title"]) == ("check", "BIT_EXACT", title)
        assert outcome["sentences"]


class TestComparisons:
    async def test_shows_the_fork_and_a_window(self, client: httpx.AsyncClient, fork: ReplayResult) -> None:
        view = (await client.get(f"/comparisons/{fork.comparison_id}")).json()
        assert view["title"] == "Different from token 60 on"
        assert view["window"]["fork"] == 60
        assert view["window"]["folded"] == 36
        assert view["margin"] == pytest.approx(0.05)
        assert "The fork is at token 60." in view["strip_summary"]
        assert any("Total variation at the fork" in sentence for sentence in view["distributions"])
        assert view["reason"]

    async def test_speaks_the_reader_s_language(self, client: httpx.AsyncClient, fork: ReplayResult) -> None:
        chinese = {"accept-language": "zh-CN,zh;q=0.9"}
        path = f"/comparisons/{fork.comparison_id}"
        english = (await client.get(path)).json()["title"]
        assert (await client.get(path, headers=chinese)).json()["title"] == "从第 60 个词元起不同"
        assert (await client.get(path)).json()["title"] == english

    async def test_one_that_is_not_there_is_404(self, client: httpx.AsyncClient) -> None:
        assert (await client.get("/comparisons/none")).status_code == 404


class TestProof:
    async def proof(self, client: httpx.AsyncClient, run: Run) -> dict[str, Any]:
        found: dict[str, Any] = (await client.get(f"/runs/{run.id}/proof")).json()
        return found

    async def test_grows_with_replays_and_ends_with_a_difference(
        self, client: httpx.AsyncClient, backend: Backend, run: Run, engine_script: Script
    ) -> None:
        assert (await self.proof(client, run))["state"] == "none"
        await replay(backend.engine, backend.store, run, chat_id="chat")
        found = await self.proof(client, run)
        assert (found["state"], found["grey"], found["engine"]) == ("so_far", False, "same")
        assert "1 of 1" in found["sentence"]
        assert found["caveat"]
        engine_script.enqueue(Reply(fork_at=9))
        await replay(backend.engine, backend.store, run, chat_id="chat")
        assert (await self.proof(client, run))["short"] == "not proven: 1 of 2 differed"

    async def test_turns_grey_when_another_engine_runs(
        self, client: httpx.AsyncClient, backend: Backend, run: Run, engine_script: Script
    ) -> None:
        """RC-08: what differs is said before anything is replayed."""
        await replay(backend.engine, backend.store, run, chat_id="chat")
        engine_script.version = "9.9.9"
        found = await self.proof(client, run)
        assert found["grey"]
        assert found["engine_sentence"] == "This engine is not the one running now: vLLM version changed."
        assert [(c["reference"], c["candidate"]) for c in found["changes"]] == [("0.0.0-scripted", "9.9.9")]
        assert "1 of 1" in found["sentence"], "what was measured stays true"

    async def test_says_when_no_engine_answers(
        self, client: httpx.AsyncClient, run: Run, engine_script: Script
    ) -> None:
        engine_script.health = 503
        found = await self.proof(client, run)
        assert (found["engine"], found["grey"]) == ("away", False)

    async def test_speaks_chinese(self, client: httpx.AsyncClient, run: Run) -> None:
        response = await client.get(f"/runs/{run.id}/proof", headers={"accept-language": "zh-CN"})
        assert response.json()["short"] == "尚未验证"


class TestHealth:
    async def test_tells_the_engine_apart_from_the_app(
        self, client: httpx.AsyncClient, engine_script: Script, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("llm_backend.ui.engine_watch.MAX_AGE_S", 0.0)
        assert (await client.get("/healthz")).json()["engine"]["kind"] == "ready"
        engine_script.health = 503
        answer = await client.get("/healthz")
        assert answer.status_code == 503
        health = answer.json()
        assert (health["app"], health["ready"]) == ("ok", False)
        assert health["problem"]
        assert health["engine"]["kind"] != "ready"
        assert (await client.get("/status")).json()["sentence"]

    async def test_an_engine_that_listens_and_generates_nothing_is_not_ready(
        self, client: httpx.AsyncClient, engine_script: Script
    ) -> None:
        engine_script.enqueue(Reply(status=500, error="CUDA error: device-side assert triggered"))
        answer = await client.get("/healthz", headers={"accept-language": "en"})
        assert answer.status_code == 503
        assert answer.json()["engine"]["kind"] == "ready", "its port and its /health say so"
        assert "generates nothing (HTTP 500)" in answer.json()["problem"]

    async def test_many_checks_are_one_request_and_an_answer_makes_even_that_one_needless(
        self, client: httpx.AsyncClient, backend: Backend, engine_script: Script
    ) -> None:
        answers = await asyncio.gather(*(client.get("/healthz") for _ in range(20)))
        assert [answer.status_code for answer in answers] == [200] * 20
        assert len(engine_script.bodies) == 1
        backend.engine.generated_at = time.monotonic() - PROOF_S
        backend.health._tried_at = float("-inf")
        await client.get("/healthz")
        assert len(engine_script.bodies) == 2
        backend.health._tried_at = float("-inf")
        assert (await client.get("/healthz")).status_code == 200
        assert len(engine_script.bodies) == 2, "a token has just been generated"

    async def test_a_failed_trial_is_not_repeated_by_every_check(
        self, client: httpx.AsyncClient, engine_script: Script
    ) -> None:
        engine_script.default = Reply(status=500)
        for _ in range(5):
            assert (await client.get("/healthz")).status_code == 503
        assert len(engine_script.bodies) == 1

    async def test_a_stuck_engine_is_told_in_bounded_time(
        self, client: httpx.AsyncClient, engine_script: Script, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("llm_backend.ui.health.WAIT_S", 0.2)
        engine_script.default = Reply(text="word " * 100, tokens_per_second=1)
        answer = await asyncio.wait_for(
            client.get("/healthz", headers={"accept-language": "zh-CN"}), timeout=5
        )
        assert answer.status_code == 503
        assert "卡住" in answer.json()["problem"]

    async def test_a_process_that_is_ending_is_taken_out_of_service(
        self, client: httpx.AsyncClient, backend: Backend
    ) -> None:
        await backend.drain(0)
        answer = await client.get("/healthz")
        assert (answer.status_code, answer.json()["app"]) == (503, "stopping")

    async def test_the_embedded_model_carries_its_warning(
        self, client: httpx.AsyncClient, engine_script: Script
    ) -> None:
        assert (await client.get("/status")).json()["note"] == ""
        engine_script.model = "SmolLM2-135M-Instruct"
        assert "135M" in (await client.get("/status")).json()["note"]


class TestMetrics:
    async def test_tell_runs_verdicts_speed_queue_and_engine(
        self, client: httpx.AsyncClient, fork: ReplayResult, engine_script: Script
    ) -> None:
        count_run(fork.run)
        count_comparison(fork.comparison, fork.run)
        engine_script.running, engine_script.waiting = 2, 3
        page = (await client.get("/metrics")).text
        values = {
            (sample.name, *sample.labels.values()): sample.value
            for family in text_string_to_metric_families(page)
            for sample in family.samples
        }
        assert values["encore_runs_total", "replay", "complete"] >= 1
        assert values["encore_verdicts_total", "DIVERGED"] >= 1
        assert values["encore_time_to_first_token_seconds_count",] >= 1
        assert values["encore_tokens_per_second_count",] >= 1
        assert values["encore_engine_state", "ready"] == 1
        assert values["encore_engine_state", "dead"] == 0
        assert (values["encore_engine_running",], values["encore_engine_waiting",]) == (2, 3)
        labels = {label for _, *given in values for label in given}
        assert not any("235" in label for label in labels), "no label is ever a text"


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
