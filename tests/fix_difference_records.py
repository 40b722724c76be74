"""More cases of tests/clients/test_clients_differences.py: what programs ask for that keep their state in
topics (DeleteRecords, compacted topics, topics that are there already). `CASES` has all of them.
"""

from __future__ import annotations

import time
from typing import Any, Final

from fix_difference_admin import CASES, TOPIC, altered
from fix_difference_cases import case, fresh
from fix_differences import Asker, name_of
from headrace.wire.apis import ApiKey
from headrace.wire.records import Record, encode_batch

__all__ = ["CASES"]

POLICIES: Final = (
    *("compact", "compact,delete", "delete,compact", " compact , delete ", "compact,compact"),
    *("keep", "compact,keep", "Compact", "", ","),
)
ALL: Final = -1


def produced(asker: Asker, topic: str, *keys: bytes | None) -> str:
    """The code of a batch with a record for each key."""
    now_ms = int(time.time() * 1000)
    batch = encode_batch([Record(at, now_ms, key, b"value") for at, key in enumerate(keys)])
    return name_of(asker.client.produce(topic, 0, batch).error_code)


def deleted(asker: Asker, *wanted: tuple[str, int, int]) -> Any:
    """The codes of DeleteRecords for (topic, partition, offset), and whether each says where logs begin."""
    topics = [
        {"name": name, "partitions": [{"partition_index": at, "offset": offset}]}
        for name, at, offset in wanted
    ]
    response = asker.ask(ApiKey.DELETE_RECORDS, 2, topics=topics, timeout=30_000)
    return sorted(
        (each.partition_index, name_of(each.error_code), each.low_watermark >= 0)
        for found in response.topics
        for each in found.partitions
    )


def compacted(asker: Asker, policy: str = "compact") -> str:
    name = fresh()
    assert asker.create(name, configs=[{"name": "cleanup.policy", "value": policy}]) == ["NONE"]
    asker.until_settled(lambda: asker.offsets(name, (0, -1))[0][1])
    return name


@case("DeleteRecords: all of an empty log, and of one with records")
def _(asker: Asker) -> Any:
    name = asker.topic()
    empty = deleted(asker, (name, 0, ALL))
    assert produced(asker, name, None, None) == "NONE"
    found = deleted(asker, (name, 0, ALL))
    earliest, latest = (asker.offsets(name, (0, when)) for when in (-2, -1))
    return empty, found, earliest == latest, produced(asker, name, None)


@case("DeleteRecords: nothing, again, and an offset that is deleted already")
def _(asker: Asker) -> Any:
    name = asker.topic()
    assert produced(asker, name, None) == "NONE"
    return [deleted(asker, (name, 0, offset)) for offset in (0, ALL, ALL, 0)]


@case("DeleteRecords: offsets that are none")
def _(asker: Asker) -> Any:
    name = asker.topic()
    return [deleted(asker, (name, 0, offset)) for offset in (-2, 1, 2**40, 2**63 - 1)]


@case("DeleteRecords: an unknown topic, unknown and negative partitions")
def _(asker: Asker) -> Any:
    name = asker.topic()
    return [
        deleted(asker, each) for each in ((fresh(), 0, ALL), (name, 7, ALL), (name, -1, ALL), ("a/b", 0, ALL))
    ]


@case("DeleteRecords: a partition twice, by the last offset")
def _(asker: Asker) -> Any:
    name = asker.topic()
    return deleted(asker, (name, 0, 2**40), (name, 0, ALL)), deleted(asker, (name, 0, ALL), (name, 0, 2**40))


@case("DeleteRecords: of a compacted topic, and of one that deletes, too")
def _(asker: Asker) -> Any:
    return [
        deleted(asker, (compacted(asker, policy), 0, ALL)) for policy in ("compact", "compact,delete", "")
    ]


@case("CreateTopics: a topic that exists, with what no new one may have")
def _(asker: Asker) -> Any:
    """Programs create their topics whenever they start, also while too few brokers are alive."""
    name = asker.topic()
    wrong = (
        {"replication_factor": 2},
        {"num_partitions": 0},
        {"configs": [{"name": "no.such", "value": "1"}]},
    )
    return [asker.create(name, validate_only=only, **values) for values in wrong for only in (False, True)]


ACL: Final = {
    "resource_pattern_type": 3,
    "principal": "User:a",
    "host": "*",
    "operation": 3,
    "permission_type": 3,
}
ANY: Final = {"resource_type_filter": 1, "pattern_type_filter": 1, "operation": 1, "permission_type": 1}
NONE: Final = {"resource_name_filter": None, "principal_filter": None, "host_filter": None}


@case("DescribeAcls, CreateAcls, DeleteAcls: without an authorizer")
def _(asker: Asker) -> Any:
    creations = [{"resource_type": 2, "resource_name": name, **ACL} for name in ("t", "u")]
    described = asker.ask(ApiKey.DESCRIBE_ACLS, 3, **ANY, **NONE)
    created = asker.ask(ApiKey.CREATE_ACLS, 3, creations=creations)
    deleted = asker.ask(ApiKey.DELETE_ACLS, 3, filters=[{**ANY, **NONE}])
    return (
        (name_of(described.error_code), len(described.resources)),
        [name_of(each.error_code) for each in created.results],
        [(name_of(each.error_code), len(each.matching_acls)) for each in deleted.filter_results],
    )


@case("CreateTopics: policies of cleanup")
def _(asker: Asker) -> Any:
    return [asker.create(fresh(), configs=[{"name": "cleanup.policy", "value": value}]) for value in POLICIES]


@case("CreateTopics: settings of compacted topics")
def _(asker: Asker) -> Any:
    chosen = (
        ("delete.retention.ms", "0"),
        ("delete.retention.ms", "-1"),
        ("min.compaction.lag.ms", "5000"),
        ("min.cleanable.dirty.ratio", "0.01"),
        ("min.cleanable.dirty.ratio", "1"),
        ("min.cleanable.dirty.ratio", "1.1"),
        ("min.cleanable.dirty.ratio", "much"),
        ("min.cleanable.dirty.ratio", "0_1"),
        ("min.cleanable.dirty.ratio", "\u0660"),
    )
    return [asker.create(fresh(), configs=[{"name": name, "value": value}]) for name, value in chosen]


@case("IncrementalAlterConfigs: a policy of cleanup more, and one less")
def _(asker: Asker) -> Any:
    name = asker.topic()
    return [
        altered(asker, (TOPIC, name, [("cleanup.policy", operation, value)]))
        for operation, value in ((2, "compact"), (3, "delete"), (2, "keep"), (0, "delete"))
    ]


@case("Produce: records with and without keys, to a compacted topic")
def _(asker: Asker) -> Any:
    name = compacted(asker)
    return [produced(asker, name, *keys) for keys in ((b"k",), (None,), (b"k", None), (b"",), (b"a", b"b"))]
