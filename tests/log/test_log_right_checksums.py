"""Files of a log with a right checksum that say what cannot be: each counts as damaged, and that is all."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from crc32c import crc32c

from fix_log import SMALL, build
from headrace.broker.replicas import high_watermarks
from headrace.log.check import check_partition
from headrace.log.errors import LogError
from headrace.log.partition import PartitionLog
from headrace.log.set_aside import set_aside
from headrace.log.snapshot import take

NESTED = b"[" * 100_000
ODD: list[Any] = [True, 1.5, -5, "7", None, [], {}, [[]], [[1]], {"a": 1}, float("inf"), [[9, 0, 10**40, []]]]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "made" / "t-0"
    build(made, [100] * 12, clean=True)
    (made / "partition.json").write_text('{"topic_id": "00000000-0000-0000-0000-000000000001"}')
    return made


def sealed(body: bytes) -> bytes:
    return b"%08x\n" % crc32c(body) + body


def read_by_all(folder: Path) -> None:
    """By the broker, an administrator's commands and a backup: each says what it thinks of it."""
    commands: list[Callable[[Path], object]] = [
        check_partition,
        lambda path: take(path, None),
        lambda path: PartitionLog(path, SMALL).close(),
        set_aside,
    ]
    for number, command in enumerate(commands):
        copied = folder.parent / f"{number}" / folder.name
        shutil.rmtree(copied.parent, ignore_errors=True)
        shutil.copytree(folder, copied)
        try:
            command(copied)
        except (LogError, OSError) as error:
            assert str(error)


@pytest.mark.parametrize(
    "name", ["recovery_point", "saved_ms", "producers", "epochs", "max_timestamps_ms", "begun"]
)
def test_a_checkpoint_that_cannot_be(folder: Path, name: str) -> None:
    path = folder / "checkpoint"
    values = json.loads(path.read_bytes().partition(b"\n")[2])
    for odd in ODD:
        path.write_bytes(sealed(json.dumps(values | {name: odd}).encode()))
        read_by_all(folder)
    path.write_bytes(sealed(NESTED))
    read_by_all(folder)


@pytest.mark.parametrize("name", ["base", "end", "first_crc", "max_timestamp_ms"])
def test_an_index_that_cannot_be(folder: Path, name: str) -> None:
    path = min(folder.glob("*.index"))
    line, _, starts = path.read_bytes().partition(b"\n")[2].partition(b"\n")
    for odd in ODD:
        head = json.dumps(json.loads(line) | {name: odd}).encode()
        path.write_bytes(sealed(head + b"\n" + starts))
        read_by_all(folder)
    path.write_bytes(sealed(NESTED + b"\n" + starts))
    read_by_all(folder)


@pytest.mark.parametrize("body", [NESTED, b'[["t", 0, "a", 0, 0]]', b'[["t", 1e400, 0, 0, 0]]', b"7", b"[7]"])
def test_high_watermarks_that_cannot_be(tmp_path: Path, body: bytes) -> None:
    (tmp_path / high_watermarks.FILE_NAME).write_bytes(sealed(body))
    assert high_watermarks.load(tmp_path) == {}
