"""Several engines: who is asked, who is left out, who comes back. Scripted engines with launch manifests."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import chainlit as cl
import httpx
import pytest
from fastapi import FastAPI
from sample_receipts import ENGINE
from scripted_engine import Reply, Script, ScriptedEngine, serving
from ui_chat import Chat, chat_session

from llm_backend import engine_pool
from llm_backend.access import open_engines
from llm_backend.config import Settings, load_settings
from llm_backend.engine.manifest import Manifest, write_manifest
from llm_backend.engine_pool import EnginePool, same_class
from llm_backend.errors import EncoreError, EngineInterrupted, SettingsError
from llm_backend.ui import handlers
from llm_backend.ui.backend import Backend, running_backend
from llm_backend.ui.http import add_routes


class Replicas:
    """Three engines: two of one class, and one on another card."""

    def __init__(self, folder: Path) -> None:
        self.scripts = [Script(), Script(), Script()]
        self.folder = folder
        self._running = [ExitStack() for _ in self.scripts]
        self.urls = [self._start(number) for number in range(3)]
        for number, device in enumerate(("NVIDIA H200", "NVIDIA H200", "NVIDIA A100")):
            self.describe(number, device_names=(device,))

    def _start(self, number: int) -> str:
        return self._running[number].enter_context(serving(ScriptedEngine(self.scripts[number])))

    def describe(self, number: int, **facts: Any) -> None:
        """Write the launch manifest of an engine, as its own machine would: its own address in it."""
        told = ENGINE.model_copy(
            update={"device": "cuda", "vllm_version": self.scripts[number].version, **facts}
        )
        manifest = Manifest(
            url="http://127.0.0.1:8100",
            pid=None,
            start_id=uuid.uuid4().hex,
            started_at=datetime.now(UTC),
            log_file="llm.log",
            fingerprint=told,
        )
        write_manifest(self.manifest(number), manifest)

    def manifest(self, number: int) -> Path:
        return self.folder / f"manifest-{number}.json"

    def settings(self) -> Settings:
        return Settings(
            engine_urls=tuple(self.urls),
            engine_manifests=tuple(str(self.manifest(number)) for number in range(3)),
            data_dir=self.folder,
            run_dir=self.folder,
        )

    def close(self) -> None:
        for running in self._running:
            running.close()


@pytest.fixture
def replicas(tmp_path: Path) -> Any:
    made = Replicas(tmp_path)
    yield made
    made.close()


@pytest.fixture(autouse=True)
def _always_fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_pool, "MAX_AGE_S", 0.0)


@pytest.fixture
async def pool(replicas: Replicas) -> AsyncIterator[EnginePool]:
    async with open_engines(replicas.settings()) as pool:
        yield pool


async def chosen(pool: EnginePool) -> int:
    await pool.look()
    url = pool.choose().url
    return [member.client.url for member in pool.members].index(url) + 1


async def test_each_engine_has_its_own_fingerprint_and_health(pool: EnginePool, replicas: Replicas) -> None:
    replicas.scripts[1].health = 503
    members = await pool.look()
    assert [member.ready for member in members] == [True, False, True]
    assert [member.identity and member.identity.device_names for member in members] == [
        ("NVIDIA H200",),
        None,
        ("NVIDIA A100",),
    ]


async def test_the_least_loaded_of_the_class_is_chosen(pool: EnginePool, replicas: Replicas) -> None:
    """The idle engine on another card is never chosen for a question."""
    replicas.scripts[0].running, replicas.scripts[1].running = 5, 2
    assert await chosen(pool) == 2
    replicas.scripts[0].running = 1
    assert await chosen(pool) == 1


async def test_requests_of_this_process_count_before_metrics_do(pool: EnginePool) -> None:
    with pool.using((await pool.look())[0].client):
        assert await chosen(pool) == 2
    assert await chosen(pool) == 1


async def test_a_failed_engine_is_left_out_and_comes_back(pool: EnginePool, replicas: Replicas) -> None:
    replicas.scripts[0].health = 500
    assert await chosen(pool) == 2
    replicas.scripts[0].health = 200
    assert await chosen(pool) == 1


async def test_a_silent_engine_holds_nobody_up(
    pool: EnginePool, replicas: Replicas, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_pool, "LOOK_S", 0.2)

    async def silent() -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(pool.members[0].client, "state", silent)
    assert await chosen(pool) == 2
    assert pool.members[0].state.detail == "silent for 0 s"


async def test_another_class_serves_only_when_the_first_is_gone(pool: EnginePool, replicas: Replicas) -> None:
    replicas.scripts[0].health = replicas.scripts[1].health = 500
    assert await chosen(pool) == 3
    replicas.scripts[1].health = 200
    assert await chosen(pool) == 2


def test_what_no_bit_depends_on_makes_no_other_class() -> None:
    cuda = ENGINE.model_copy(update={"device": "cuda", "profile": "strict"})
    assert same_class(cuda, cuda.model_copy(update={"profile": "other name"}))
    assert not same_class(cuda, cuda.model_copy(update={"dtype": "float16"}))
    untold = cuda.model_copy(update={"device": None})
    assert not same_class(untold, untold), "nothing is known of what they compute on"


async def test_without_any_engine_the_first_one_says_what_is_wrong(
    pool: EnginePool, replicas: Replicas
) -> None:
    for script in replicas.scripts:
        script.health = 500
    assert (await pool.state()).kind == "loading"
    assert await chosen(pool) == 1


@pytest.mark.parametrize("number", [0, 4, -1, True, "1", None, 1.0])
async def test_an_engine_that_is_not_there(pool: EnginePool, number: object) -> None:
    with pytest.raises(EncoreError, match="There is no engine"):
        pool.numbered(number)


def test_more_manifests_than_engines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENCORE_ENGINE_URLS", "http://a:1")
    monkeypatch.setenv("ENCORE_ENGINE_MANIFESTS", "a.json,b.json")
    with pytest.raises(SettingsError, match="2 manifests for 1 engines"):
        load_settings()


class TestInTheChat:
    @pytest.fixture
    async def backend(self, replicas: Replicas) -> AsyncIterator[Backend]:
        async with running_backend(replicas.settings()) as backend:
            yield backend

    @pytest.fixture
    async def client(self, backend: Backend) -> AsyncIterator[httpx.AsyncClient]:
        app = FastAPI()
        add_routes(app)
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://e") as client:
            yield client

    @pytest.fixture
    async def chat(self, backend: Backend) -> AsyncIterator[Chat]:
        with chat_session() as chat:
            yield chat

    async def ask(self, chat: Chat) -> str:
        await handlers.start_chat()
        await handlers.ask_message(cl.Message(content="235 × 478?"))
        return str(chat.news("run")[-1]["run"])

    async def replay(self, chat: Chat, run_id: str, engine: object = None) -> dict[str, Any]:
        before = len(chat.news("ended"))
        await handlers.replay_run(run_id, engine)
        async with asyncio.timeout(20):
            while len(chat.news("ended")) == before or len(chat.of("task_end")) < len(chat.of("task_start")):
                await asyncio.sleep(0.01)
        return dict(chat.news("ended")[-1])

    async def test_cross_engine_replay_shows_the_engines_differences_beside_the_verdict(
        self, backend: Backend, client: httpx.AsyncClient, chat: Chat, replicas: Replicas
    ) -> None:
        run_id = await self.ask(chat)
        assert (await backend.store.run(run_id)).engine_url == replicas.urls[0]
        replicas.scripts[2].enqueue(Reply(fork_at=20))
        told = await self.replay(chat, run_id, 3)
        view = (await client.get(f"/comparisons/{told['comparison']}")).json()
        assert view["verdict"] == "DIVERGED"
        (change,) = view["changes"]
        assert (change["reference"], change["candidate"]) == ("NVIDIA H200", "NVIDIA A100")
        stored = await backend.store.comparison(told["comparison"])
        candidate = await backend.store.run(stored.candidate_run_id)
        assert candidate.engine_url == replicas.urls[2]
        assert (await client.get(f"/runs/{candidate.id}")).json()["engine_number"] == 3

    async def test_a_replay_goes_where_the_run_was_served(
        self, backend: Backend, chat: Chat, replicas: Replicas
    ) -> None:
        run_id = await self.ask(chat)
        replicas.scripts[0].running = 9
        told = await self.replay(chat, run_id)
        stored = await backend.store.comparison(told["comparison"])
        assert (await backend.store.run(stored.candidate_run_id)).engine_url == replicas.urls[0]

    async def test_an_engine_that_breaks_off_is_not_asked_again(
        self, backend: Backend, chat: Chat, replicas: Replicas
    ) -> None:
        replicas.scripts[0].enqueue(Reply(ending="close", ending_after=5))
        run_id = await self.ask(chat)
        assert (await backend.store.run(run_id)).status == "interrupted"
        replicas.scripts[0].health = 500
        assert (await backend.store.run(await self.ask(chat))).engine_url == replicas.urls[1]

    async def test_the_panels_choice(self, client: httpx.AsyncClient, replicas: Replicas) -> None:
        replicas.scripts[1].health = 500
        english = (await client.get("/engines")).json()
        assert [(one["number"], one["ready"], one["same_class"]) for one in english] == [
            (1, True, True),
            (2, False, False),
            (3, True, False),
        ]
        assert english[2]["name"].startswith("Engine 3 · NVIDIA A100 · vLLM ")
        assert "127.0.0.1" not in (await client.get("/engines")).text, "addresses stay on the server"
        chinese = (await client.get("/engines", headers={"Accept-Language": "zh-CN"})).json()
        assert chinese[2]["state"] == "可用；配置不同，只用于重放"
        health = (await client.get("/healthz")).json()
        assert health["engines"] == {"configured": 3, "ready": 2}

    async def test_an_engine_nobody_configured_is_one_sentence(
        self, backend: Backend, chat: Chat, replicas: Replicas
    ) -> None:
        run_id = await self.ask(chat)
        await handlers.replay_run(run_id, 7)
        async with asyncio.timeout(20):
            while not chat.problems():
                await asyncio.sleep(0.01)
        assert "no engine 7" in chat.problems()[-1]


async def test_interruptions_make_the_next_look_fresh(
    pool: EnginePool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_pool, "MAX_AGE_S", 3600.0)
    before = await pool.look()
    with pytest.raises(EngineInterrupted), pool.using(before[0].client):
        raise EngineInterrupted(5, "the connection broke")
    assert await pool.look() is not before
