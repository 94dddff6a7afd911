"""What the README shows is what the commands print."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer

from llm_backend.cli.base import app

ROOT = Path(__file__).resolve().parents[2]


def test_pages_show_real_output_and_the_files_they_include() -> None:
    done = subprocess.run(
        [sys.executable, "docs/generate.py", "--check"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_file_a_page_links_to_exists(page: Path) -> None:
    links = re.findall(r"\]\((?!https?:)([^)#]+)\)", page.read_text(encoding="utf-8"))
    assert [link for link in links if not (page.parent / link).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_and_option_a_page_names_exists(page: Path) -> None:
    commands: Any = typer.main.get_command(app)
    text = page.read_text(encoding="utf-8")
    for name, rest in re.findall(r"[`$] ?encore ([a-z-]+)([^`\n]*)", text):
        assert name in commands.commands, f"{page.name} names encore {name}"
        known = {flag for option in commands.commands[name].params for flag in option.opts}
        assert set(re.findall(r"--[a-z-]+", rest)) <= known | {"--help"}, f"encore {name}{rest}"
