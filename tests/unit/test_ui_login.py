"""The login's rules: how often it may be tried, and that everybody finds their own runs only."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import chainlit as cl
import httpx
import pytest
from chainlit.auth.jwt import create_jwt
from fastapi import FastAPI, HTTPException
from scripted_engine import Reply, Script
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from ui_chat import Chat, chat_session

from llm_backend.config import Settings
from llm_backend.errors import SettingsError
from llm_backend.replay import replay
from llm_backend.store import Selection
from llm_backend.ui import handlers, login
from llm_backend.ui.attempts import MOST_BY_ADDRESS, MOST_BY_NAME, WINDOW_S, Attempts
from llm_backend.ui.backend import Backend, running_backend
from llm_backend.ui.guard import Guard
from llm_backend.ui.history import History
from llm_backend.ui.http import add_routes
from llm_backend.users import UserFile

PASSWORD = "eight squared is 64"


class TestAttempts:
    @pytest.fixture
    def attempts(self) -> Attempts:
        self.now = 0.0
        return Attempts(lambda: self.now)

    def test_a_name_may_be_tried_a_few_times_from_one_address(self, attempts: Attempts) -> None:
        assert [attempts.begin("a", "ada") for _ in range(MOST_BY_NAME + 1)] == [True] * MOST_BY_NAME + [
            False
        ]
        assert attempts.begin("a", "bob")
        assert attempts.begin("b", "ada"), "nobody locks another person out"
        self.now = WINDOW_S
        assert attempts.begin("a", "ada")

    def test_an_address_may_not_try_every_name(self, attempts: Attempts) -> None:
        tried = [attempts.begin("a", f"user{n}") for n in range(MOST_BY_ADDRESS + 1)]
        assert tried == [True] * MOST_BY_ADDRESS + [False]

    def test_a_class_logs_in_from_one_address(self, attempts: Attempts) -> None:
        for number in range(3 * MOST_BY_ADDRESS):
            assert attempts.begin("a", f"user{number}")
            attempts.succeed("a", f"user{number}")


@pytest.fixture
def users(tmp_path: Path) -> UserFile:
    users = UserFile(tmp_path / "users")
    users.put("ada", PASSWORD)
    users.put("bob", PASSWORD)
    return users


@pytest.fixture
async def backend(
    scripted_url: str, tmp_path: Path, users: UserFile, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Backend]:
    monkeypatch.setenv("CHAINLIT_AUTH_SECRET", "")
    settings = Settings(
        engine_urls=(scripted_url,), data_dir=tmp_path, run_dir=tmp_path, users_file=users.path
    )
    login.configure_login(settings)
    async with running_backend(settings) as backend:
        yield backend
    login.configure_login(Settings())


@pytest.fixture
async def client(backend: Backend) -> AsyncIterator[httpx.AsyncClient]:
    app = FastAPI()
    add_routes(app)
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://encore") as client:
        yield client


async def logged_in(name: str) -> cl.User:
    assert login._login is not None
    user = await login._login.log_in(name, PASSWORD)
    assert user is not None
    return user


async def cookie(name: str) -> dict[str, str]:
    return {"cookie": f"access_token={create_jwt(await logged_in(name))}"}


@pytest.fixture
async def chat(backend: Backend) -> AsyncIterator[Chat]:
    with chat_session() as chat:
        yield chat


async def ask_as(name: str) -> str:
    """Ask in this chat, which is `name`'s; returns the run's id."""
    cl.context.session.user = await logged_in(name)
    await handlers.start_chat()
    await handlers.ask_message(cl.Message(content="235 × 478?", type="user_message"))
    (run,) = await login.backend().store.runs(limit=1)
    return run.id


async def paths(backend: Backend, run_id: str) -> list[str]:
    """Everything there is about a run."""
    run = await backend.store.run(run_id)
    result = await replay(backend.engine, backend.store, run, chat_id=run.chat_id)
    wall = await backend.walls.of_run(backend, run_id, run.chat_id)
    assert run.digest is not None
    return [
        f"/runs/{run_id}",
        f"/runs/{run_id}/line",
        f"/runs/{run_id}/answer",
        f"/runs/{run_id}/proof",
        f"/runs/{run_id}/shares",
        f"/runs/{run_id}/file",
        f"/receipts/{run.digest}",
        f"/receipts/{run.digest}?download=1",
        f"/receipts/{run.digest.removeprefix('sha256:')[:12]}",
        f"/receipts/{run.digest}/tokens",
        f"/comparisons/{result.comparison_id}",
        f"/walls/{wall.id}",
        f"/walls/{wall.id}/news",
    ]


async def test_everything_about_a_run_is_for_its_owner_only(
    client: httpx.AsyncClient, backend: Backend, chat: Chat
) -> None:
    about = await paths(backend, await ask_as("ada"))
    ada, bob = await cookie("ada"), await cookie("bob")
    for path in about:
        assert (await client.get(path, headers=ada)).status_code == 200, path
        for headers, status in ((bob, 404), ({}, 401), ({"cookie": "access_token=none"}, 401)):
            answer = await client.get(path, headers=headers)
            assert answer.status_code == status, path
            assert "478" not in answer.text
    assert (await client.post(f"{about[-2]}/again", headers=bob)).status_code == 404
    for method in ("POST", "DELETE"):
        assert (await client.request(method, about[4], headers=bob)).status_code == 404
    assert len((await client.get("/runs", headers=ada)).json()) == 2
    chat_id = (await backend.store.runs(limit=1))[0].chat_id
    for listed in ("/runs", f"/runs?chat={chat_id}"):
        assert (await client.get(listed, headers=bob)).json() == []


async def test_a_link_opens_one_run_to_everybody_until_it_is_revoked(
    client: httpx.AsyncClient, backend: Backend, chat: Chat
) -> None:
    run_id = await ask_as("ada")
    ada, digest = await cookie("ada"), (await backend.store.run(run_id)).digest
    assert digest is not None
    shares = f"/runs/{run_id}/shares"
    first, second = [(await client.post(shares, headers=ada)).json()["path"] for _ in range(2)]
    assert first != second
    assert len(first.removeprefix("/shared/")) >= 32
    assert (await client.get(shares, headers=ada)).json() == {"links": 2}
    page = await client.get(first)
    assert "235 × 478?" in page.text
    assert "ada" not in page.text.replace("data", "")
    for header, said in (
        ("content-security-policy", "default-src 'none'; style-src 'sha256-"),
        ("referrer-policy", "no-referrer"),
        ("cache-control", "no-store"),
        ("x-robots-tag", "noindex"),
    ):
        assert page.headers[header].startswith(said)
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    receipt = await client.get(f"{second}/receipt")
    assert receipt.json()["digest"] == digest
    assert receipt.headers["content-disposition"].startswith("attachment")
    for closed in (f"/runs/{run_id}", "/runs", f"/receipts/{digest}", shares):
        assert (await client.get(closed)).status_code == 401, "the link opens its page alone"
    for guessed in (first[:-1], f"{first}x", "/shared/" + "a" * 5000, "/shared/%00"):
        assert (await client.get(guessed)).status_code == 404
    token = first.removeprefix("/shared/")
    database = b"".join(file.read_bytes() for file in backend.settings.data_dir.glob("*.db*"))
    assert run_id.encode() in database
    assert token.encode() not in database, "who reads the database cannot open the page"
    assert (await client.delete(shares, headers=ada)).json() == {"revoked": 2, "links": 0}
    for gone in (first, second, f"{second}/receipt"):
        assert (await client.get(gone)).status_code == 404


async def test_a_deleted_run_is_not_shared_any_more(
    client: httpx.AsyncClient, backend: Backend, chat: Chat
) -> None:
    run_id = await ask_as("ada")
    path = f"/shared/{await backend.store.share(run_id)}"
    assert (await client.get(path)).status_code == 200
    await backend.store.delete(Selection(chat_id=(await backend.store.run(run_id)).chat_id))
    assert (await client.get(path)).status_code == 404


async def test_cookies_of_an_ended_login_do_not_reach_chainlit(backend: Backend, users: UserFile) -> None:
    """Chainlit would accept them by their signature, and list the chats of whoever they name."""

    async def told(request: Request) -> Response:
        return PlainTextResponse(",".join(request.cookies))

    guarded = Guard(Starlette(routes=[Route("/project/threads", told)]))
    transport = httpx.ASGITransport(app=guarded)
    ada = await cookie("ada")
    async with httpx.AsyncClient(transport=transport, base_url="http://encore") as client:
        assert (await client.get("/project/threads", headers=ada)).text == "access_token"
        other = {"cookie": "theme=dark"}
        assert (await client.get("/project/threads", headers=other)).text == "theme"
        users.put("ada", "another password")
        assert (await client.get("/project/threads", headers=ada)).text == ""
        forged = {"cookie": "access_token=forged"}
        assert (await client.get("/project/threads", headers=forged)).text == ""


async def test_a_page_that_is_open_when_the_password_changes_can_ask_nothing_more(
    backend: Backend, users: UserFile, chat: Chat
) -> None:
    """As Chainlit has it: the user of a chat comes from the data layer, not from the cookie."""
    user = await History(users.mark).get_user("ada")
    cl.context.session.user = user
    await handlers.start_chat()
    assert login.chat_user() == "ada"
    users.put("ada", "another password")
    await handlers.ask_message(cl.Message(content="more", type="user_message"))
    assert any("not logged in any more" in problem for problem in chat.problems())
    assert await History(users.mark).get_user("nobody") is None


@pytest.mark.parametrize("tokens_per_chunk", [1, 500])
async def test_the_history_is_told_of_a_chat_once(
    backend: Backend, chat: Chat, engine_script: Script, tokens_per_chunk: int
) -> None:
    """An answer in one piece is over before its run is stored."""
    engine_script.default = Reply(tokens_per_chunk=tokens_per_chunk)
    await ask_as("ada")
    await handlers.ask_message(cl.Message(content="more", type="user_message"))
    assert len(await backend.store.runs()) == 2
    assert len(chat.of("first_interaction")) == 1


async def test_runs_that_are_nobodys_are_shown_to_nobody(
    client: httpx.AsyncClient, backend: Backend, chat: Chat
) -> None:
    run = await backend.store.run(await ask_as("ada"))
    other = await replay(backend.engine, backend.store, run, chat_id="cli")
    assert (await client.get(f"/runs/{other.run.id}", headers=await cookie("ada"))).status_code == 404


async def test_no_route_but_those_about_the_app_answers_without_a_login(client: httpx.AsyncClient) -> None:
    app = FastAPI()
    add_routes(app)
    routes = app.openapi()["paths"]
    assert len(routes) > 10
    for path, methods in routes.items():
        for method in methods:
            answer = await client.request(method, path.replace("{", "").replace("}", ""), json={})
            assert (answer.status_code == 401) == (path not in login.OPEN), path


async def test_a_path_about_something_unknown_is_refused(backend: Backend) -> None:
    """A route added later is closed until someone says what it is about."""
    assert not await login._is_theirs("ada", "novelty_id", "1")


async def test_a_login_ends_with_its_user_or_password(
    client: httpx.AsyncClient, backend: Backend, users: UserFile, chat: Chat
) -> None:
    run_id = await ask_as("ada")
    ada = await cookie("ada")
    users.put("ada", "another password")
    assert (await client.get("/runs", headers=ada)).status_code == 401
    await handlers.check_run(run_id)
    await handlers.ask_message(cl.Message(content="more", type="user_message"))
    assert any("not logged in any more" in problem for problem in chat.problems())
    assert len(await backend.store.runs()) == 1
    bob = await cookie("bob")
    users.remove("bob")
    assert (await client.get("/runs", headers=bob)).status_code == 401


async def test_a_cookie_of_another_secret_is_none(
    client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    ada = await cookie("ada")
    assert (await client.get("/runs", headers=ada)).status_code == 200
    monkeypatch.setenv("CHAINLIT_AUTH_SECRET", "x" * 48)
    assert (await client.get("/runs", headers=ada)).status_code == 401


@pytest.mark.parametrize("name", ["replay_run", "check_run", "repeat_run", "show_wall"])
async def test_buttons_do_nothing_with_somebody_elses_run(
    backend: Backend, chat: Chat, engine_script: Script, name: str
) -> None:
    """The ids in a button's payload come from the browser."""
    run_id = await ask_as("ada")
    asked = len(engine_script.bodies)
    with chat_session() as other:
        cl.context.session.user = await logged_in("bob")
        await handlers.start_chat()
        await getattr(handlers, name)({"run": run_id} if name == "repeat_run" else run_id)
        async with asyncio.timeout(10):
            while not other.problems():
                await asyncio.sleep(0.01)
        assert "is stored" in other.problems()[0]
        assert other.news("ended") == []
        assert not other.answers()
    assert len(engine_script.bodies) == asked
    assert len(await backend.store.runs()) == 1


async def test_nobody_types_what_is_expected_of_somebody_elses_run(backend: Backend, chat: Chat) -> None:
    run_id = await ask_as("ada")
    with chat_session() as other:
        cl.context.session.user = await logged_in("bob")
        await handlers.start_chat()
        assert "is stored" in await handlers.expect_answer({"run": run_id, "answer": "5"})
        assert other.news("expected") == []
    assert (await backend.store.run(run_id)).expected_answer is None


async def test_too_many_wrong_passwords_are_answered_with_429(backend: Backend) -> None:
    assert login._login is not None
    for _ in range(MOST_BY_NAME):
        assert await login._login.log_in("ada", "wrong password") is None
    with pytest.raises(HTTPException) as refused:
        await login._login.log_in("ada", PASSWORD)
    assert refused.value.status_code == 429
    assert await login._login.log_in("bob", PASSWORD) is not None


class TestSecret:
    def test_is_made_once_and_kept_privately(self, tmp_path: Path) -> None:
        made = login.auth_secret(Settings(data_dir=tmp_path))
        assert len(made) >= 32
        assert login.auth_secret(Settings(data_dir=tmp_path)) == made
        assert (tmp_path / "auth_secret").stat().st_mode & 0o777 == 0o600

    def test_a_short_one_is_refused(self) -> None:
        with pytest.raises(SettingsError, match="fewer than 32"):
            login.auth_secret(Settings.model_validate({"auth_secret": "secret"}))
