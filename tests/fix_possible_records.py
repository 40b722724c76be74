"""Audit records, one of each kind, that are possible in every field."""

from __future__ import annotations

from fix_audit_world import (
    BUCKET_MS,
    DC,
    HOUR_A,
    REPORTED_MS,
    TOPIC,
)
from headrace.audit.batches.tally import Span
from headrace.audit.topic.load_report import LoadedHour, LoadedPartition, LoadReport
from headrace.audit.topic.records import (
    DATACENTER_TIER,
    CorruptRecord,
    GapRecord,
    HandoverTally,
    HeartbeatRecord,
    PartitionPosition,
    ProducerReport,
    RangeTally,
)

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
