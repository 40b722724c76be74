"""Commands in a directory that is no site's home: they say what they looked for, and create nothing."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from headrace.audit.store.store import AuditStore, StoreMissingError
from headrace.cli import main as cli
from headrace.cli.errors import ExitCode


def run(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setattr(sys, "argv", ["headrace", *words])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    return int(ended.value.code or 0)


def test_an_audit_report_creates_no_store(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    home = tmp_path / "no-site"
    monkeypatch.setenv("HEADRACE_HOME", str(home))
    assert run(monkeypatch, "audit", "report") == ExitCode.UNREACHABLE
    message = capsys.readouterr().err
    assert f"there is no audit store at {home}/data/analysis/audit.db" in message
    assert f"the site's home is {home}" in message and "set HEADRACE_HOME" in message
    assert not home.exists()
    store = tmp_path / "other" / "audit.db"
    assert run(monkeypatch, "audit", "report", "--store", f"sqlite:///{store}") == ExitCode.UNREACHABLE
    assert f"there is no audit store at {store}; give another --store" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_no_store_stays_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "empty.db"
    path.touch()
    with pytest.raises(StoreMissingError, match="is no audit store: it has no table"):
        AuditStore(f"sqlite:///{path}", must_exist=True)
    assert path.read_bytes() == b""


def test_a_store_that_exists_is_opened(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'audit.db'}"
    AuditStore(url).close()
    opened = AuditStore(url, must_exist=True)
    assert opened.positions() == {}
    opened.close()


def test_a_home_into_which_nobody_may_look_has_no_agent_that_starts_just_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Another user's, or a file: it was waited for, and "has not recorded where it listens"."""
    (tmp_path / "agent").touch()
    monkeypatch.setenv("HEADRACE_HOME", str(tmp_path))
    for command in ("status", "restart", "down"):
        assert run(monkeypatch, command) == ExitCode.NEGATIVE
        said = " ".join(capsys.readouterr().err.split())
        assert (
            f"whether an agent keeps {tmp_path} is not known: {tmp_path}/agent/lock: Not a directory" in said
        )
