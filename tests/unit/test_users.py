"""The users file: who is let in, and what it is that is written down."""

from __future__ import annotations

from pathlib import Path

import pytest

from llm_backend.config import Settings
from llm_backend.engine.preflight import check_login
from llm_backend.errors import LaunchError, SettingsError
from llm_backend.users import LONGEST_PASSWORD, UserFile

PASSWORD = "eight squared is 64"


@pytest.fixture
def users(tmp_path: Path) -> UserFile:
    return UserFile(tmp_path / "folder" / "users")


def test_lets_in_with_the_right_password_only(users: UserFile) -> None:
    assert users.put("ada", PASSWORD)
    found = users.check("ada", PASSWORD)
    assert found is not None
    assert found.name == "ada"
    for name, password in (
        ("ada", PASSWORD + " "),
        ("ada", ""),
        ("Ada", PASSWORD),
        ("", PASSWORD),
        ("bob", PASSWORD),
        ("ada", "x" * (LONGEST_PASSWORD + 1)),
        ("ada", "\ud800"),
    ):
        assert users.check(name, password) is None, (name, password)


def test_the_file_is_private_and_holds_no_password(users: UserFile) -> None:
    users.put("ada", PASSWORD)
    users.put("bob", PASSWORD)
    assert users.path.stat().st_mode & 0o777 == 0o600
    content = users.path.read_text()
    assert PASSWORD not in content
    first, second = content.splitlines()
    assert first.startswith("ada:scrypt$32768$8$1$")
    assert first.split(":")[1] != second.split(":")[1], "equal passwords are not equal lines"
    assert [file.name for file in users.path.parent.iterdir()] == ["users"], "no draft stays"


def test_a_change_is_seen_without_a_restart_and_ends_older_logins(users: UserFile) -> None:
    users.put("ada", PASSWORD)
    elsewhere = UserFile(users.path)
    before = elsewhere.mark("ada")
    assert not users.put("ada", "another password"), "she is no new user"
    assert elsewhere.check("ada", PASSWORD) is None
    assert elsewhere.mark("ada") not in (before, None)
    assert users.remove("ada")
    assert elsewhere.mark("ada") is None
    assert not users.remove("ada")


def test_one_name_is_one_user_however_it_is_typed(users: UserFile) -> None:
    users.put("Zoë", PASSWORD)
    assert not users.put("Zoe\u0308", "pass phrase é")
    assert users.check(" Zoë", "pass phrase e\u0301") is not None
    assert users.put("王小明", PASSWORD)


@pytest.mark.parametrize("name", ["", "a:b", "a b", "a\nb", "-a", "a" * 65, "a$", "../x"])
def test_a_name_that_would_break_the_file_is_refused(users: UserFile, name: str) -> None:
    with pytest.raises(SettingsError, match="no name for a user"):
        users.put(name, PASSWORD)
    assert not users.path.exists()


@pytest.mark.parametrize("password", ["", "seven77", "x" * (LONGEST_PASSWORD + 1)])
def test_a_short_password_is_refused(users: UserFile, password: str) -> None:
    with pytest.raises(SettingsError):
        users.put("ada", password)
    assert users.users() == {}


@pytest.mark.parametrize(
    "line", ["ada", "ada:scrypt$1", "ada:md5$1$1$1$AA==$AA==", "ada:scrypt$x$8$1$AA==$AA=="]
)
def test_a_line_that_is_none_is_named(users: UserFile, line: str) -> None:
    users.put("ada", PASSWORD)
    with users.path.open("a") as file:
        file.write(line + "\n")
    with pytest.raises(SettingsError, match="Line 2 of the users file"):
        users.check("ada", PASSWORD)


def test_a_file_that_others_may_write_lets_nobody_in(users: UserFile) -> None:
    users.put("ada", PASSWORD)
    users.path.chmod(0o622)
    with pytest.raises(SettingsError, match="Others may write"):
        users.check("ada", PASSWORD)


class TestStart:
    """Where the chat listens decides whether it needs a login."""

    def test_other_machines_need_a_login_or_an_explicit_word(self, tmp_path: Path) -> None:
        for host in ("0.0.0.0", "::", "192.168.1.7", "school.example"):
            with pytest.raises(LaunchError, match="without a login"):
                check_login(Settings(host=host))
            check_login(Settings(host=host, without_login=True))
        for host in ("127.0.0.1", "localhost", "::1"):
            check_login(Settings(host=host))

    def test_a_users_file_without_users_is_refused(self, users: UserFile) -> None:
        for host in ("127.0.0.1", "0.0.0.0"):
            settings = Settings(host=host, users_file=users.path, without_login=True)
            with pytest.raises(LaunchError, match="has no user"):
                check_login(settings)
        users.put("ada", PASSWORD)
        check_login(Settings(host="0.0.0.0", users_file=users.path))
