"""A proof vouches for no row of a load of which the audit has not heard, however old the hour is."""

import contextlib
from pathlib import Path

import pytest

from fix_audit_world import (
    DC,
    HOUR_A,
    TOPIC,
    Batch,
    PartitionBytes,
    everything_reported,
    load_of,
)
from fix_memory_hdfs import MemoryHdfs
from fix_parquet import parquet_of
from headrace.airflow.proofs import FORGOTTEN, proofs_of, undecided
from headrace.audit.store import upkeep
from headrace.audit.store.store import AuditStore
from headrace.process.clock import now_ms
from headrace.warehouse.commitlog import CommitLog
from headrace.warehouse.layout import TopicPaths
from headrace.warehouse.manifest import DataFile, HourCount, LoadedRange, Manifest
from headrace.warehouse.seal import NotSealedError, seal_in

HOUR = "2015-05-17T11:00:00"
PATHS = TopicPaths("/data", TOPIC)


def load(log: CommitLog, rows: int) -> None:
    sequence, data = log.state().next_sequence, parquet_of(rows)
    staged = f"{PATHS.staged(f'c{sequence}')}/0"
    log.hdfs.write(staged, data)
    file = DataFile(PATHS.data_file(HOUR_A, sequence, 0), staged, HOUR_A, rows, len(data), 7)
    loaded = LoadedRange(0, sequence * 100, sequence * 100 + 100, (HourCount(HOUR_A, rows, rows),))
    made = Manifest(sequence, "load", TOPIC, f"c{sequence}", 0, "w", (loaded,), files=(file,))
    log.complete(log.commit(made.change_id, lambda _: made), None)


def test_rows_of_a_load_that_the_audit_has_not_heard_of_are_not_sealed(tmp_path: Path) -> None:
    """Of an hour of long ago they were taken for rows that it had forgotten; nobody looked for what was lost
    beside them.
    """
    url, log = f"sqlite:///{tmp_path}/audit.db", CommitLog(MemoryHdfs(), PATHS)
    batches = [Batch(0, 7, 0, first, 10, HOUR_A) for first in range(0, 100, 10)]
    bytes_of = PartitionBytes()
    for batch in batches:
        bytes_of.append(batch.encode())
    store = AuditStore(url)
    with contextlib.closing(store):
        store.fold(everything_reported(batches, {0: bytes_of}, load=load_of({0: bytes_of}, sequence=0)))
    load(log, 100)

    def proof() -> dict[str, object]:
        (found,) = proofs_of(url, TOPIC, [HOUR])
        assert found.status == "complete" and DC in found.proof_document["counts"]
        return dict(found.proof_document)

    assert seal_in(log, {HOUR_A: proof()})[HOUR_A].rows == 100
    # A backfill brings late rows, and the auditor that folds the reports is behind.
    load(log, 20)
    with pytest.raises(
        NotSealedError, match="the loads counted 120 rows of this hour, and the proof says 100"
    ):
        seal_in(log, {HOUR_A: proof()})


def test_an_hour_that_lost_events_is_not_sealed_once_the_audit_has_forgotten_it(tmp_path: Path) -> None:
    """After 30 days, by default: it was complete then, with no event at all, and sealed with all its rows."""
    url, log = f"sqlite:///{tmp_path}/audit.db", CommitLog(MemoryHdfs(), PATHS)
    batches = [Batch(0, 7, 0, first, 10, HOUR_A) for first in range(0, 100, 10)]
    bytes_of = PartitionBytes()
    for batch in batches[2:]:
        bytes_of.append(batch.encode())
    with contextlib.closing(AuditStore(url)) as store:
        store.fold(everything_reported(batches, {0: bytes_of}, load=load_of({0: bytes_of}, sequence=0)))
        load(log, 80)
        assert [each.status for each in proofs_of(url, TOPIC, [HOUR])] == ["lost"]
        assert upkeep.forget(store, now_ms()) == 1
    (proof,) = proofs_of(url, TOPIC, [HOUR])
    with pytest.raises(NotSealedError, match="the loads counted 80 rows of this hour, and the proof says 0"):
        seal_in(log, {HOUR_A: proof.proof_document})


@pytest.mark.parametrize("had_seal", [False, True])
def test_a_late_event_proves_nothing_of_an_hour_that_the_audit_has_forgotten(
    tmp_path: Path, had_seal: bool
) -> None:
    """One that had lost all of its events, and was never sealed, was complete by one late event."""
    url, log = f"sqlite:///{tmp_path}/audit.db", CommitLog(MemoryHdfs(), PATHS)
    first, late = (Batch(0, 7, 0, number, 10, HOUR_A) for number in (0, 10))
    if had_seal:
        load(log, 10)
        seal_in(log, {HOUR_A: {"counts": {"west": {"warehouse": 10}}, "judged_ms": HOUR_A}})
    with contextlib.closing(AuditStore(url)) as store:
        store.fold(everything_reported([first], {0: PartitionBytes()}))
        assert upkeep.forget(store, now_ms()) >= 1
        bytes_of = PartitionBytes()
        bytes_of.append(late.encode())
        store.fold(everything_reported([late], {0: bytes_of}, load=load_of({0: bytes_of}, sequence=1)))
    load(log, 10)
    (proof,) = proofs_of(url, TOPIC, [HOUR])
    assert (proof.status, proof.may_be_sealed(1.0)) == (FORGOTTEN, False), proof
    assert "the audit has forgotten what it had before" in proof.problem_text and not undecided([proof])
    if had_seal:
        assert seal_in(log, {HOUR_A: proof.proof_document})[HOUR_A].rows == 20
    else:
        with pytest.raises(NotSealedError, match="and no seal vouches for that"):
            seal_in(log, {HOUR_A: proof.proof_document})
