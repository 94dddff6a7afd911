"""`make audit`: what fails CI, and what does not."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

LOCKS = Path(__file__).resolve().parents[2] / "locks"


@pytest.fixture
def audit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location("audit", LOCKS / "audit.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    accepted = tmp_path / "audit.accepted"
    accepted.write_text("# none\n")
    monkeypatch.setattr(module, "ACCEPTED", accepted)
    return module


@pytest.fixture
def reachable(tmp_path: Path) -> str:
    """Advisories answer, as for the release that is asked about first."""
    probe = tmp_path / "probe.json"
    probe.write_text(json.dumps({"vulnerabilities": [{"id": "PYSEC-1"}]}))
    return probe.as_uri()


def pip_audit(*advisories: str) -> list[str]:
    """What pip-audit prints when one package has these; it ends with 1 if there are any."""
    vulns = [{"id": advisory} for advisory in advisories]
    report = {"dependencies": [{"name": "left-pad", "version": "1.0", "vulns": vulns}]}
    code = f"import sys; print({json.dumps(json.dumps(report))}); sys.exit({int(bool(advisories))})"
    return [sys.executable, "-c", code]


def test_nothing_known_passes(audit: ModuleType, reachable: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert audit.main([], pip_audit=pip_audit(), probe=reachable) == 0
    assert "Audited: nothing" in capsys.readouterr().out


def test_a_finding_fails_until_a_reason_accepts_it(
    audit: ModuleType, reachable: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert audit.main(["app"], pip_audit=pip_audit("CVE-1"), probe=reachable) == 1
    assert "app.lock: left-pad 1.0: CVE-1: NOT ACCEPTED" in capsys.readouterr().out
    audit.ACCEPTED.write_text("CVE-1 never called with anything from outside\n")
    assert audit.main([], pip_audit=pip_audit("CVE-1"), probe=reachable) == 0
    assert audit.main([], pip_audit=pip_audit("CVE-1", "CVE-2"), probe=reachable) == 1
    assert audit.main([], pip_audit=pip_audit(), probe=reachable) == 1, "the line is about nothing"
    audit.ACCEPTED.write_text("CVE-1\n")
    with pytest.raises(SystemExit, match="has no reason"):
        audit.main([], pip_audit=pip_audit("CVE-1"), probe=reachable)


@pytest.mark.parametrize("told", [None, "", "[]", "{}", '{"vulnerabilities": []}', "<html>"])
def test_without_advisories_nothing_fails_and_it_is_said(
    audit: ModuleType, tmp_path: Path, told: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    """No network, or an index that tells packages but no advisories."""
    probe = tmp_path / "probe"
    if told is not None:
        probe.write_text(told)
    assert audit.main([], pip_audit=pip_audit("CVE-1"), probe=probe.as_uri()) == 0
    assert "Not audited" in capsys.readouterr().out


def test_an_audit_that_breaks_is_not_taken_for_a_clean_one(audit: ModuleType, reachable: str) -> None:
    broken = [sys.executable, "-c", "import sys; sys.exit('no such option')"]
    with pytest.raises(SystemExit, match="no such option"):
        audit.main(["app"], pip_audit=broken, probe=reachable)


def test_every_lock_is_audited(audit: ModuleType) -> None:
    assert {f"{name}.lock" for name in audit.LOCKS} | {"embedded-model.lock"} == {
        file.name for file in LOCKS.glob("*.lock")
    }
