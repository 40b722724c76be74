"""Audit records that a stranger wrote: set aside with a count and an address, while folding goes on."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import select
from sqlalchemy.exc import OperationalError

from fix_audit_world import (
    DC,
    HOUR_A,
    NOW_MS,
    Batch,
    everything_reported,
    received,
)
from fix_possible_records import BEAT, CORRUPT, GAP, GOOD, HANDED, LOAD, LOADED, POSITION, REPORT, SPAN, TALLY
from headrace.audit.fold_loop import FoldLoop
from headrace.audit.report.report import report
from headrace.audit.store import tables
from headrace.audit.store.cover import Candidate, choose
from headrace.audit.store.fold import EVER_RANGES_MAX
from headrace.audit.store.place import StorePlace
from headrace.audit.store.store import AuditStore
from headrace.audit.times import FIRST_NAMED_MS, LAST_NAMED_MS, OUTSIDE_MS, OUTSIDE_NAME
from headrace.audit.topic.load_report import LoadedHour, LoadReport
from headrace.audit.topic.possible import ImpossibleRecordError
from headrace.audit.topic.reader import Polled
from headrace.audit.topic.set_aside import SetAside
from headrace.audit.topic.validity import check

IMPOSSIBLE: dict[str, Any] = {
    "from > to": replace(TALLY, from_address=600),
    "negative address": replace(TALLY, from_address=-1),
    "a span outside of its range": replace(TALLY, to_address=400),
    "more records than bytes": replace(TALLY, spans=(SPAN._replace(record_count=501, last_sequence=500),)),
    "negative count": replace(TALLY, spans=(SPAN._replace(record_count=-10),)),
    "count against sequences": replace(TALLY, spans=(SPAN._replace(record_count=9),)),
    "sequences backwards": replace(TALLY, spans=(SPAN._replace(first_sequence=9, last_sequence=0),)),
    "anonymous with sequences": replace(TALLY, spans=(SPAN._replace(producer_id=-1),)),
    "bucket of no width": replace(TALLY, bucket_ms=0),
    "line feed in the topic": replace(TALLY, topic="page\nview"),
    "escape in the topic": replace(GAP, topic="\x1b[2Jview"),
    "huge topic": replace(TALLY, topic="x" * 1_000_000),
    "huge datacenter": replace(TALLY, datacenter="x" * 300),
    "another's datacenter": replace(TALLY, datacenter="east"),
    "negative partition": replace(GAP, partition=-1),
    "no such tier": replace(GAP, tier="warehouse"),
    "huge reason": replace(GAP, reason="x" * 20_000),
    "heartbeat of the year 5000": replace(BEAT, beat=95_617_584_000_000),
    "heartbeat part": replace(BEAT, part=1),
    "heartbeat beyond its end": replace(BEAT, positions=(POSITION._replace(counted_to_address=501),)),
    "heartbeat of another": replace(BEAT, positions=(POSITION._replace(datacenter="east"),)),
    "heartbeat of more than one has": replace(BEAT, positions=(POSITION,) * 1_001),
    "huge topic id": replace(TALLY, topic_id="x" * 300),
    "a key that no index takes": replace(GAP, reason="x" * 3_000),
    "huge warehouse": replace(LOAD, warehouse="x" * 3_000),
    "a log that begins nowhere": replace(LOAD, partitions=(LOADED._replace(begins_at=-2),)),
    "corrupt nothing": replace(CORRUPT, to_address=0),
    "corrupt too many": replace(CORRUPT, record_count=91),
    "handed over -1": replace(REPORT, tallies=(HANDED._replace(handed_over_count=-1),)),
    "handed over 2**62": replace(REPORT, tallies=(HANDED._replace(handed_over_count=2**62),)),
    "claims backwards": replace(REPORT, tallies=(HANDED._replace(ranges=((0, 7, 0, 9, 0),)),)),
    "empty publisher": replace(REPORT, publisher=""),
    "control byte in the publisher": replace(REPORT, publisher="a\x00b"),
    "rows -1": replace(LOAD, partitions=(LOADED._replace(hours=(LoadedHour(HOUR_A, -1, 0),)),)),
    "rows 2**63": replace(LOAD, partitions=(LOADED._replace(hours=(LoadedHour(HOUR_A, 2**63, 0),)),)),
    "loaded backwards": replace(LOAD, partitions=(LOADED._replace(from_address=501),)),
    "committed in year 99999": replace(LOAD, committed_ms=3_093_527_980_800_000),
}


@pytest.mark.parametrize("record", GOOD, ids=lambda record: type(record).__name__)
def test_possible_records_are_believed(record: Any) -> None:
    check(received(record), NOW_MS)
    if not isinstance(record, LoadReport):
        check(received(record), NOW_MS, source=DC)


@pytest.mark.parametrize("record", IMPOSSIBLE.values(), ids=IMPOSSIBLE.keys())
def test_impossible_records_are_not(record: Any) -> None:
    with pytest.raises(ImpossibleRecordError) as caught:
        check(received(record), NOW_MS)
    assert len(str(caught.value)) < 400 and str(caught.value).isprintable()


@pytest.mark.parametrize("time_ms", [FIRST_NAMED_MS - 1, LAST_NAMED_MS + 1, 2**62])
def test_headers_of_no_calendar_are_not_believed(time_ms: int) -> None:
    with pytest.raises(ImpossibleRecordError, match="its time is"):
        check(received(TALLY, time_ms=time_ms), NOW_MS)


def test_nobody_speaks_in_another_datacenters_name_where_that_can_be_judged() -> None:
    for record, source in (
        (TALLY, "east"),
        (REPORT, "east"),
        (LOAD, DC),
        (replace(GAP, tier="analysis"), DC),
    ):
        with pytest.raises(ImpossibleRecordError, match="in the log of"):
            check(received(record), NOW_MS, source=source)


# --- the store ---


def test_what_was_set_aside_is_counted_once_and_shown() -> None:
    store = AuditStore("sqlite://")
    position = {("_audit", 0): 100}
    store.fold([], position, [SetAside("_audit", 0, 3, 10, 40, "garbage")])
    store.fold([], position, [SetAside("_audit", 0, 2, 50, 60, "a\x1b[31mworse")])
    assert store.set_aside() == [SetAside("_audit", 0, 5, 10, 60, "a\x1b[31mworse")]
    shown = report(store, now_ms=NOW_MS).to_json()["set_aside"]
    assert [(each["records"], each["first_offset"], each["last_offset"]) for each in shown] == [(5, 10, 60)]
    store.close()


def test_times_that_no_calendar_has_are_reported_under_their_name() -> None:
    store = AuditStore("sqlite://")
    batches = [Batch(0, 7, 0, 0, 10, HOUR_A)]
    store.fold(everything_reported(batches, {}))
    for bucket_ms in (-(2**62), 2**62):
        spans = (SPAN._replace(bucket_start_ms=bucket_ms),)
        store.fold([received(replace(TALLY, spans=spans, from_address=bucket_ms > 0, topic="odd"))])
    (verdict, *_) = report(store, "odd", now_ms=NOW_MS).verdicts
    assert verdict.hour_ms == OUTSIDE_MS and verdict.counts.datacenter > 0
    assert report(store, "odd", now_ms=NOW_MS).to_json()["verdicts"][0]["hour"] == OUTSIDE_NAME
    assert report(store, now_ms=NOW_MS).verdicts
    store.close()


def test_a_record_that_the_store_refuses_does_not_stop_the_others() -> None:
    store = AuditStore("sqlite://")
    loop = FoldLoop(StorePlace("sqlite://"), lambda _positions: pytest.fail("no reader is needed"))
    huge = replace(GAP, from_address=2**70, to_address=2**70)  # no integer column holds it
    loop._fold(store, Polled([received(TALLY), received(huge), received(GAP)], {("_audit", 0): 9}))
    assert store.positions() == {("_audit", 0): 9}
    assert (loop.status()["folded"], loop.status()["refused"]) == (2, 1)
    store.close()


def test_tallies_that_overlap_by_the_hundred_are_compared_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each one was compared with all others: a hundred kB of records took minutes."""
    compared = []

    def counting(candidates: Iterable[Candidate]) -> list[Candidate]:
        compared.append(list(candidates))
        return choose(compared[-1])

    monkeypatch.setattr("headrace.audit.store.fold.choose", counting)
    store = AuditStore("sqlite://")
    starts = [*range(0, 9_000, 30), 20_000, 20_500]
    store.fold([received(replace(TALLY, from_address=at, to_address=at + 900, spans=())) for at in starts])
    assert sorted(len(each) for each in compared) == [2, 300]
    with store.reading() as connection:
        kept = connection.execute(select(tables.tallies.c.from_address).where(tables.tallies.c.chosen)).all()
    assert sorted(row[0] for row in kept) == [*range(0, 9_000, 900), 20_000]
    store.close()


def test_claims_that_never_end_are_refused() -> None:
    """The store keeps all that a tally ever claimed: some MB of records made a row of GB."""
    store = AuditStore("sqlite://")
    loop = FoldLoop(StorePlace("sqlite://"), lambda _positions: pytest.fail("no reader is needed"))
    width = EVER_RANGES_MAX // 2
    reports = []
    for number in range(4):
        ranges = tuple((0, 7, 0, 2 * at, 2 * at) for at in range(number * width, (number + 1) * width))
        reports.append(replace(REPORT, report_number=number, tallies=(HANDED._replace(ranges=ranges),)))
    for number, each in enumerate(reports):
        loop._fold(store, Polled([received(each), received(TALLY)], {("_audit", 0): number + 1}))
    assert store.positions() == {("_audit", 0): 4}
    assert (loop.status()["folded"], loop.status()["refused"]) == (6, 2)
    with store.reading() as connection:
        assert len(json.loads(connection.execute(select(tables.handovers.c.ever)).scalar_one())) == 2 * width
    store.close()


def test_a_store_that_cannot_be_read_ends_neither_loop_nor_counting(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = FoldLoop(StorePlace("sqlite://"), lambda _positions: pytest.fail("the store was never read"))
    tries = []

    def producers(_store: AuditStore) -> set[tuple[str, int]]:
        tries.append(loop.status()["trouble"])
        if len(tries) == 3:
            loop.stop()
        raise OperationalError("select", {}, Exception("disk I/O error"))

    monkeypatch.setattr("headrace.audit.fold_loop.RETRY_PAUSE_S", 0.0)
    monkeypatch.setattr(AuditStore, "producers", producers)
    loop.run()
    assert tries[1:] == ["the audit store: disk I/O error"] * 2
