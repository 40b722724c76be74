"""Audit records that a stranger wrote: set aside with a count and an address, while folding goes on."""

from __future__ import annotations

import io
import json
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import fastavro
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import select
from sqlalchemy.exc import OperationalError

from fix_audit_world import (
    BUCKET_MS,
    DC,
    HOUR_A,
    NOW_MS,
    REPORTED_MS,
    TOPIC,
    Batch,
    everything_reported,
    received,
)
from headrace.audit.batches.tally import Span
from headrace.audit.fold_loop import FoldLoop
from headrace.audit.report.report import report
from headrace.audit.store import tables
from headrace.audit.store.cover import Candidate, choose
from headrace.audit.store.fold import EVER_RANGES_MAX
from headrace.audit.store.place import StorePlace
from headrace.audit.store.store import AuditStore
from headrace.audit.times import FIRST_NAMED_MS, LAST_NAMED_MS, OUTSIDE_MS, OUTSIDE_NAME
from headrace.audit.topic import decoding
from headrace.audit.topic.decoding import AuditDecoder, NotAnAuditRecordError
from headrace.audit.topic.load_report import LoadedHour, LoadedPartition, LoadReport
from headrace.audit.topic.reader import Polled, ReportedProducers
from headrace.audit.topic.records import (
    DATACENTER_TIER,
    CorruptRecord,
    GapRecord,
    HandoverTally,
    HeartbeatRecord,
    PartitionPosition,
    ProducerReport,
    RangeTally,
    ReceivedRecord,
)
from headrace.audit.topic.set_aside import SetAside
from headrace.audit.topic.validity import ImpossibleRecordError, check
from headrace.events.schemas import read_schema
from headrace.registry.errors import RegistryError
from headrace.registry.framing import prefix

SPAN = Span(HOUR_A, 7, 0, 0, 9, 10, 0, 500)
TALLY = RangeTally(DATACENTER_TIER, DC, TOPIC, 0, 0, 0, 500, BUCKET_MS, (SPAN,))
POSITION = PartitionPosition(DC, TOPIC, 0, 0, 500, 500)
BEAT = HeartbeatRecord(DATACENTER_TIER, REPORTED_MS, 0, 1, (POSITION,))
GAP = GapRecord(DATACENTER_TIER, DC, TOPIC, 0, 0, 10, "deleted")
CORRUPT = CorruptRecord(DATACENTER_TIER, DC, TOPIC, 0, 0, 0, 90, "rot", 3, HOUR_A, HOUR_A, 7, 0, 0, 2, False)
HANDED = HandoverTally(0, TOPIC, HOUR_A, 10, True, ((0, 7, 0, 0, 9),))
REPORT = ProducerReport("p-1", REPORTED_MS, 1, True, (HANDED,))
LOADED = LoadedPartition(0, 0, 500, (LoadedHour(HOUR_A, 10, 10),))
LOAD = LoadReport("hdfs://x/data", TOPIC, 1, REPORTED_MS, (LOADED,))
GOOD = (TALLY, BEAT, GAP, CORRUPT, REPORT, LOAD)

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


# --- bytes ---


class Registry:
    """A registry of given schemas, by id; counts the requests."""

    def __init__(self, texts: dict[int, str]) -> None:
        self.texts = texts
        self.requests = 0

    def get_by_id(self, schema_id: int) -> str:
        self.requests += 1
        if schema_id not in self.texts:
            raise RegistryError(40403, "Schema not found")
        return self.texts[schema_id]


OURS = {number: read_schema(name) for number, name in enumerate(decoding.SCHEMA_FILES)}


def decoder(texts: dict[int, str] | None = None, clock: float = 0.0) -> tuple[AuditDecoder, Registry]:
    registry = Registry(OURS | (texts or {}))
    return AuditDecoder(registry, clock=lambda: clock), registry  # type: ignore[arg-type]


def framed(record: Any, **changed: Any) -> bytes:
    """The value of a record, as its publisher frames it."""
    schema_id = decoding.SCHEMA_FILES.index(record.schema_file)
    header = {"time": REPORTED_MS, "datacenter": DC, "server": "h", "service": "auditor", "guid": "g"}
    buffer = io.BytesIO()
    parsed = fastavro.schema.parse_schema(json.loads(OURS[schema_id]))
    fastavro.schemaless_writer(buffer, parsed, {"header": header, **record.to_avro(), **changed})
    return prefix(schema_id) + buffer.getvalue()


@pytest.mark.parametrize("record", [TALLY, BEAT, GAP, CORRUPT, LOAD], ids=lambda r: type(r).__name__)
def test_records_survive_their_bytes(record: Any) -> None:
    got = decoder()[0].decode(framed(record))
    assert got == ReceivedRecord(record, DC, "auditor", "h", REPORTED_MS)


def test_a_load_with_times_of_no_calendar_is_written_and_read() -> None:
    hours = (LoadedHour(2**62, 2, 2), LoadedHour(-(2**62), 1, 1), LoadedHour(HOUR_A, 3, 3))
    load = replace(LOAD, partitions=(LOADED._replace(hours=hours),))
    got = decoder()[0].decode(framed(load))
    check(got, NOW_MS)
    assert isinstance(got.record, LoadReport)
    assert [hour.hour_ms for hour in got.record.partitions[0].hours] == [OUTSIDE_MS, OUTSIDE_MS, HOUR_A]
    store = AuditStore("sqlite://")
    store.fold([received(replace(TALLY, tier="analysis")), got])  # two hours become one row


@given(
    value=st.one_of(
        st.binary(max_size=80), st.builds(lambda n, b: prefix(n) + b, st.integers(0, 7), st.binary())
    )
)
@settings(max_examples=300, deadline=None)
def test_any_bytes_are_a_possible_record_or_set_aside(value: bytes) -> None:
    try:
        check(decoder()[0].decode(value), NOW_MS)
    except (NotAnAuditRecordError, ImpossibleRecordError) as error:
        assert str(error)


@given(record=st.sampled_from([TALLY, BEAT, GAP, CORRUPT, LOAD]), data=st.data())
@settings(max_examples=300, deadline=None)
def test_what_is_believed_of_changed_bytes_never_ends_fold_or_report(
    record: Any, data: st.DataObject
) -> None:
    value = bytearray(framed(record))
    for _ in range(data.draw(st.integers(1, 3))):
        value[data.draw(st.integers(5, len(value) - 1))] = data.draw(st.integers(0, 255))
    try:
        got = decoder()[0].decode(bytes(value))
        check(got, NOW_MS)
    except (NotAnAuditRecordError, ImpossibleRecordError):
        return
    store = AuditStore("sqlite://")
    try:
        store.fold([received(TALLY), received(REPORT), got])
        json.dumps(report(store, now_ms=NOW_MS).to_json())
    finally:
        store.close()


def test_unknown_schema_ids_cost_a_bounded_number_of_requests() -> None:
    decode, registry = decoder()
    for schema_id in range(100, 3_000):
        with pytest.raises(NotAnAuditRecordError):
            decode.decode(prefix(schema_id) + b"x")
    assert registry.requests == decoding.LOOKUPS_MAX
    with pytest.raises(NotAnAuditRecordError, match="were looked up within"):
        decode.decode(prefix(99_999))


def test_ids_without_end_do_not_keep_honest_records_out() -> None:
    """A stranger's ids used up the lookups, and pushed honest schemas out of the cache."""
    now = [0.0]
    registry = Registry(OURS)
    decode = AuditDecoder(registry, clock=lambda: now[0])  # type: ignore[arg-type]
    decode.learn_own({name: number for number, name in enumerate(decoding.SCHEMA_FILES)})
    honest = [(record, framed(record)) for record in (TALLY, BEAT, GAP, CORRUPT, LOAD)]
    for schema_id in range(100, 3_000):
        now[0] += decoding.LOOKUPS_PAUSE_S / decoding.LOOKUPS_MAX / 2
        with pytest.raises(NotAnAuditRecordError):
            decode.decode(prefix(schema_id) + b"x")
        if schema_id % 50 == 0:
            assert all(decode.decode(value).record == record for record, value in honest)


def test_an_id_that_nobody_knew_is_looked_up_again() -> None:
    """A stranger may name an id before the honest schema of that id is registered."""
    now = [0.0]
    registry = Registry(dict(OURS))
    gap_id = decoding.SCHEMA_FILES.index(GAP.schema_file)
    text = registry.texts.pop(gap_id)
    decode = AuditDecoder(registry, clock=lambda: now[0])  # type: ignore[arg-type]
    with pytest.raises(NotAnAuditRecordError, match="no schema"):
        decode.decode(framed(GAP))
    registry.texts[gap_id] = text
    now[0] += decoding.UNKNOWN_KEPT_S
    assert decode.decode(framed(GAP)).record == GAP


def test_an_older_or_newer_writer_is_read_into_our_schema() -> None:
    newer = json.loads(read_schema("audit-gap.avsc"))
    newer["fields"].append({"name": "more", "type": "string", "default": ""})
    older = json.loads(read_schema("audit-gap.avsc"))
    older["fields"] = [field for field in older["fields"] if field["name"] != "accepted"]
    decode, _ = decoder({50: json.dumps(newer), 51: json.dumps(older)})
    header = {"time": REPORTED_MS, "datacenter": DC, "server": "h", "service": "auditor", "guid": "g"}
    for schema_id, schema in ((50, newer), (51, older)):
        buffer = io.BytesIO()
        parsed = fastavro.schema.parse_schema(schema)
        fastavro.schemaless_writer(buffer, parsed, {"header": header, "more": "x", **GAP.to_avro()})
        assert decode.decode(prefix(schema_id) + buffer.getvalue()).record == GAP


def test_an_array_without_end_is_not_read() -> None:
    endless = json.loads(read_schema("audit-gap.avsc"))
    endless["fields"].insert(0, {"name": "more", "type": {"type": "array", "items": "null"}})
    doubled: Any = {"type": "record", "name": "D", "fields": []}
    for level in range(40):
        fields = [{"name": "one", "type": doubled}, {"name": "two", "type": doubled["name"]}]
        doubled = {"type": "record", "name": f"D{level}", "fields": fields}
    twice = json.loads(read_schema("audit-gap.avsc"))
    twice["fields"].insert(0, {"name": "more", "type": doubled})
    texts = {60: json.dumps(endless), 61: "{" * 500, 62: "x" * 100_000, 63: json.dumps(twice)}
    decode, _ = decoder(texts)
    # 2**62 items of no bytes, and as many records
    problems = ("could have no end", "cannot be used", "100000 characters", "in a row without bytes")
    for schema_id, problem in zip(texts, problems, strict=True):
        with pytest.raises(NotAnAuditRecordError, match=problem):
            decode.decode(prefix(schema_id) + b"\x80\x80\x80\x80\x80\x80\x80\x80\x80\x01")


def test_a_schema_that_refers_to_itself_is_not_read() -> None:
    """fastavro descends in C: a value of 900 kB that nests in each byte ended the process with SIGSEGV."""
    gap = json.loads(read_schema("audit-gap.avsc"))
    own = f"{gap['namespace']}.{gap['name']}"
    link = {"type": "record", "name": "Node", "fields": [{"name": "next", "type": ["null", "Node"]}]}
    far = {
        "type": "record",
        "name": "Far",
        "namespace": "x.y",
        "fields": [{"name": "f", "type": ["null", own]}],
    }
    fine = {"type": "record", "name": "Fine", "fields": []}
    inner = ({"type": "array", "items": own}, {"type": "map", "values": own}, link, ["null", link], far)
    texts = {}
    for number, kind in enumerate(inner):
        texts[70 + number] = json.dumps(gap | {"fields": [{"name": "more", "type": kind}, *gap["fields"]]})
    twice = [{"name": "one", "type": fine}, {"name": "two", "type": "Fine"}, *gap["fields"]]
    texts[80] = json.dumps(gap | {"fields": twice})
    decode, _ = decoder(texts)
    for number in range(len(inner)):
        with pytest.raises(NotAnAuditRecordError, match="refers to itself"):
            decode.decode(prefix(70 + number) + b"\x02" * 50)
    with pytest.raises(NotAnAuditRecordError, match="does not fit"):
        decode.decode(prefix(80))


def test_what_poison_makes_the_auditor_keep_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.audit.topic.reader.PRODUCERS_KEPT_MAX", 3)
    producers = ReportedProducers()
    producers.add((DC, number) for number in range(10))
    assert [producers.trusts(DC, number) for number in (0, 2, 3)] == [True, True, False]
    decode, _ = decoder()
    monkeypatch.setattr(decoding, "WRITERS_MAX", 2)
    for schema_id in (*range(5), *range(100, 105)):
        with pytest.raises(NotAnAuditRecordError):
            decode.decode(prefix(schema_id))
    assert len(decode._writers) == len(decode._refused) == 2


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
