"""An audit topic that is read again from its start changes no verdict: what a recount took back stays so."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fix_audit_world import (
    BEAT_MS,
    BUCKET_MS,
    DC,
    HOUR_A,
    NOW_MS,
    TOPIC,
    Batch,
    PartitionBytes,
    everything_reported,
    received,
)
from headrace.audit.findings import Status, Verdict
from headrace.audit.report.report import report
from headrace.audit.store import upkeep
from headrace.audit.store.store import AuditStore
from headrace.audit.topic.logs_read import LastRead, LogsRead
from headrace.audit.topic.records import (
    DATACENTER_TIER,
    CorruptRecord,
    GapRecord,
    HeartbeatRecord,
    PartitionPosition,
    ReceivedRecord,
)
from headrace.audit.topic.recounts import RecountRecord

LOG_OF_REPORTS = ("_audit", 0)
OLD, NEW = "00000000-0000-0000-0000-000000000001", "00000000-0000-0000-0000-000000000002"
BATCHES = [Batch(0, 7, 0, index * 10, 10, HOUR_A + index * BUCKET_MS) for index in range(6)]
LOG = PartitionBytes()
for each_batch in BATCHES:
    LOG.append(each_batch.encode())
CUT = PartitionBytes()
for each_batch in BATCHES[:4]:
    CUT.append(each_batch.encode())
OTHER = PartitionBytes(bytearray(CUT.data), list(CUT.cuts))
OTHER.append(Batch(0, 9, 0, 0, 40, HOUR_A).encode())
RECOUNT = RecountRecord(DATACENTER_TIER, DC, TOPIC, 0, 0, LOG.cuts[3], LOG.end, "the log ends at 804")
GAP = GapRecord(DATACENTER_TIER, DC, TOPIC, 0, LOG.cuts[4], LOG.end, "retention deleted them")
PLACE = (DATACENTER_TIER, DC, TOPIC, 0, 0, LOG.cuts[3], LOG.end)
ROT = CorruptRecord(*PLACE, "its checksum is wrong", None, HOUR_A, HOUR_A, -1, -1, -1, -1, in_tally=True)


def records(now: PartitionBytes) -> list[ReceivedRecord]:
    """A log is counted, partly as damaged; it goes back; what it holds now is counted."""
    position = PartitionPosition(DC, TOPIC, 0, 0, now.end, now.end)
    before = everything_reported(BATCHES, {0: LOG})
    again = (
        RECOUNT,
        now.tally(DATACENTER_TIER, 0, 3, len(now.cuts) - 1),
        HeartbeatRecord(DATACENTER_TIER, BEAT_MS + 9, 0, 1, (position,)),
    )
    told = [*before, *(received(each, time_ms=BEAT_MS + 1) for each in (GAP, ROT))]
    told += [received(each, time_ms=BEAT_MS + 2 + number) for number, each in enumerate(again)]
    return [each._replace(log=LOG_OF_REPORTS) for each in told]


def judged(store: AuditStore) -> tuple[Verdict, ...]:
    return report(store, TOPIC, now_ms=NOW_MS).verdicts


@pytest.mark.parametrize("at_once", [True, False])
@pytest.mark.parametrize("is_merged", [False, True])
@pytest.mark.parametrize("now", [CUT, LOG, OTHER], ids=["cut", "as it was", "grown again"])
@pytest.mark.parametrize("cause", ["made again", "restarted"])
def test_what_was_taken_back_is_not_believed_again(
    cause: str, now: PartitionBytes, is_merged: bool, at_once: bool
) -> None:
    told = records(now)
    last = {LOG_OF_REPORTS: LastRead(OLD, 900, "9")}
    again = LogsRead({LOG_OF_REPORTS: LastRead(NEW, 900, "9")})
    if cause == "restarted":
        again = LogsRead(last, restarted=(LOG_OF_REPORTS,))
    store = AuditStore("sqlite://")
    store.fold(told, logs=LogsRead(last))
    if is_merged:
        assert upkeep.merge(store, NOW_MS) >= 0
    first = judged(store)
    assert first[0].status is (Status.COMPLETE if now is LOG else Status.LOST)
    if at_once:
        store.fold(told, logs=again)
        assert judged(store) == first
    for number, each in enumerate(told if not at_once else ()):
        store.fold([each], logs=again if not number else LogsRead(again.last))
        assert judged(store) == first, each
    with store.reading() as connection:
        assert connection.exec_driver_sql("select count(*) from awaited").scalar() == 0
    store.close()


def test_what_is_counted_later_counts_although_no_recount_comes_again() -> None:
    """The topic is not a copy: nothing of the deleted one is in the present one."""
    told = records(CUT)
    store = AuditStore("sqlite://")
    store.fold(told, logs=LogsRead({LOG_OF_REPORTS: LastRead(OLD, 900, "9")}))
    counted_since = received(LOG.tally(DATACENTER_TIER, 0, 4, 6), time_ms=BEAT_MS + 60_000)
    store.fold([counted_since], logs=LogsRead({LOG_OF_REPORTS: LastRead(NEW, 9, "1")}))
    assert judged(store)[0].counts.datacenter == 60
    assert [each.status for each in judged(store)[0].findings if each.status is Status.LOST] == []
    store.fold([counted_since, *(replace_time(each) for each in told if each.record is RECOUNT)])
    assert judged(store)[0].counts.datacenter == 30
    store.close()


def replace_time(record: ReceivedRecord) -> ReceivedRecord:
    return record._replace(record=replace(RECOUNT, cause="once more"), time_ms=BEAT_MS + 70_000)
