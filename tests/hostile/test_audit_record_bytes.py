"""Bytes of strangers in the audit's log: read as possible records, or refused, at a bounded cost."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from typing import Any

import fastavro
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fix_audit_world import (
    DC,
    HOUR_A,
    NOW_MS,
    REPORTED_MS,
    received,
)
from fix_possible_records import BEAT, CORRUPT, GAP, LOAD, LOADED, REPORT, TALLY
from headrace.audit.report.report import report
from headrace.audit.store.store import AuditStore
from headrace.audit.times import OUTSIDE_MS
from headrace.audit.topic import decoding
from headrace.audit.topic.decoding import AuditDecoder, NotAnAuditRecordError
from headrace.audit.topic.load_report import LoadedHour, LoadReport
from headrace.audit.topic.possible import ImpossibleRecordError
from headrace.audit.topic.reader import ReportedProducers
from headrace.audit.topic.records import (
    ReceivedRecord,
)
from headrace.audit.topic.validity import check
from headrace.events.schemas import read_schema
from headrace.registry.errors import RegistryError
from headrace.registry.framing import prefix


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
