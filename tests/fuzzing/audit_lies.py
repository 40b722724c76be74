"""What makes an audit record of a stranger impossible, by kind: values that nobody may believe."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from headrace.audit.times import FIRST_NAMED_MS, LAST_NAMED_MS

Tree = dict[str, Any]

TOPIC: Final = "strange-a"
HOUR_A: Final = 1_431_860_400_000

_SPAN: Final = {
    "bucket_start_ms": HOUR_A,
    "producer_id": 7,
    "producer_epoch": 0,
    "first_sequence": 0,
    "last_sequence": 9,
    "record_count": 10,
    "first_address": 0,
    "end_address": 500,
}
_HANDED: Final = {
    "part": 0,
    "topic": TOPIC,
    "bucket_start": HOUR_A,
    "handed_over_count": 1,
    "final": True,
    "ranges": [],
}
_UNSOUND: Final = {"hour_ms": HOUR_A, "path": "/data/x", "rows": 1, "is_gone": True, "text": "is missing"}
_PLANT: Final = {
    "kind": "dropped",
    "datacenter": "east",
    "service": "drill-x",
    "hour_ms": HOUR_A,
    "hop": "producer → datacenter",
    "statuses": ["lost"],
    "note": "",
    "record_count": 3,
    "producer_id": -1,
    "producer_epoch": -1,
    "first_sequence": -1,
    "last_sequence": -1,
    "outcome": "named",
    "named_after_ms": 5,
}
LIES: Final[Mapping[str, tuple[Tree, ...]]] = {
    "audit-tally.avsc": (
        {"from_address": 600, "to_address": 500},
        {"from_address": -1},
        {"bucket_ms": 0},
        {"bucket_ms": 7_000_000},
        {"partition": -1},
        {"spans": [{**_SPAN, "record_count": 2**31 - 1, "last_sequence": 2**31 - 2}]},
        {"spans": [{**_SPAN, "record_count": -10, "last_sequence": -11}]},
        {"spans": [{**_SPAN, "record_count": 9}]},
        {"spans": [{**_SPAN, "first_sequence": 9, "last_sequence": 0}]},
        {"spans": [{**_SPAN, "producer_id": -1}]},
        {"spans": [{**_SPAN, "producer_epoch": 2**15}]},
        {"spans": [_SPAN, {**_SPAN, "first_address": 500, "end_address": 2**40}]},
    ),
    "audit-positions.avsc": (
        {"part": 1, "parts": 1},
        {"part": -1},
        {"beat": LAST_NAMED_MS},
        {"beat": 2**63 - 1},
        {"beat": FIRST_NAMED_MS - 1},
    ),
    "audit-gap.avsc": ({"from_address": 2, "to_address": 1}, {"partition": -5}, {"reason": "x" * 20_000}),
    "audit-corrupt.avsc": (
        {"from_address": 5, "to_address": 5},
        {"from_address": 0, "to_address": 9, "record_count": 10},
        {"producer_id": 3, "first_sequence": 9, "last_sequence": 1},
        {"log_partition": -1},
        {"cause": "a\0b"},
    ),
    "audit-recount.avsc": (
        {"from_address": 6, "counted_to_address": 5},
        {"from_address": -1},
        {"log_partition": -1},
        {"cause": "a\0b"},
    ),
    "audit-producer.avsc": (
        {"publisher": ""},
        {"publisher": "a\nb"},
        {"report_number": -1},
        {"report_number": 2**62},
        {"tallies": [{**_HANDED, "handed_over_count": -1}]},
        {"tallies": [{**_HANDED, "handed_over_count": 2**62}]},
        {"tallies": [{**_HANDED, "part": -1}]},
    ),
    "audit-load.avsc": (
        {"load_sequence": -1},
        {"committed": LAST_NAMED_MS + 1},
        {"partitions": [{"partition": 0, "from_address": 1, "to_address": 0, "hours": []}]},
        {"accepted_gaps": [{"partition": -1, "from_address": 0, "to_address": 9, "reason": ""}]},
    ),
    "audit-resent.avsc": (
        {"partition": -1},
        {"publisher": "a\nb"},
        {"said_by": ""},
        {"first_sequence": 9, "last_sequence": 8},
        {"producer_id": -1},
        {"bucket_start": LAST_NAMED_MS + 1},
        {"old_producer_id": -1, "old_producer_epoch": -1, "old_first_sequence": 0},
        {"producer_id": 10**8, "old_producer_id": 10**8, "old_producer_epoch": 0, "old_first_sequence": 0},
    ),
    "audit-acceptance.avsc": (
        {"digests": [], "texts": []},
        {"digests": ["0" * 63], "texts": ["lost"]},
        {"digests": ["0" * 64], "texts": []},
        {"reason": "  "},
        {"said_by": ""},
        {"hour": HOUR_A + 1},
    ),
    "audit-verified.avsc": (
        {"checked": "some"},
        {"files": -1},
        {"rows": 2**41},
        {"topic": "a b"},
        {"problem_count": 0, "problems": [_UNSOUND]},
        {"problem_count": 9, "problems": [{**_UNSOUND, "hour_ms": HOUR_A + 1}]},
        {"problem_count": 9, "problems": [{**_UNSOUND, "rows": -1}]},
        {"problem_count": 9, "problems": [{**_UNSOUND, "text": "a\0b"}]},
    ),
    "audit-doubled.avsc": (
        {"removed": -1},
        {"hour_ms": HOUR_A + 1},
        {"runs": [{"log_partition": -1, "first_offset": 0, "last_offset": 1, "is_extra": True}]},
        {"runs": [{"log_partition": 0, "first_offset": 2, "last_offset": 1, "is_extra": True}]},
    ),
    "audit-drill.avsc": (
        {"run": ""},
        {"said_by": "a\nb"},
        {"began_ms": LAST_NAMED_MS + 1},
        {"false_count": -1},
        {"plants": [_PLANT] * 201},
        {"plants": [{**_PLANT, "hour_ms": HOUR_A + 1}]},
        {"plants": [{**_PLANT, "outcome": "found"}]},
        {"plants": [{**_PLANT, "named_after_ms": -1}]},
        {"plants": [{**_PLANT, "outcome": "missed"}]},
        {
            "plants": [
                {**_PLANT, "producer_id": 7, "producer_epoch": 0, "first_sequence": 9, "last_sequence": 8}
            ]
        },
        {"plants": [{**_PLANT, "note": "a\0b"}]},
        {"plants": [{**_PLANT, "path": "a\0b"}]},
        {"plants": [{**_PLANT, "sent_count": -1}]},
        {"plants": [{**_PLANT, "copied_after_ms": -2}]},
    ),
}
OF_A_LOG: Final = ("audit-tally.avsc", "audit-gap.avsc", "audit-corrupt.avsc", "audit-recount.avsc")
HEADER_LIES: Final[tuple[Tree, ...]] = (
    {"time": FIRST_NAMED_MS - 1},
    {"time": LAST_NAMED_MS + 1},
    {"time": 2**63 - 1},
    {"datacenter": ""},
    {"server": "a\x1b[2J"},
    {"service": "x" * 300},
)
