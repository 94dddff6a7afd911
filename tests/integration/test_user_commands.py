"""`encore user`, as a user types it."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

import pytest

from llm_backend.cli import main
from llm_backend.users import UserFile

Encore = Callable[..., tuple[int, str, str]]


@pytest.fixture
def encore(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Encore:
    monkeypatch.setenv("ENCORE_USERS_FILE", str(tmp_path / "users"))

    def run(*argv: str, stdin: str = "") -> tuple[int, str, str]:
        monkeypatch.setattr("sys.stdin", io.StringIO(stdin))
        try:
            main(list(argv))
            code = 0
        except SystemExit as ended:
            code = int(ended.code or 0)
        out, err = capsys.readouterr()
        return code, out, err

    return run


def test_a_user_is_added_changed_and_removed(encore: Encore, tmp_path: Path) -> None:
    users = UserFile(tmp_path / "users")
    assert encore("user", "add", "ada", stdin="pass phrase\n")[:2] == (0, "ada can log in now.\n")
    assert users.check("ada", "pass phrase")
    assert encore("user", "add", "ada", stdin="other phrase\n")[1] == "ada has a new password.\n"
    assert not users.check("ada", "pass phrase")
    assert encore("user", "remove", "ada")[0] == 0
    code, _, err = encore("user", "remove", "ada")
    assert (code, "has no user ada" in err) == (2, True)


def test_the_prompt_asks_twice(encore: Encore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    typed = iter(["pass phrase", "pass phrasf", "pass phrase", "pass phrase"])
    monkeypatch.setattr("getpass.getpass", lambda _: next(typed))
    monkeypatch.setattr("io.StringIO", Terminal)
    code, _, err = encore("user", "add", "ada")
    assert (code, "The two passwords differ" in err) == (2, True)
    assert not (tmp_path / "users").exists()
    assert encore("user", "add", "ada")[0] == 0
    assert UserFile(tmp_path / "users").check("ada", "pass phrase")


def test_a_password_is_no_argument(encore: Encore) -> None:
    code, _, _ = encore("user", "add", "ada", "pass phrase")
    assert code == 2


def test_without_the_setting_it_says_which(encore: Encore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ENCORE_USERS_FILE")
    code, _, err = encore("user", "add", "ada", stdin="pass phrase\n")
    assert (code, "ENCORE_USERS_FILE is not set" in err) == (2, True)
