"""Who may log in to the chat: adds and removes users of the file in ENCORE_USERS_FILE."""

from __future__ import annotations

import getpass
import sys
from typing import Annotated

import typer

from llm_backend.cli.base import REPRODUCED, UNDECIDED, app, say
from llm_backend.config import load_settings
from llm_backend.errors import SettingsError
from llm_backend.users import UserFile

user = typer.Typer(help="Add and remove users of the chat's login.", no_args_is_help=True)
app.add_typer(user, name="user")

NameArgument = Annotated[str, typer.Argument(metavar="NAME")]


@user.command()
def add(name: NameArgument) -> None:
    """Add a user, or give one a new password, asked for at a prompt; older logins of theirs end."""
    users = _users()
    new = users.put(name, _password())
    print(f"{name} can log in now." if new else f"{name} has a new password.")


@user.command()
def remove(name: NameArgument) -> None:
    """Remove a user; they are logged out. Their runs stay (encore forget deletes them)."""
    users = _users()
    if not users.remove(name):
        say(f"{users.path} has no user {name}.")
        sys.exit(UNDECIDED)
    print(f"{name} cannot log in any more.")
    sys.exit(REPRODUCED)


def _users() -> UserFile:
    path = load_settings().users_file
    if path is None:
        raise SettingsError(
            "ENCORE_USERS_FILE is not set, so there is no login.",
            "Put ENCORE_USERS_FILE=data/users into .env, for example.",
        )
    return UserFile(path)


def _password() -> str:
    """Typed twice at a terminal, else the first line of stdin; never an argument, which `ps` shows."""
    if not sys.stdin.isatty():
        return sys.stdin.readline().rstrip("\r\n")
    password = getpass.getpass("Password: ")
    if getpass.getpass("The same again: ") != password:
        raise SettingsError("The two passwords differ; nothing was changed.")
    return password
