"""More cases of tests/clients/test_clients_differences.py: groups and their offsets. `CASES` has those of
`fix_difference_cases`, too.
"""

from __future__ import annotations

import struct
from typing import Any

from fix_difference_cases import CASES, case, fresh
from fix_differences import Asker, heartbeat, join, name_of
from headrace.wire.apis import ApiKey

__all__ = ["CASES"]


@case("OffsetCommit: unknown topic, unknown and negative partition")
def _(asker: Asker) -> Any:
    group, name = asker.group(), asker.topic()
    return [asker.commit(group, fresh()), asker.commit(group, name, 7), asker.commit(group, name, -1)]


@case("OffsetCommit: metadata of 4097 bytes, null, a negative offset")
def _(asker: Asker) -> Any:
    group, name = asker.group(), asker.topic()
    return [
        asker.commit(group, name, metadata="x" * 4097),
        asker.commit(group, name, metadata=None),
        asker.commit(group, name, offset=-1),
    ]


@case("OffsetCommit: a generation of an unknown group")
def _(asker: Asker) -> Any:
    return asker.commit(asker.group(), asker.topic(), generation=3, member="m")


@case("OffsetCommit: an empty group id")
def _(asker: Asker) -> Any:
    asker.group()
    return asker.commit("", asker.topic())


@case("OffsetCommit: a group id of 1025 bytes")
def _(asker: Asker) -> Any:
    asker.group()
    return asker.commit("g" * 1025, asker.topic())


@case("OffsetCommit: odd group ids")
def _(asker: Asker) -> Any:
    name = asker.topic()
    asker.group()
    return [
        asker.commit(group, name) for group in ("a/b", ".", "..", "two words", "x\ny", "集団", "g" * 1024)
    ]


@case("OffsetCommit: a leader epoch")
def _(asker: Asker) -> Any:
    """Clients give the epoch of the record before the offset, and get it back."""
    group, name = asker.group(), asker.topic()
    part = {"partition_index": 0, "committed_offset": 5, "committed_metadata": ""}
    response = asker.ask(
        ApiKey.OFFSET_COMMIT,
        8,
        group_id=group,
        generation_id_or_member_epoch=-1,
        member_id="",
        group_instance_id=None,
        topics=[{"name": name, "partitions": [part | {"committed_leader_epoch": 3}]}],
    )
    stored = [name_of(part.error_code) for each in response.topics for part in each.partitions]
    topics = [{"name": name, "partition_indexes": [0]}]
    found = asker.ask(ApiKey.OFFSET_FETCH, 7, group_id=group, topics=topics, require_stable=False)
    return stored, [
        (part.committed_offset, part.committed_leader_epoch)
        for each in found.topics
        for part in each.partitions
    ]


@case("OffsetFetch: an unknown group, unknown topics and partitions")
def _(asker: Asker) -> Any:
    topics = [{"name": fresh("x"), "partition_indexes": [0, -1]}]
    response = asker.ask(ApiKey.OFFSET_FETCH, 7, group_id=asker.group(), topics=topics, require_stable=False)
    return name_of(response.error_code), [
        (part.committed_offset, part.metadata, name_of(part.error_code))
        for each in response.topics
        for part in each.partitions
    ]


@case("Heartbeat: unknown and empty group")
def _(asker: Asker) -> Any:
    return heartbeat(asker, asker.group(), "m", 1), heartbeat(asker, "", "m", 1)


@case("JoinGroup: empty group id, unknown member")
def _(asker: Asker) -> Any:
    return [name_of(join(asker, *each).error_code) for each in (("",), (asker.group(), "m"))]


@case("JoinGroup: session timeouts of 0, 1 ms and a day")
def _(asker: Asker) -> Any:
    group = asker.group()
    return [name_of(join(asker, group, session_ms=each).error_code) for each in (0, 1, 86_400_000)]


@case("generations that are not the group's")
def _(asker: Asker) -> Any:
    group, name = asker.group(), asker.topic()
    member = join(asker, group).member_id
    generation = join(asker, group, member).generation_id
    return [
        heartbeat(asker, group, member, generation + 1),
        heartbeat(asker, group, "other", generation),
        asker.commit(group, name, member=member, generation=generation + 1),
        asker.commit(group, name),
        name_of(join(asker, group, kind="other").error_code),
    ]


@case("DescribeGroups, DeleteGroups, LeaveGroup: an unknown group")
def _(asker: Asker) -> Any:
    group = asker.group()
    found = asker.ask(ApiKey.DESCRIBE_GROUPS, 5, groups=[group], include_authorized_operations=False).groups
    deleted = asker.ask(ApiKey.DELETE_GROUPS, 2, groups_names=[group]).results
    left = asker.ask(ApiKey.LEAVE_GROUP, 2, group_id=group, member_id="m")
    return (
        [(name_of(each.error_code), each.group_state) for each in found],
        [name_of(each.error_code) for each in deleted],
        name_of(left.error_code),
    )


@case("FindCoordinator: no keys, an empty key, an unknown kind")
def _(asker: Asker) -> Any:
    asker.group()
    return [
        [name_of(each.error_code) for each in asker.ask(ApiKey.FIND_COORDINATOR, 4, **values).coordinators]
        for values in (
            {"key_type": 0, "coordinator_keys": []},
            {"key_type": 0, "coordinator_keys": [""]},
            {"key_type": 9, "coordinator_keys": ["g"]},
        )
    ]


def delete_offsets(asker: Asker, group: str, **topics: list[int]) -> Any:
    """Returns the code of an OffsetDelete, and those of its partitions, whose order clients leave open."""
    named = [
        {"name": name, "partitions": [{"partition_index": index} for index in indexes]}
        for name, indexes in topics.items()
    ]
    response = asker.ask(ApiKey.OFFSET_DELETE, 0, group_id=group, topics=named)
    codes = [
        sorted((p.partition_index, name_of(p.error_code)) for p in each.partitions)
        for each in response.topics
    ]
    return name_of(response.error_code), codes


def member_of(asker: Asker, group: str, metadata: bytes, kind: str = "consumer") -> str:
    """Joins a group, and gives itself its part; returns the member's id."""
    first = join(asker, group, metadata=metadata, kind=kind)
    joined = join(asker, group, first.member_id, metadata=metadata, kind=kind)
    asker.ask(
        ApiKey.SYNC_GROUP,
        3,
        group_id=group,
        generation_id=joined.generation_id,
        member_id=joined.member_id,
        group_instance_id=None,
        assignments=[{"member_id": joined.member_id, "assignment": b""}],
    )
    return str(joined.member_id)


@case("DescribeGroups, ListGroups: a group whose members have left, and whose offsets are stored")
def _(asker: Asker) -> Any:
    group, name = asker.group(), asker.topic()
    member = member_of(asker, group, b"")
    committed = asker.commit(group, name, member=member, generation=1)
    asker.ask(ApiKey.LEAVE_GROUP, 2, group_id=group, member_id=member)
    described = asker.ask(ApiKey.DESCRIBE_GROUPS, 5, groups=[group], include_authorized_operations=False)
    listed = asker.ask(ApiKey.LIST_GROUPS, 4, states_filter=["Empty"])
    return (
        committed,
        [(each.group_state, each.protocol_type, each.protocol_data) for each in described.groups],
        [(each.group_state, each.protocol_type) for each in listed.groups if each.group_id == group],
    )


@case("OffsetDelete: an unknown group, an empty id")
def _(asker: Asker) -> Any:
    name = asker.topic()
    return [delete_offsets(asker, group, **{name: [0]}) for group in (asker.group(), "")]


@case("OffsetDelete: offsets, none, unknown topics and partitions, one twice")
def _(asker: Asker) -> Any:
    group, name, other = asker.group(), asker.topic(), asker.topic()
    asker.commit(group, name)
    asker.commit(group, other)
    return [
        delete_offsets(asker, group, **{name: [0, 7, -1], fresh("x"): [0]}),
        delete_offsets(asker, group, **{name: [0]}),
        delete_offsets(asker, group, **{other: [0, 0]}),
    ]


@case("OffsetDelete: beside members that read a topic, or say nothing of topics")
def _(asker: Asker) -> Any:
    name, other = asker.topic(), asker.topic()
    reads = struct.pack(">hih", 1, 1, len(name)) + name.encode() + struct.pack(">ii", -1, 0)
    found = []
    for metadata, kind in ((reads, "consumer"), (b"", "consumer"), (b"", "connect")):
        group = asker.group()
        asker.commit(group, name)
        asker.commit(group, other)
        member_of(asker, group, metadata, kind)
        found.append(delete_offsets(asker, group, **{name: [0], other: [0]}))
    return found
