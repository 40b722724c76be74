"""The disk of one broker is dead: everything else is backed up."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fix_bad_sector import dead_disk
from fix_log import build
from headrace.backup.taking import Options, take
from headrace.site.site import Site


def test_a_dead_disk_ends_no_backup_of_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "home"
    for number in (1, 2):
        log = home / "data" / "east" / f"broker-{number}" / "clicks-0"
        log.mkdir(parents=True)
        (log / "partition.json").write_text(json.dumps({"topic_id": "an id"}))
        build(log, [100] * 2, clean=True)
    dead = home / "data" / "east" / "broker-1"
    dead_disk(monkeypatch, dead)
    taken = take(Site.load(home), tmp_path / "shelf", Options(hdfs="none"))
    assert f"east-broker-1: its data cannot be read: {dead}: Input/output error" in taken.manifest.problems
    brokers = [piece.name for piece in taken.manifest.pieces if piece.kind == "broker"]
    assert brokers == ["east-broker-2"]
