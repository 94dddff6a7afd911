"""`encore share`, as a user types it."""

from __future__ import annotations

import asyncio
import base64
import html
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from sample_receipts import receipt

from llm_backend.cli import main
from llm_backend.config import load_settings
from llm_backend.store import Store

Encore = Callable[..., tuple[int, str, str]]


@pytest.fixture
def encore(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Encore:
    monkeypatch.setenv("ENCORE_DATA_DIR", str(tmp_path))
    monkeypatch.setenv("ENCORE_ROOT_PATH", "/math")

    def run(*argv: str) -> tuple[int, str, str]:
        try:
            main(list(argv))
            code = 0
        except SystemExit as ended:
            code = int(ended.code or 0)
        out, err = capsys.readouterr()
        return code, out, err

    return run


def shared_run(token: str) -> str | None:
    """What the chat's database says that a token opens."""

    async def look() -> str | None:
        store = await Store.open(load_settings().database())
        try:
            return await store.shared_run(token)
        finally:
            await store.close()

    return asyncio.run(look())


@pytest.fixture
def digest(encore: Encore, tmp_path: Path) -> str:
    """Of a stored receipt, as a user types it."""
    made = receipt([1, 2, 3])
    (tmp_path / "one.json").write_text(made.to_json())
    assert encore("import", str(tmp_path / "one.json"))[0] == 0
    return made.digest.removeprefix("sha256:")[:12]


def test_a_link_is_printed_and_revoked(encore: Encore, digest: str) -> None:
    links = [encore("share", digest)[1] for _ in range(2)]
    tokens = []
    for link in links:
        match = re.fullmatch(r"http://127\.0\.0\.1:8000/math/shared/([\w-]{32})\n", link)
        assert match, link
        tokens.append(match[1])
    assert tokens[0] != tokens[1]
    assert all(shared_run(token) for token in tokens)
    code, out, err = encore("share", digest, "--revoke")
    assert (code, out, "2 links revoked" in err) == (0, "", True)
    assert [shared_run(token) for token in tokens] == [None, None]
    assert encore("share", digest, "--revoke")[0] == 2, "nothing was left to revoke"


@pytest.mark.parametrize(("language", "said"), [("en", "Shared from Encore"), ("zh-CN", "由 Encore 分享")])
def test_a_file_stands_by_itself_and_gives_the_receipt_back(
    encore: Encore, digest: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, language: str, said: str
) -> None:
    file = tmp_path / "run.html"
    assert encore("share", digest, "--file", str(file), "--language", language)[0] == 0
    page = file.read_text(encoding="utf-8")
    assert said in page
    assert "http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'sha256-" in page
    packed = re.search(r"data:application/gzip;base64,([\w+/=&#;]+)", page)
    assert packed
    inside = tmp_path / "inside.json.gz"
    inside.write_bytes(base64.b64decode(html.unescape(packed[1])))
    monkeypatch.setenv("ENCORE_DATA_DIR", str(tmp_path / "elsewhere"))
    assert encore("import", str(inside))[0] == 0
    assert encore("export", digest, str(tmp_path / "again.json"))[0] == 0
    code, _, err = encore("share", digest, "--file", str(file))
    assert (code, "exists already" in err) == (2, True)


def test_what_makes_no_sense_is_refused(encore: Encore, digest: str, tmp_path: Path) -> None:
    for argv, said in (
        (("abcdef",), "No receipt starts with"),
        ((digest, "--revoke", "--file", str(tmp_path / "x.html")), "makes no file"),
        ((digest, "--language", "fr"), "no language"),
    ):
        code, out, err = encore("share", *argv)
        assert (code, out) == (2, "")
        assert said in err
