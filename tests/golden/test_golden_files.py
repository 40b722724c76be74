"""What a site once stored is read by today's code: manifest, seal, checkpoint, audit records.

All of it was written by one run of `make demo` on 2026-11-22; `checkpoint-2` by a broker on the same day, the
journal by the code of 2026-11-28.
"""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import fastavro
import pytest

from headrace.audit.topic.decoding import _READERS
from headrace.audit.topic.records import ProducerReport
from headrace.events.journal_replay import replay
from headrace.log import checkpoint
from headrace.log.errors import OldLogFormatError
from headrace.registry import framing
from headrace.warehouse.manifest import Manifest, TableState
from headrace.warehouse.seal import Seal

HERE = Path(__file__).parent
RECORDS = json.loads((HERE / "audit-records.json").read_text())


def test_a_manifest() -> None:
    stored = (HERE / "manifest-load.json").read_bytes()
    manifest = Manifest.from_json(stored, "manifest-load.json")
    assert (manifest.kind, manifest.sequence, manifest.rows) == ("load", 0, 20_000)
    assert sum(manifest.hours().values()) == 20_000
    assert sorted(TableState().after(manifest).ends) == [0, 1, 2, 3, 4, 5]
    assert manifest.to_json() == stored


def test_a_manifest_of_a_move() -> None:
    """Of a table in memory, after the code that first wrote it: format 2, which older versions refuse."""
    stored = (HERE / "manifest-move.json").read_bytes()
    manifest = Manifest.from_json(stored, "manifest-move.json")
    assert (manifest.kind, manifest.sequence, manifest.rows) == ("move", 1, 20)
    assert [file.staged for file in manifest.files] == list(manifest.removed)
    assert manifest.files[0].path.endswith("/hourly/dt=2026-11-20/hour=22/00000000000000000000-00000.parquet")
    assert json.loads(stored)["format"] == 2
    assert manifest.to_json() == stored


def test_a_seal() -> None:
    stored = (HERE / "seal.json").read_bytes()
    seal = Seal.from_json(stored, "seal.json")
    assert (seal.topic, seal.rows, seal.version) == ("page-view", 6_223, 1)
    assert seal.proof["complete"] is True
    assert seal.to_json() == stored


def test_a_checkpoint_of_the_first_format_is_refused() -> None:
    """Its log has other offsets: see docs/decisions/0001."""
    with pytest.raises(OldLogFormatError, match="checkpoint: format 1: an older headrace wrote this log"):
        checkpoint.decode((HERE / "checkpoint").read_bytes())


def test_a_checkpoint() -> None:
    stored = (HERE / "checkpoint-2").read_bytes()
    read = checkpoint.decode(stored)
    assert read is not None
    assert read.recovery_point == 372_285
    assert [producer_id for producer_id, _ in read.producers] == [0, 1000]
    assert checkpoint.encode(read) == stored


def test_a_publishers_journal() -> None:
    """Of 2026-11-28, of a publisher that died; journals did not tell which report arrived yet."""
    dead = replay(HERE / "publisher.journal", (HERE / "publisher.journal").read_bytes())
    assert (dead.description["service"], dead.report_number, dead.is_whole) == ("checkout", 2, True)
    assert dead.arrived is None
    (tally,) = dead.counts.changed(closing=True)
    assert (tally.topic, tally.handed_over_count) == ("page-view", 3)
    assert [each[:5] for each in tally.ranges] == [(1, 7, 0, 0, 1)]


# Fields that records got after the golden ones were stored, with their defaults.
POSITION_LATER = {
    "topic_id": "",
    "last_address": -1,
    "last_crc": -1,
    "last_epoch": -1,
    "source_topic_id": "",
    "content_from": -1,
    "content": None,
}
NAME_THEIR_TOPIC = ("RangeTally", "Gap", "Corrupt", "Recount", "Load")


@pytest.mark.parametrize("stored", RECORDS, ids=lambda stored: str(stored["record"]))
def test_an_audit_record(stored: dict[str, Any]) -> None:
    _, body = framing.split(bytes.fromhex(stored["value"]))
    data = fastavro.schemaless_reader(io.BytesIO(body), stored["writer_schema"], None)
    assert isinstance(data, dict)
    record = _READERS[f"headrace.audit.{stored['record']}"](data)
    del data["header"]
    if stored["record"] in NAME_THEIR_TOPIC:
        data.setdefault("topic_id", "")
    for position in data.get("positions", ()):
        for name, default in POSITION_LATER.items():
            position.setdefault(name, default)
    for loaded in data.get("partitions", ()):
        loaded.setdefault("from_source", False)
        loaded.setdefault("begins_at", -1)
    hours = (hour for loaded in data.get("partitions", ()) for hour in loaded["hours"])
    for counted in (*data.get("spans", ()), *hours):
        counted.setdefault("content", None)
    if isinstance(record, ProducerReport):  # this one is written by `events`, and only read here
        handed_over = [tally[3] for tally in record.tallies]
        assert handed_over == [each["handed_over_count"] for each in data["tallies"]]
    else:
        assert record.to_avro() == data
