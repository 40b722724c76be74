"""Events whose bytes were changed under a right checksum: named at the first hop at which they differ."""

from __future__ import annotations

import itertools
import struct
from collections.abc import Mapping, Sequence
from dataclasses import replace

from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from fix_audit_world import (
    BUCKET_MS,
    HOUR_A,
    NOW_MS,
    REPORTED_MS,
    TOPIC,
    WAREHOUSE,
    Batch,
    PartitionBytes,
    everything_reported,
    heartbeat,
    load_of,
    received,
    report_of,
)
from headrace.audit.findings import LOAD_HOP, MIRROR_HOP, PRODUCER_HOP, Finding, Policy, Status
from headrace.audit.report.report import report
from headrace.audit.store.store import AuditStore
from headrace.audit.topic.claimed_ranges import contents_of, merge_ranges
from headrace.audit.topic.load_report import LoadedPartition, LoadReport
from headrace.audit.topic.records import ANALYSIS_TIER, DATACENTER_TIER, HandoverTally, ReceivedRecord
from headrace.audit.verdicts.contents import Held, altered
from headrace.client import BatchIdentity
from headrace.events.handovers import HandoverCounts
from headrace.wire.batch import ATTRIBUTES_AT, CRC_AT, read_header
from headrace.wire.content import content_of, total
from headrace.wire.records import Record, encode_batch


def rewritten(log: PartitionBytes, victim: int) -> PartitionBytes:
    """A copy of `log` in which a byte of batch number `victim` differs, and its checksum is right."""
    copy = PartitionBytes(bytearray(log.data), list(log.cuts))
    at, end = log.cuts[victim], log.cuts[victim + 1]
    copy.data[end - 2] ^= 0x20
    struct.pack_into(">I", copy.data, at + CRC_AT, crc32c(memoryview(copy.data)[at + ATTRIBUTES_AT : end]))
    return copy


def tallies(
    tier: str, logs: dict[int, PartitionBytes], cuts: Mapping[int, Sequence[int]] | None = None
) -> list[ReceivedRecord]:
    """The tallies of logs, cut before the batches of these numbers."""
    found = []
    for partition, log in logs.items():
        inner = (cuts or {}).get(partition, ())
        places = sorted({0, len(log.cuts) - 1, *(each for each in inner if each < len(log.cuts))})
        for low, high in itertools.pairwise(places):
            found.append(received(log.tally(tier, partition, low, high)))
    return [*found, received(heartbeat(tier, logs), time_ms=NOW_MS - 1000)]


def findings_of(records: Sequence[ReceivedRecord]) -> list[Finding]:
    store = AuditStore("sqlite://")
    try:
        store.fold(records)
        verdicts = report(store, TOPIC, now_ms=NOW_MS).verdicts
    finally:
        store.close()
    return [finding for verdict in verdicts for finding in verdict.findings]


@st.composite
def worlds(draw: st.DrawFn) -> tuple[list[Batch], dict[int, PartitionBytes]]:
    """Batches of up to three publishers, in one hour, and the logs that hold each once."""
    batches: list[Batch] = []
    following: dict[tuple[int, int], int] = {}
    logs: dict[int, PartitionBytes] = {}
    for _ in range(draw(st.integers(1, 12))):
        producer_id, partition, count = (draw(st.integers(*each)) for each in ((10, 12), (0, 1), (1, 4)))
        first = following.get((partition, producer_id), 0)
        following[partition, producer_id] = first + count
        bucket_ms = HOUR_A + draw(st.integers(0, 5)) * BUCKET_MS
        batches.append(Batch(partition, producer_id, 0, first, count, bucket_ms))
        logs.setdefault(partition, PartitionBytes()).append(batches[-1].encode())
    return batches, logs


CUTS = st.dictionaries(st.integers(0, 1), st.lists(st.integers(0, 12), max_size=6))


@given(world=worlds(), cuts=CUTS, other_cuts=CUTS, place=st.sampled_from([0, 1, 2]), data=st.data())
@settings(max_examples=120, deadline=None)
def test_a_rewritten_batch_is_named_at_the_first_hop_that_differs_and_nowhere_else(
    world: tuple[list[Batch], dict[int, PartitionBytes]],
    cuts: dict[int, list[int]],
    other_cuts: dict[int, list[int]],
    place: int,
    data: st.DataObject,
) -> None:
    batches, logs = world
    victim = data.draw(st.sampled_from(batches))
    number = [each for each in batches if each.partition == victim.partition].index(victim)
    changed = {**logs, victim.partition: rewritten(logs[victim.partition], number)}
    source, copy = (changed if place == 0 else logs), (changed if place <= 1 else logs)
    publishers = sorted({batch.producer_id for batch in batches})
    reports = [report_of(f"p-{pid}", [b for b in batches if b.producer_id == pid]) for pid in publishers]
    records = [
        *map(received, reports),
        *tallies(DATACENTER_TIER, source, cuts),
        *tallies(ANALYSIS_TIER, copy, other_cuts),
        received(load_of(changed)),
    ]
    found = findings_of(records)
    assert {each.status for each in found} == {Status.ALTERED}
    assert {each.hop for each in found} == {(PRODUCER_HOP, MIRROR_HOP, LOAD_HOP)[place]}
    [finding] = found
    assert finding.partition == victim.partition
    low, high = logs[victim.partition].cuts[number], logs[victim.partition].cuts[number + 1]
    assert finding.after_address is not None and finding.after_address <= low
    assert finding.before_address is not None and high <= finding.before_address
    if place < 2:
        assert finding.producer_id == victim.producer_id and finding.sequences is not None
        assert finding.sequences[0] <= victim.first and victim.last <= finding.sequences[1]


@given(world=worlds(), cuts=CUTS, other_cuts=CUTS)
@settings(max_examples=60, deadline=None)
def test_tiers_that_cut_anywhere_hold_the_same(
    world: tuple[list[Batch], dict[int, PartitionBytes]],
    cuts: dict[int, list[int]],
    other_cuts: dict[int, list[int]],
) -> None:
    batches, logs = world
    publishers = sorted({batch.producer_id for batch in batches})
    reports = [report_of(f"p-{pid}", [b for b in batches if b.producer_id == pid]) for pid in publishers]
    records = [
        *map(received, reports),
        *tallies(DATACENTER_TIER, logs, cuts),
        *tallies(ANALYSIS_TIER, logs, other_cuts),
        received(load_of(logs)),
    ]
    assert findings_of(records) == []


def one_log(count: int = 6) -> tuple[list[Batch], PartitionBytes]:
    batches = [Batch(0, 10, 0, number * 5, 5, HOUR_A) for number in range(count)]
    log = PartitionBytes()
    for batch in batches:
        log.append(batch.encode())
    return batches, log


def test_the_place_is_as_narrow_as_the_tallies_allow() -> None:
    batches, log = one_log()
    copy = rewritten(log, 2)
    records = [
        received(report_of("p", batches)),
        *tallies(DATACENTER_TIER, {0: log}, {0: [2, 3, 5]}),
        *tallies(ANALYSIS_TIER, {0: copy}, {0: [1, 2, 3]}),
        received(load_of({0: copy})),
    ]
    [finding] = findings_of(records)
    assert (finding.sequences, finding.record_count) == ((10, 14), 5)
    assert (finding.after_address, finding.before_address) == (log.cuts[2], log.cuts[3])
    assert "other bytes than west's log had" in finding.text


def test_a_load_is_named_by_its_own_addresses() -> None:
    batches, log = one_log()
    hours = [
        PartitionBytes(rewritten(log, 4).data[log.cuts[low] : log.cuts[high]])
        for low, high in ((0, 3), (3, 6))
    ]
    loads = [
        LoadReport(
            WAREHOUSE, TOPIC, number, REPORTED_MS, (LoadedPartition(0, low, high, tuple(part.hours())),)
        )
        for number, (part, low, high) in enumerate(
            zip(hours, (0, log.cuts[3]), (log.cuts[3], log.end), strict=True)
        )
    ]
    base = [
        received(report_of("p", batches)),
        *tallies(DATACENTER_TIER, {0: log}),
        *tallies(ANALYSIS_TIER, {0: log}, {0: [3]}),
    ]
    [finding] = findings_of([*base, *map(received, loads)])
    assert (finding.hop, finding.status, finding.partition) == (LOAD_HOP, Status.ALTERED, 0)
    assert (finding.after_address, finding.before_address) == (log.cuts[3], log.end)
    unknown = [replace(each, partitions=_without_content(each)) for each in loads]
    assert findings_of([*base, *map(received, unknown)]) == []


def test_a_load_that_says_content_of_no_row_ends_no_report() -> None:
    """Anybody who reaches a broker can say so."""
    batches, log = one_log()
    (hour,) = log.hours()
    lie = hour._replace(rows=0, distinct_offsets=0, dead_lettered=0, content=1)
    load = LoadReport(WAREHOUSE, TOPIC, 0, REPORTED_MS, (LoadedPartition(0, log.end, log.end + 100, (lie,)),))
    base = [received(report_of("p", batches)), *tallies(DATACENTER_TIER, {0: log})]
    found = findings_of([*base, *tallies(ANALYSIS_TIER, {0: log}), received(load)])
    assert Status.ALTERED not in {finding.status for finding in found}


def _without_content(load: LoadReport) -> tuple[LoadedPartition, ...]:
    return tuple(
        each._replace(hours=tuple(hour._replace(content=None) for hour in each.hours))
        for each in load.partitions
    )


def test_records_without_a_producer_are_compared_from_the_log_on() -> None:
    log = PartitionBytes()
    for number in range(4):
        log.append(encode_batch([Record(0, HOUR_A + number * BUCKET_MS, None, b"foreign")]))
    copy = rewritten(log, 1)
    records = everything_reported([], {0: log}, {0: copy}, load_of({0: copy}))
    found = [each for each in findings_of(records) if each.status is Status.ALTERED]
    assert [(each.hop, each.after_address, each.before_address) for each in found] == [
        (MIRROR_HOP, log.cuts[1], log.cuts[2])
    ]


def test_nothing_is_said_where_a_publisher_does_not_know_the_content() -> None:
    batches, log = one_log()
    whole = report_of("p", batches)
    unknown = replace(whole, tallies=tuple(each._replace(contents=()) for each in whole.tallies))
    changed = {0: rewritten(log, 2)}
    rest = [
        *tallies(DATACENTER_TIER, changed),
        *tallies(ANALYSIS_TIER, changed),
        received(load_of(changed)),
    ]
    assert findings_of([received(unknown), *rest]) == []
    assert [each.hop for each in findings_of([received(whole), *rest])] == [PRODUCER_HOP]


def test_a_loss_and_a_repetition_of_as_many_are_not_taken_for_other_bytes() -> None:
    mine = [Held(0, 10, 10, 1, 0, 500)]
    theirs = [Held(0, 3, 3, 2, 0, 90), Held(0, 3, 3, 2, 100, 190), Held(6, 10, 4, 3, 200, 300)]
    assert list(altered(mine, theirs)) == []


PIECES = st.lists(st.tuples(st.integers(1, 5), st.booleans()), min_size=1, max_size=8)


@given(pieces=PIECES, order=st.randoms(use_true_random=False))
def test_contents_of_claimed_ranges_follow_their_merges(
    pieces: list[tuple[int, bool]], order: object
) -> None:
    parts, at = [], 0
    for number, (count, has_gap) in enumerate(pieces):
        at += 10 if has_gap else 0
        parts.append(((0, 7, 0, at, at + count - 1), number + 1))
        at += count
    order.shuffle(parts)  # type: ignore[attr-defined]
    tally = HandoverTally(1, "t", 0, 0, True, *(tuple(each) for each in zip(*parts, strict=True)))
    merged = merge_ranges(tally.ranges)
    for (*_, first, last), content in zip(merged, contents_of(merged, tally), strict=True):
        assert content == sum(known for (*_, start, _), known in parts if first <= start <= last)


@given(counts=st.lists(st.integers(1, 4), min_size=1, max_size=8), data=st.data())
def test_a_publisher_reports_what_its_batches_hold_also_after_they_got_new_numbers(
    counts: list[int], data: st.DataObject
) -> None:
    kept, sent = HandoverCounts(BUCKET_MS), []
    sequence = 0
    for count in counts:
        identity = _identity(sequence, 0, count)
        kept.hand_over("t", HOUR_A, 0.0, count)
        kept.batch_closed(identity, 0.0)
        sent.append(identity)
        sequence += count
    from_number = data.draw(st.integers(0, len(sent)))
    sequence = sum(counts[from_number:])
    for number in reversed(range(from_number, len(sent))):  # as the sender tells it
        sequence -= counts[number]
        old, new = sent[number], _identity(sequence, 1, counts[number])
        kept.batch_renumbered(old, new, 0.0)
        sent[number] = new
    reported = [range_ for tally in kept.changed() for range_ in tally.ranges]
    assert total(each.content for each in reported) == total(each.content for each in sent)
    assert sum(each.event_count for each in reported) == sum(counts)


def _identity(first: int, epoch: int, count: int) -> BatchIdentity:
    data = Batch(0, 7, epoch, first, count, HOUR_A).encode()
    header = read_header(data)
    times = (header.base_timestamp_ms, header.max_timestamp_ms)
    return BatchIdentity("t", 0, 7, epoch, first, count, *times, content_of(data))


def test_what_a_range_of_two_pieces_holds_is_not_known() -> None:
    kept = HandoverCounts(BUCKET_MS)
    for first in (0, 5, 10):
        kept.batch_closed(_identity(first, 0, 5), 0.0)
    kept.batch_renumbered(_identity(5, 0, 5), _identity(0, 1, 5), 0.0)
    known = {each[1:5]: each.content for tally in kept.changed() for each in tally.ranges}
    assert known[7, 0, 0, 4] is None and known[7, 0, 10, 14] is None
    assert known[7, 1, 0, 4] == _identity(0, 1, 5).content


def test_a_copy_with_as_many_other_events_without_producer_id_is_not_complete() -> None:
    """The source lost its last events when a broker without them led, and took as many others since."""
    batches = [Batch(0, -1, -1, -1, count, HOUR_A) for count in (5, 5, 2, 3)]
    log, copy = PartitionBytes(), PartitionBytes()
    for batch in batches:
        log.append(batch.encode())
    for batch in batches[:2]:
        copy.append(batch.encode())
    copy.append(batches[0].encode())
    policy = Policy(hops=(MIRROR_HOP,))
    for held, status in ((log, Status.COMPLETE), (copy, Status.UNKNOWN)):
        store = AuditStore("sqlite://")
        store.fold(everything_reported([], {0: log}, {0: held}))
        (verdict,) = report(store, TOPIC, policy=policy, now_ms=NOW_MS).verdicts
        store.close()
        assert verdict.status is status, verdict.findings
        assert verdict.counts[1:3] == (15, 15)
