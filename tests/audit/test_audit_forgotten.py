"""Hours that the store has forgotten: they are neither complete nor lost, and nothing of them is double."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from fix_audit_world import (
    BEAT_MS,
    DC,
    HOUR_A,
    NOW_MS,
    REPORTED_MS,
    TOPIC,
    Batch,
    PartitionBytes,
    everything_reported,
    load_of,
    received,
)
from headrace.audit.report.remedies import command_of
from headrace.audit.report.report import Report, is_complete, report
from headrace.audit.store import forgotten, measured_tables
from headrace.audit.store.store import AuditStore
from headrace.audit.store.upkeep import forget
from headrace.audit.times import HOUR_MS
from headrace.audit.topic.records import ANALYSIS_TIER
from headrace.audit.topic.recounts import RecountRecord

BATCHES = [Batch(0, 7, 0, index * 10, 10, HOUR_A + hour * HOUR_MS) for index, hour in enumerate((0, 0, 2, 2))]
LOG = PartitionBytes()
for each_batch in BATCHES:
    LOG.append(each_batch.encode())
LOGS = {0: LOG}
LATER_MS = NOW_MS + HOUR_MS


@pytest.fixture
def store(tmp_path: Path) -> Iterator[AuditStore]:
    store = AuditStore(f"sqlite:///{tmp_path}/audit.db")
    yield store
    store.close()


def judged(store: AuditStore) -> Report:
    return report(store, TOPIC, now_ms=LATER_MS)


def test_an_hour_that_is_forgotten_is_not_complete_for_that(store: AuditStore) -> None:
    """Who waited for such an hour, with a sensor of a DAG, got the proof that it was complete: no event of it
    was known.
    """
    lost = PartitionBytes()
    for batch in BATCHES[1:]:
        lost.append(batch.encode())
    store.fold(everything_reported(BATCHES, {0: lost}))
    assert not is_complete(store, TOPIC, HOUR_A, now_ms=LATER_MS).complete
    assert forget(store, REPORTED_MS + 1) == 2
    proof = is_complete(store, TOPIC, HOUR_A, now_ms=LATER_MS)
    assert not proof.complete
    (problem,) = proof.problems
    assert problem == (
        "page-view, west, 2015-05-17 11:00: the audit has forgotten this hour: nobody had reported on it "
        "for as long as it keeps hours"
    )
    # In the hour between nothing happened, which is still known.
    assert is_complete(store, TOPIC, HOUR_A + HOUR_MS, now_ms=LATER_MS).complete


def test_what_is_loaded_after_its_hour_is_forgotten_is_not_called_double(store: AuditStore) -> None:
    """The first load of an old topic: each hour of more than 30 days ago was called duplicated, for good."""
    store.fold(everything_reported(BATCHES, LOGS)[:-1])
    forget(store, REPORTED_MS + 1)
    store.fold([received(load_of(LOGS), time_ms=BEAT_MS + 1)])
    found = judged(store).verdicts
    assert [(each.hour_ms, str(each.status)) for each in found] == [
        (HOUR_A, "unknown"),
        (HOUR_A + 2 * HOUR_MS, "unknown"),
    ]
    (finding,) = found[0].findings
    assert command_of(found[0], finding) == "", "no load brings what it knew"
    assert finding.text.endswith(
        "were written by loads although the log does not hold them; or the audit has forgotten this hour: "
        "nobody had reported on it for as long as it keeps hours"
    )


def test_what_is_counted_again_after_its_hour_is_forgotten_is_not_called_lost(store: AuditStore) -> None:
    """A copy that was made again is counted again. What loads had written was forgotten."""
    store.fold(everything_reported(BATCHES, LOGS))
    forget(store, REPORTED_MS + 1)
    again = RecountRecord(ANALYSIS_TIER, DC, TOPIC, 0, 0, 0, LOG.end, "somebody cut the file")
    tally = LOG.tally(ANALYSIS_TIER, 0, 0, len(LOG.cuts) - 1)
    store.fold([received(record, time_ms=BEAT_MS + 1) for record in (again, tally)])
    assert {str(each.status) for each in judged(store).verdicts} == {"unknown"}


def test_ranges_of_forgotten_hours_are_joined_and_bounded(
    store: AuditStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forgotten, "RANGES_MAX", 3)
    numbers = [0, 2, 4, 5, 9, 12, 13]
    for some in (numbers[:4], numbers[3:], []):
        with store.writing() as connection:
            forgotten.note_forgotten(connection, [(TOPIC, DC, HOUR_A + each * HOUR_MS) for each in some])
    with store.reading() as connection:
        rows = connection.execute(measured_tables.forgotten.select()).all()
        known = forgotten.ForgottenHours(connection, TOPIC)
    assert [((row.from_ms - HOUR_A) // HOUR_MS, (row.to_ms - HOUR_A) // HOUR_MS) for row in rows] == [
        (0, 6),
        (9, 10),
        (12, 14),
    ]
    assert all(known.has(DC, HOUR_A + each * HOUR_MS) for each in numbers)
    others = [known.has(DC, HOUR_A + each * HOUR_MS) for each in (-1, 6, 11, 14)]
    assert not any(others) and not known.has("east", HOUR_A)


def test_events_of_the_far_future_do_not_make_todays_hours_forgotten(
    store: AuditStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Anybody may send some: the oldest range then reached from the topic's first hour into the future."""
    monkeypatch.setattr(forgotten, "RANGES_MAX", 3)
    years = 365 * 24
    for some in ([0, 1, 2], [40 * years + 2 * each for each in range(5)]):
        with store.writing() as connection:
            forgotten.note_forgotten(connection, [(TOPIC, DC, HOUR_A + each * HOUR_MS) for each in some])
    with store.reading() as connection:
        known = forgotten.ForgottenHours(connection, TOPIC)
    assert known.has(DC, HOUR_A) and known.has(DC, HOUR_A + 2 * HOUR_MS)
    assert not any(known.has(DC, HOUR_A + each * HOUR_MS) for each in (3, years, 39 * years))
