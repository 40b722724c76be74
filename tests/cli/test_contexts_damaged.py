"""Contexts that cannot be read, and folders that hold no site: each is named, and the others are shown."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fix_cli import Headrace, command_runner
from headrace.cli.errors import ExitCode
from headrace.site.context import context_of
from headrace.site.context_store import ContextStore
from headrace.site.site import SITE_FILE_NAME, Site


@pytest.fixture
def home(empty_home: Path) -> Path:
    return empty_home


@pytest.fixture
def headrace(home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Headrace:
    return command_runner(monkeypatch, capsys)


@pytest.mark.parametrize("content", ["", "{", '{"format": 2}', "[]", '"\udcff"'])
def test_a_context_that_is_damaged_is_listed_beside_the_others(
    headrace: Headrace, home: Path, content: str
) -> None:
    """`context list` ended with an error for the first of them, and showed none."""
    store = ContextStore(home)
    for name in ("far", "near"):
        store.save(context_of(Site.one_machine(home), name))
    damaged = home / "contexts" / "far.json"
    damaged.write_bytes(content.encode(errors="surrogateescape"))
    listed = headrace("context", "list", "--json")
    assert listed.exit_code == ExitCode.DONE
    rows = {row["context"]: row for row in listed.json}
    assert set(rows) == {"site", "far", "near"}
    assert str(damaged) in rows["far"]["problem"] and "Import it again" in rows["far"]["problem"]
    assert rows["near"]["problem"] is None and rows["near"]["datacenters"] == rows["site"]["datacenters"]
    shown = headrace("context", "list")
    assert shown.exit_code == ExitCode.DONE and "near" in shown.out
    assert str(damaged) in "".join(shown.err.split("\n")) and "Import it again" in " ".join(shown.err.split())


def test_a_site_that_is_damaged_is_listed_beside_the_others(headrace: Headrace, home: Path) -> None:
    ContextStore(home).save(context_of(Site.one_machine(home), "near"))
    (home / SITE_FILE_NAME).write_text("datacenters: 7\n")
    rows = {row["context"]: row for row in headrace("context", "list", "--json").json}
    assert str(home / SITE_FILE_NAME) in rows["site"]["problem"] and rows["near"]["problem"] is None


def test_a_folder_without_a_site_is_refused(headrace: Headrace, home: Path, tmp_path: Path) -> None:
    """It was imported as if it had a site of all defaults."""
    empty = tmp_path / "empty"
    empty.mkdir()
    ended = headrace("context", "import", "far", "--site", str(empty))
    assert ended.exit_code == ExitCode.USAGE
    assert f"{empty} is neither a {SITE_FILE_NAME} nor a home that has one" in " ".join(ended.err.split())
    assert json.loads(headrace("context", "list", "--json").out)[0]["context"] == "site"


def test_a_file_without_an_end_is_not_read_to_its_end(headrace: Headrace) -> None:
    """A pipe, or a device, took all memory."""
    ended = headrace("context", "import", "far", "/dev/zero")
    assert ended.exit_code == ExitCode.USAGE
    assert "/dev/zero has more than 16777216 characters" in " ".join(ended.err.split())
