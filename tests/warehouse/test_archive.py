"""The archive of Spark's classes: used if it exists, replaced if it is old, never needed."""

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from headrace.warehouse import archive


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "jars").mkdir()
    return tmp_path


def trained(monkeypatch: pytest.MonkeyPatch, *, makes: bool) -> list[Path]:
    """Replaces the training by one that makes a file at once, or fails; returns the requested files."""
    requested: list[Path] = []

    def run(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        requested.append(Path(command[-1]))
        if makes:
            requested[-1].write_bytes(b"classes")
        return subprocess.CompletedProcess(command, 0 if makes else 1, "", "first\nno room\n")

    monkeypatch.setattr(subprocess, "run", run)
    return requested


def test_without_an_archive_there_are_no_options(home: Path) -> None:
    assert archive.archive_options(home) == ""


def test_it_is_made_once_and_again_when_spark_is_newer(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    requested = trained(monkeypatch, makes=True)
    lines: list[str] = []
    assert archive.ensure_archive(home=home, progress=lines.append)
    assert archive.ensure_archive(home=home, progress=lines.append)
    assert len(requested) == len(lines) == 1
    path = archive.archive_path(home)
    assert archive.archive_options(home).startswith(f'"-XX:SharedArchiveFile={path}" ')
    os.utime(path, (0, 0))
    assert archive.ensure_archive(home=home, progress=lines.append)
    assert len(requested) == 2


def test_spark_starts_as_before_if_it_cannot_be_made(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trained(monkeypatch, makes=False)
    lines: list[str] = []
    assert not archive.ensure_archive(home=home, progress=lines.append)
    assert lines[-1].endswith("so Spark starts as slowly as before: first | no room")
    assert archive.archive_options(home) == ""
    assert not list((home / "jars").iterdir())
