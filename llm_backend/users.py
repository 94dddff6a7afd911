"""Who may log in: a file with one line per user, `NAME:scrypt$N$R$P$SALT$HASH`, passwords only as hashes.

The file is read again whenever it has changed, so that adding or removing someone needs no restart.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import os
import re
import secrets
import unicodedata
from dataclasses import dataclass
from pathlib import Path

from llm_backend.errors import SettingsError

SHORTEST_PASSWORD = 8
LONGEST_PASSWORD = 1024
"""Characters; what is longer is refused before anything is computed from it."""

_N, _R, _P = 2**15, 8, 1
"""scrypt's cost: 32 MiB and about a tenth of a second for each attempt."""

_NAME = re.compile(r"\w[\w.@-]{0,63}")


@dataclass(frozen=True, slots=True)
class User:
    """One line of the file."""

    name: str
    n: int
    r: int
    p: int
    salt: bytes
    key: bytes

    @property
    def mark(self) -> str:
        """Another one after every change of the password, so that older logins can be told apart."""
        return hashlib.sha256(b"encore login" + self.salt + self.key).hexdigest()[:16]

    def accepts(self, password: str) -> bool:
        """Whether this is the password; slow on purpose, and as slow for a wrong one."""
        return hmac.compare_digest(self.key, _derive(password, self.salt, self.n, self.r, self.p))

    def line(self) -> str:
        salt, key = (base64.b64encode(part).decode() for part in (self.salt, self.key))
        return f"{self.name}:scrypt${self.n}${self.r}${self.p}${salt}${key}"


_NOBODY = User("", _N, _R, _P, secrets.token_bytes(16), secrets.token_bytes(32))
"""Checked for names that do not exist, so that the time tells nothing about who does."""


class UserFile:
    """The users in the file at `path`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._seen: tuple[int, int, int] | None = None
        self._users: dict[str, User] = {}

    def users(self) -> dict[str, User]:
        """By name; none where there is no file. Raises `SettingsError` for a file that is not sound."""
        try:
            with self.path.open("rb") as file:
                found = os.fstat(file.fileno())
                if found.st_mode & 0o022:
                    raise SettingsError(
                        f"Others may write to the users file {self.path}.", f"Run chmod 600 {self.path}."
                    )
                seen = found.st_mtime_ns, found.st_size, found.st_ino
                if seen != self._seen:
                    self._users = _parse(file.read(), self.path)
                    self._seen = seen
        except FileNotFoundError:
            self._users, self._seen = {}, None
        except OSError as error:
            raise SettingsError(f"The users file {self.path} cannot be read: {error.strerror}.") from None
        return self._users

    def check(self, name: str, password: str) -> User | None:
        """The user, if the password is right. Slow: keep it off the event loop."""
        if len(password) > LONGEST_PASSWORD:
            return None
        user = self.users().get(_normal(name), _NOBODY)
        return user if user.accepts(password) and user is not _NOBODY else None

    def mark(self, name: str) -> str | None:
        """`User.mark` as it is now; None for someone who was removed."""
        user = self.users().get(name)
        return user.mark if user else None

    def put(self, name: str, password: str) -> bool:
        """Add a user, or give a known one a new password; True for a new one. Raises `SettingsError`."""
        name = _normal(name)
        if not _NAME.fullmatch(name):
            raise SettingsError(
                f"{name!r} is no name for a user.", "Take 1 to 64 letters, digits and . _ @ - without spaces."
            )
        if not SHORTEST_PASSWORD <= len(password) <= LONGEST_PASSWORD:
            raise SettingsError(f"A password has at least {SHORTEST_PASSWORD} characters.")
        users = dict(self.users())
        new = name not in users
        salt = secrets.token_bytes(16)
        users[name] = User(name, _N, _R, _P, salt, _derive(password, salt, _N, _R, _P))
        self._write(users)
        return new

    def remove(self, name: str) -> bool:
        """Whether there was such a user."""
        users = dict(self.users())
        if users.pop(_normal(name), None) is None:
            return False
        self._write(users)
        return True

    def _write(self, users: dict[str, User]) -> None:
        content = "".join(f"{user.line()}\n" for user in users.values())
        try:
            write_private(self.path, content)
        except OSError as error:
            raise SettingsError(f"The users file {self.path} cannot be written: {error.strerror}.") from None


def write_private(path: Path, content: str) -> None:
    """Replace the file at once by one that only its owner can read."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f"{path.name}.{secrets.token_hex(4)}.part")
    try:
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def _parse(content: bytes, path: Path) -> dict[str, User]:
    users = {}
    for number, line in enumerate(content.decode("utf-8", "replace").splitlines(), start=1):
        if not line.strip() or line.startswith("#"):
            continue
        try:
            name, _, rest = line.strip().partition(":")
            kind, n, r, p, salt, key = rest.split("$")
            if kind != "scrypt" or not _NAME.fullmatch(name):
                raise ValueError
            user = User(name, int(n), int(r), int(p), _bytes(salt), _bytes(key))
        except ValueError:
            raise SettingsError(
                f"Line {number} of the users file {path} is none of encore user add.",
                "Remove the line, or add that user again.",
            ) from None
        users[name] = user
    return users


def _bytes(encoded: str) -> bytes:
    try:
        return base64.b64decode(encoded, validate=True)
    except binascii.Error as error:
        raise ValueError from error


def _normal(name: str) -> str:
    """Keyboards write the same letters in more than one way."""
    return unicodedata.normalize("NFC", name.strip())


def _derive(password: str, salt: bytes, n: int, r: int, p: int) -> bytes:
    secret = unicodedata.normalize("NFC", password).encode("utf-8", "surrogatepass")
    return hashlib.scrypt(secret, salt=salt, n=n, r=r, p=p, maxmem=256 * n * r, dklen=32)
