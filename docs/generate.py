"""Runs the commands shown in README.md and writes their real output between the markers.

    python docs/generate.py            rewrite
    python docs/generate.py --check    exit 1 if a page is stale

Files that a page includes are copied into it likewise.

The engine is the scripted one of the tests, so the output is the same on every machine; the README
says so where it is shown.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from scripted_engine import Reply, Script, ScriptedEngine, serving  # noqa: E402  # found by the line above

README, GUIDE = ROOT / "README.md", ROOT / "docs" / "guide.md"
QUESTION = "What is 235 times 478?"


def encore(*argv: str) -> str:
    """One command as a person types it, with what it prints on stdout and its exit code if not 0."""
    done = subprocess.run(
        [sys.executable, "-m", "llm_backend", *argv], capture_output=True, text=True, check=False
    )
    shown = " ".join(f'"{word}"' if " " in word else word for word in argv)
    code = f"\n(exit code {done.returncode})" if done.returncode else ""
    return f"$ encore {shown}\n{done.stdout.strip()}{code}"


def session() -> str:
    script = Script()
    with tempfile.TemporaryDirectory() as data, serving(ScriptedEngine(script)) as url:
        os.environ.update(ENCORE_DATA_DIR=data, ENCORE_RUN_DIR=data, ENCORE_ENGINE_URLS=url)
        asked = encore("ask", QUESTION)
        listed = subprocess.run(
            [sys.executable, "-m", "llm_backend", "list"], capture_output=True, text=True, check=True
        )
        digest = listed.stdout.split()[0][:8]
        same = encore("replay", digest)
        script.enqueue(Reply(fork_at=31, drift=-0.03))
        different = encore("replay", digest)
    note = "The engine here is the scripted one of the tests: these lines are generated, and checked in CI."
    return f"```console\n{asked}\n\n{same}\n\n{different}\n```\n\n{note}"


def readme(before: str) -> str:
    pattern = re.compile(r"(<!-- generated: session -->\n).*?(<!-- end -->)", re.DOTALL)
    block = session()
    return pattern.sub(lambda match: f"{match[1]}{block}\n{match[2]}", before)


def with_included_files(before: str) -> str:
    pattern = re.compile(r"(<!-- include: (\S+) -->\n).*?(<!-- end -->)", re.DOTALL)

    def block(match: re.Match[str]) -> str:
        return f"{match[1]}```python\n{(ROOT / match[2]).read_text(encoding='utf-8')}```\n{match[3]}"

    return pattern.sub(block, before)


def main() -> int:
    stale = False
    for page, renew in ((README, readme), (GUIDE, with_included_files)):
        before = page.read_text(encoding="utf-8")
        after = renew(before)
        if before == after:
            continue
        stale = True
        if "--check" in sys.argv:
            print(f"{page.name} is stale: run python docs/generate.py", file=sys.stderr)
        else:
            page.write_text(after, encoding="utf-8")
    return int(stale and "--check" in sys.argv)


if __name__ == "__main__":
    sys.exit(main())
