"""The archive of Spark's classes: used where it is there, made anew where it is old, never in the way."""

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
    """Training that makes a file at once, or fails; the files it was asked for."""
    asked: list[Path] = []

    def run(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        asked.append(Path(command[-1]))
        if makes:
            asked[-1].write_bytes(b"classes")
        return subprocess.CompletedProcess(command, 0 if makes else 1, "", "first\nno room\n")

    monkeypatch.setattr(subprocess, "run", run)
    return asked


def test_without_an_archive_there_are_no_options(home: Path) -> None:
    assert archive.archive_options(home) == ""


def test_it_is_made_once_and_again_when_spark_is_newer(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = trained(monkeypatch, makes=True)
    said: list[str] = []
    assert archive.ensure_archive(home=home, say=said.append)
    assert archive.ensure_archive(home=home, say=said.append)
    assert len(asked) == len(said) == 1
    path = archive.archive_path(home)
    assert archive.archive_options(home).startswith(f'"-XX:SharedArchiveFile={path}" ')
    os.utime(path, (0, 0))
    assert archive.ensure_archive(home=home, say=said.append)
    assert len(asked) == 2


def test_where_it_cannot_be_made_spark_starts_as_ever(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trained(monkeypatch, makes=False)
    said: list[str] = []
    assert not archive.ensure_archive(home=home, say=said.append)
    assert said[-1].endswith("Spark starts as slowly as ever: first | no room")
    assert archive.archive_options(home) == ""
    assert not list((home / "jars").iterdir())
