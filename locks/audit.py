"""`make audit`: are there known vulnerabilities in what the locks install?

    python locks/audit.py [LOCK...]

Asks PyPI's advisories with pip-audit, for every lock or those named. Exit code 0: none but those that
`audit.accepted` lists with a reason, or the advisories cannot be reached from here, which is said; 1: at
least one more, or a line of `audit.accepted` that is about nothing any more.
"""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ACCEPTED = HERE / "audit.accepted"
LOCKS = ("app", "test", "engine-cpu", "engine-cuda", "audit")

PROBE = "https://pypi.org/pypi/jinja2/2.4.1/json"
"""A release with known advisories: where this tells none, no answer about any other means anything."""

Command = Sequence[str]
PIP_AUDIT: Command = (sys.executable, "-m", "pip_audit")


def main(names: Sequence[str], *, pip_audit: Command = PIP_AUDIT, probe: str = PROBE) -> int:
    """Audit the locks; 0 or 1."""
    why = unreachable(probe)
    if why:
        print(f"Not audited: the advisories cannot be reached from here ({why}).")
        return 0
    accepted, found, failed = read_accepted(ACCEPTED.read_text(encoding="utf-8")), set(), False
    for name in names or LOCKS:
        for package, version, advisory in audit(HERE / f"{name}.lock", pip_audit):
            found.add(advisory)
            reason = accepted.get(advisory)
            failed |= reason is None
            print(f"{name}.lock: {package} {version}: {advisory}: {reason or 'NOT ACCEPTED'}")
    gone = sorted(accepted.keys() - found) if not names else []
    for advisory in gone:
        print(f"{ACCEPTED.name}: {advisory} is in no lock any more; remove its line.")
    if not failed and not gone:
        print("Audited: nothing that is not accepted.")
    return int(failed or bool(gone))


def unreachable(probe: str) -> str:
    """Why no advisories can be had; "" where they can."""
    try:
        with urllib.request.urlopen(probe, timeout=20) as answer:
            told = json.load(answer)
    except (OSError, ValueError) as error:
        return str(error)
    return "" if isinstance(told, dict) and told.get("vulnerabilities") else "no advisories in the answer"


def audit(lock: Path, pip_audit: Command) -> list[tuple[str, str, str]]:
    """Package, version and id of every advisory about what a lock installs."""
    options = ("--require-hashes", "--disable-pip", "--format", "json", "--progress-spinner", "off")
    done = subprocess.run(
        [*pip_audit, *options, "--requirement", str(lock)], capture_output=True, text=True, check=False
    )
    try:
        report: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        sys.exit(f"pip-audit failed on {lock.name}:\n{done.stderr}")
    return [
        (package["name"], package["version"], advisory["id"])
        for package in report["dependencies"]
        for advisory in package.get("vulns", ())
    ]


def read_accepted(content: str) -> dict[str, str]:
    """`ID reason` by line; a line without a reason accepts nothing."""
    accepted = {}
    for line in content.splitlines():
        advisory, _, reason = line.partition(" ")
        if advisory and not advisory.startswith("#"):
            if not reason.strip():
                sys.exit(f"{ACCEPTED.name}: {advisory} has no reason.")
            accepted[advisory] = reason.strip()
    return accepted


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
