"""The optional login: Chainlit's form and cookie, our users file, and what belongs to whom.

Off unless ENCORE_USERS_FILE is set. With it, every page and route needs a login except those in `OPEN`,
and runs, receipts, comparisons and walls answer only to the user in whose chats they were made; to
everybody else they do not exist. A login ends when its user is removed or gets another password.
"""

from __future__ import annotations

import asyncio
import os
import secrets
from contextvars import ContextVar
from pathlib import Path

import chainlit as cl
import chainlit.data
import jwt
from chainlit.auth.cookie import get_token_from_cookies
from chainlit.auth.jwt import decode_jwt
from chainlit.config import config
from fastapi import HTTPException, Request
from starlette.requests import HTTPConnection
from starlette.types import Scope

from llm_backend.config import Settings
from llm_backend.errors import ReceiptNotFound, SettingsError
from llm_backend.run import Run
from llm_backend.ui.attempts import WINDOW_S, Attempts
from llm_backend.ui.backend import backend
from llm_backend.ui.history import History
from llm_backend.users import UserFile, write_private

client_address: ContextVar[str] = ContextVar("client_address", default="")
"""Of the request being served; `guard.py` sets it."""

OPEN = frozenset(
    {
        *("/healthz", "/metrics", "/status", "/strings", "/public/elements/{title}.jsx"),
        *("/shared/{token}", "/shared/{token}/receipt"),
    }
)
"""Routes without a login: they say how the app and the engine are, and nothing about anybody's runs but
those whose owner gave a link away."""

_SHORTEST_SECRET = 32


class NotLoggedIn(HTTPException):
    """401: nobody is logged in, or not any more."""

    def __init__(self) -> None:
        super().__init__(401, "Log in first.")


class Login:
    """The login of one process."""

    def __init__(self, users: UserFile) -> None:
        self._users = users
        self._attempts = Attempts()

    async def log_in(self, username: str, password: str) -> cl.User | None:
        """Chainlit's callback: None refuses. Raises `HTTPException` 429 when it was tried too often."""
        address, name = client_address.get(), username.strip()
        if not self._attempts.begin(address, name):
            wait = str(int(WINDOW_S))
            raise HTTPException(429, "Too many attempts; wait a minute.", headers={"Retry-After": wait})
        user = await asyncio.to_thread(self._users.check, name, password)
        if user is None:
            return None
        self._attempts.succeed(address, name)
        return cl.User(identifier=user.name, metadata={"mark": user.mark})

    def mark(self, name: str) -> str | None:
        """`UserFile.mark`."""
        return self._users.mark(name)

    def holds(self, user: cl.User) -> bool:
        """Whether the login is still good: the user is there, with the same password."""
        mark = self.mark(user.identifier)
        return mark is not None and mark == user.metadata.get("mark")


_login: Login | None = None


def configure_login(settings: Settings) -> None:
    """Have Chainlit ask for a login if there is a users file; before it serves anything."""
    global _login
    _login = None
    config.code.password_auth_callback = None
    _keep_history(None)
    if settings.users_file is None:
        return
    os.environ["CHAINLIT_AUTH_SECRET"] = auth_secret(settings)
    _login = Login(UserFile(settings.users_file))
    # Chainlit's decorator would turn every refusal into that of a wrong password, 429 too.
    config.code.password_auth_callback = _login.log_in
    _keep_history(History(_login.mark))


def _keep_history(layer: History | None) -> None:
    """Chainlit shows a history where it has a data layer, and remembers the first answer to that."""
    config.code.data_layer = None if layer is None else lambda: layer
    chainlit.data._data_layer, chainlit.data._data_layer_initialized = layer, True


def login_needed() -> bool:
    """Whether there is a login."""
    return _login is not None


def auth_secret(settings: Settings) -> str:
    """What login cookies are signed with: the configured secret, or one made once and kept privately."""
    if settings.auth_secret is not None:
        secret = settings.auth_secret.get_secret_value()
        if len(secret) < _SHORTEST_SECRET:
            raise SettingsError(
                f"ENCORE_AUTH_SECRET has fewer than {_SHORTEST_SECRET} characters.",
                "Leave it out: Encore makes one and keeps it in its data folder.",
            )
        return secret
    return _kept_secret(settings.data_dir / "auth_secret")


def _kept_secret(file: Path) -> str:
    try:
        kept = file.read_text(encoding="utf-8").strip() if file.exists() else ""
        if len(kept) >= _SHORTEST_SECRET:
            return kept
        made = secrets.token_urlsafe(48)
        write_private(file, made)
    except OSError as error:
        raise SettingsError(f"The login's secret in {file} is not usable: {error.strerror}.") from None
    return made


def chat_user() -> str | None:
    """Who is logged in in this chat; None where there is no login. Raises `NotLoggedIn`."""
    if _login is None:
        return None
    user = getattr(cl.context.session, "user", None)
    if user is None or not _login.holds(user):
        raise NotLoggedIn
    return str(user.identifier)


def request_user(request: Request) -> str | None:
    """Who sent a request, by its cookie; None where there is no login. Raises `NotLoggedIn`."""
    if _login is None:
        return None
    user = _cookie_user(_login, request.cookies)
    if user is None:
        raise NotLoggedIn
    return user.identifier


def without_ended_login(scope: Scope) -> Scope:
    """The request without its cookies if their login has ended: Chainlit looks at the signature alone."""
    if _login is None:
        return scope
    cookies = HTTPConnection(scope).cookies
    if get_token_from_cookies(cookies) is None or _cookie_user(_login, cookies) is not None:
        return scope
    return {**scope, "headers": [(name, value) for name, value in scope["headers"] if name != b"cookie"]}


def _cookie_user(login: Login, cookies: dict[str, str]) -> cl.User | None:
    token = get_token_from_cookies(cookies)
    try:
        user = decode_jwt(token) if token else None
    except (jwt.PyJWTError, TypeError, KeyError):
        user = None
    return user if user is not None and login.holds(user) else None


async def only_theirs(request: Request) -> None:
    """For every route: refuses who is not logged in, and hides what is not theirs as if it were not there.

    What a route is about is told by the names in its path; a name that is not known here is refused.
    """
    if request.scope["route"].path in OPEN:
        return
    user = request_user(request)
    if user is None:
        return
    for name, value in request.path_params.items():
        if not await _is_theirs(user, name, value):
            raise ReceiptNotFound("There is nothing here.", "Open what is in your own chats.")


async def _is_theirs(user: str, name: str, value: str) -> bool:
    store = backend().store
    match name:
        case "run_id":
            return await store.owns_run(user, value)
        case "digest":
            digest = (await store.run_by_digest_prefix(value)).digest
            return digest is not None and await store.owns_receipt(user, digest)
        case "comparison_id":
            return await store.owns_run(user, (await store.comparison(value)).reference_run_id)
        case "wall_id":
            return await store.owns_chat(user, (await backend().walls.get(backend(), value)).chat_id)
        case "report_id":
            return True  # about the engine, not about anybody's questions
    return False


async def own_run(user: str | None, run_id: str) -> Run:
    """A run that someone names; raises `ReceiptNotFound` for one that is not theirs."""
    run = await backend().store.run(run_id)
    if user is not None and not await backend().store.owns_run(user, run_id):
        raise ReceiptNotFound(f"No run {run_id} is stored.", "Open what is in your own chats.")
    return run
