"""A home is restored whole or not at all: by two commands at once, and when one is killed at its end."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from fix_cli import command_runner
from fix_log import build
from headrace.agent.errors import AgentStateError
from headrace.agent.home import check_restored
from headrace.backup import crash, manifest
from headrace.backup.errors import DamagedBackupError, HalfBackupError
from headrace.backup.manifest import Manifest, Piece
from headrace.backup.pace import Pace
from headrace.backup.restoring import restore
from headrace.backup.writer import Writer
from headrace.fleet.home_lock import LOCK, locked
from headrace.site.errors import SiteError

BROKER = "east-broker-1"
DATA = "data/east/broker-1"
SITE_TEXT = "block: 3\n"


class Killed(BaseException):
    """The process ends here."""


@pytest.fixture
def backup(tmp_path: Path) -> Path:
    """Of a broker with one log, and of the home's own files."""
    log = tmp_path / "made" / "topic-0"
    log.mkdir(parents=True)
    (log / "partition.json").write_text(json.dumps({"topic_id": "an id"}))
    build(log, [100] * 12, clean=True)
    folder = tmp_path / "backup"
    folder.mkdir()
    with Writer(folder, [], Pace()) as writer:
        for path in sorted(log.iterdir()):
            writer.copy(f"{BROKER}/topic-0/{path.name}", path)
        writer.put("home/site.yaml", SITE_TEXT.encode())
        writer.put("home/agent/token", b"a token")
        files = tuple(writer.files.values())
    facts = {"partitions": {"topic-0": {"topic_id": "an id"}}}
    pieces = (
        Piece(BROKER, "broker", "east", DATA, facts),
        Piece("home", manifest.HOME, "", "home", {}),
    )
    manifest.save(folder, Manifest(1, 2, "/srv/home", "host", {}, {BROKER: {}}, pieces, files))
    return folder


def files_of(home: Path) -> dict[str, bytes]:
    """What a home holds, without the lock that commands leave."""
    paths = [path for path in home.rglob("*") if path.is_file() and path.name != LOCK]
    return {str(path.relative_to(home)): path.read_bytes() for path in paths}


@pytest.fixture
def whole(backup: Path, tmp_path: Path) -> dict[str, bytes]:
    """What a restored home holds."""
    home = tmp_path / "whole"
    restore(backup, home)
    found = files_of(home)
    assert found["site.yaml"] == SITE_TEXT.encode() and any(path.startswith(DATA) for path in found)
    return found


def test_a_second_restore_leaves_the_first_one_alone(
    backup: Path, tmp_path: Path, whole: dict[str, bytes]
) -> None:
    """As when an operator's connection broke, and the command that goes on is repeated."""
    home = tmp_path / "home"
    refused: list[str] = []

    def observe(line: str) -> None:
        with pytest.raises(SiteError) as caught:
            restore(backup, home)
        refused.append(str(caught.value))

    restore(backup, home, observe=observe)
    assert refused and all(f"is running in {home}; wait until it has ended" in text for text in refused)
    assert files_of(home) == whole


@pytest.mark.parametrize("rotten", ["blocl: 3\n", "block: 3", "block: 3\nmore: 1\n"])
def test_a_file_that_rots_after_it_was_checked_is_not_restored(
    backup: Path, tmp_path: Path, rotten: str, whole: dict[str, bytes]
) -> None:
    """All digests are checked first, which takes hours: what is copied then is another read."""
    home, site = tmp_path / "home", backup / "home" / "site.yaml"

    def observe(line: str) -> None:
        if line == f"copying {BROKER}":
            site.write_text(rotten)

    with pytest.raises(DamagedBackupError, match=r"'home/site.yaml': .*Nothing was restored"):
        restore(backup, home, observe=observe)
    assert not (home / "site.yaml").exists() and not (home / "data").exists()
    site.write_text(SITE_TEXT)
    restore(backup, home)
    assert files_of(home) == whole


def test_a_home_in_which_its_hdfs_cannot_start_is_refused_at_once(backup: Path, tmp_path: Path) -> None:
    made = manifest.load(backup)
    hdfs = Piece("analysis-hdfs", "hdfs", "analysis", "data/analysis/hdfs", {})
    manifest.save(backup, dataclasses.replace(made, pieces=(*made.pieces, hdfs)))
    home = tmp_path / "with space"
    with pytest.raises(SiteError, match=r"the home, .*with space.* has a space .*restore --into a folder"):
        restore(backup, home)
    assert not home.exists()


def test_the_folder_that_holds_the_backups_is_told_from_half_a_backup(backup: Path, tmp_path: Path) -> None:
    shelf = tmp_path / "shelf"
    shelf.mkdir()
    for name in ("2026-11-22T025630Z", "2026-11-23T025646Z"):
        shutil.copytree(backup, shelf / name)
    with pytest.raises(HalfBackupError, match=r"folder of backups: name one .*/2026-11-23T025646Z$"):
        restore(shelf, tmp_path / "home")
    assert not (tmp_path / "home").exists()


@pytest.mark.parametrize(
    ("listen", "next_step"),
    [
        ("127.4.0.11:9092", "`headrace up` starts what the site describes"),
        ("10.0.0.5:9092", f"does not describe {BROKER}: start the agent of this home, and `terraform apply`"),
    ],
)
def test_a_restore_says_what_starts_the_units_again(
    backup: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    listen: str,
    next_step: str,
) -> None:
    """`headrace up` would start empty brokers at other addresses in a home of Terraform's."""
    configurations = {BROKER: {"kind": "broker", "listen": listen}}
    manifest.save(backup, dataclasses.replace(manifest.load(backup), configurations=configurations))
    done = command_runner(monkeypatch, capsys)("restore", backup, "--into", tmp_path / "home")
    assert done.exit_code == 0 and next_step in done.out, done
    assert ("`headrace up` starts" in done.out) == (listen == "127.4.0.11:9092")


def test_no_other_command_starts_a_home_that_is_restored(backup: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    with locked(home), pytest.raises(SiteError, match="is running in"):
        restore(backup, home)
    assert not (home / "restoring").exists()
    assert (home / LOCK).stat().st_mode & 0o077 == 0


@contextmanager
def killed_before(number: int) -> Iterator[list[str]]:
    """Ends the process before its `number`th change of a name."""
    done: list[str] = []

    def counted(name: str) -> Callable[..., Any]:
        call = getattr(os, name)

        def change(*arguments: Any, **options: Any) -> Any:
            if len(done) == number:
                raise Killed
            done.append(name)
            return call(*arguments, **options)

        return change

    with pytest.MonkeyPatch.context() as patch:
        for name in ("rename", "unlink", "rmdir", "mkdir"):
            patch.setattr(os, name, counted(name))
        yield done


def test_a_restore_that_is_killed_anywhere_at_its_end_is_whole_or_half(
    backup: Path, tmp_path: Path, whole: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    complete = tmp_path / "complete"

    def stop(step: str) -> None:
        if step == "restore-complete":
            raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(crash, "reached", stop)
        with pytest.raises(Killed):
            restore(backup, complete)
    kills = 0
    while True:
        home = tmp_path / f"home-{kills}"
        shutil.copytree(complete, home)
        try:
            with killed_before(kills):
                restore(backup, home)
            break
        except Killed:
            kills += 1
        try:
            check_restored(home)
        except AgentStateError:
            restore(backup, home)  # as the message says
        check_restored(home)
        restored = {path: data for path, data in files_of(home).items() if not path.startswith(".restored-")}
        assert restored == whole, f"killed before change {kills - 1}"
    assert kills > 5
