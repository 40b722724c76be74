"""Administration of consumer groups by Kafka's protocol: members, committed offsets, lags; reset, delete.

Offsets of groups that coordinate through ZooKeeper are in the same registry, which the brokers serve, so all
that concerns offsets covers both kinds. Members are those of Kafka's own protocol only:
`coordination.consumers` knows the others.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from typing import Any, Final

from headrace.client.admin import Admin
from headrace.client.admin_requests import ResultCode, raise_first_error
from headrace.client.asking import (
    ANSWER_MAX_S,
    METADATA_SHARE,
    SilentBroker,
    ask,
    connect_all,
    everybody,
    silent_brokers,
)
from headrace.client.calls import Call, Schema, control_call, in_parts
from headrace.client.cluster import BrokerAddress, TopicPartition
from headrace.client.group_types import GroupDescription, GroupListing, described
from headrace.wire.apis import ApiKey
from headrace.wire.errors import ErrorCode

DESCRIBED_AT_ONCE_MAX: Final = 500
_GROUP_KEY: Final = 0
_NO_GENERATION: Final = -1
_WITHOUT_MEMBERS: Final = ("Empty", "Dead")
UNKNOWN_STATE: Final = "Unknown"


class GroupAdmin(Admin):
    """An `Admin` with the operations on consumer groups."""

    # --- which groups there are ---

    def groups(self) -> list[str]:
        """Returns the names of all groups that have members or committed offsets.

        Raises `NetworkError` if one broker does not answer: `list_groups` tells what the others know.
        """
        names: set[str] = set()
        call = _list_groups_call()
        # Each broker lists the groups that it coordinates.
        for node_id in self.describe_cluster().brokers:
            body = self._requests.call(call, _listed, target=partial(_this, node_id))
            names |= {group.group_id for group in body.groups}
        return sorted(names)

    def list_groups(self, *, known: Mapping[int, BrokerAddress] | None = None) -> GroupListing:
        """Returns the groups of all brokers that answer within `ANSWER_MAX_S`, with their members.

        `known`: see `Admin.survey`. Raises `NetworkError` if no broker answers.
        """
        requests = self._requests
        network = requests.network
        with requests.alone() as began_s:
            answer_max_s = min(ANSWER_MAX_S, requests.left_s())
            connect_all(network)
            cluster = requests.refresh([], began_s + METADATA_SHARE * answer_max_s)
            deadline_s = began_s + answer_max_s
            calls = everybody(network, cluster)
            calls |= {node_id: [_list_groups_call()] for node_id in cluster.brokers}
            listed = ask(network, calls, deadline_s=deadline_s, clock=requests.clock)
            found: dict[str, GroupDescription] = {}
            busy: dict[int, list[Call]] = {}
            for node_id, bodies in listed.bodies.items():
                for body in bodies:
                    found |= {group.group_id: _overview(group, node_id) for group in body.groups}
                names = [
                    group.name
                    for group in found.values()
                    if group.coordinator == node_id and group.members is None
                ]
                if names:
                    busy[node_id] = _describe_calls(names)
            details = ask(network, busy, deadline_s=deadline_s, clock=requests.clock)
        for node_id, bodies in details.bodies.items():
            for body in bodies:
                for group in body.groups:
                    if group.error_code == ErrorCode.NONE:
                        found[group.group_id] = described(group, node_id)
        silent = silent_brokers(network, cluster, listed, known or {})
        silent += [
            SilentBroker(node_id, cluster.brokers.get(node_id), "ZooKeeper does not tell it its groups")
            for node_id, bodies in listed.bodies.items()
            if any(body.error_code != ErrorCode.NONE for body in bodies)
        ]
        late = silent_brokers(network, cluster, details, known or {})
        return GroupListing(dict(sorted(found.items())), tuple(dict.fromkeys([*silent, *late])))

    def describe_unless_silent(self, group: str, silent: Collection[int | None]) -> GroupDescription:
        """Like `describe_group`, but does not wait for a coordinator that is known not to answer."""
        coordinator = self._coordinator(group)
        if coordinator in silent:
            return GroupDescription(group, UNKNOWN_STATE, "", "", coordinator, None)
        return self.describe_group(group)

    def describe_group(self, group: str) -> GroupDescription:
        """Returns one group; its state is Dead if it has neither members nor offsets."""
        (call,) = _describe_calls([group])

        def results_of(body: Any) -> list[ResultCode]:
            return [ResultCode(each.error_code, f"group {group!r}", None) for each in body.groups]

        body, coordinator = self._at_coordinator(group, call, results_of)
        return described(body.groups[0], coordinator)

    # --- offsets ---

    def group_offsets(self, group: str) -> dict[TopicPartition, int]:
        """Returns the group's committed offsets: the next address to read, by partition."""

        def build(schema: Schema) -> Any:
            return schema.make("OffsetFetchRequest", group_id=group, topics=None, require_stable=False)

        def results_of(body: Any) -> list[ResultCode]:
            return [ResultCode(body.error_code, f"group {group!r}", None)]

        body, _ = self._at_coordinator(group, control_call(ApiKey.OFFSET_FETCH, build), results_of)
        return {
            (topic.name, partition.partition_index): partition.committed_offset
            for topic in body.topics
            for partition in topic.partitions
            if partition.committed_offset >= 0
        }

    def commit_offsets(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Stores the group's offsets, with as many requests as they need; after an error some may be stored.
        The coordinator refuses while members of Kafka's protocol live (`BrokerError` UNKNOWN_MEMBER_ID); it
        does not look for those of ZooKeeper.
        """
        for some in in_parts(_by_topic(offsets)):
            results_of = partial(_partition_results, group)
            self._at_coordinator(group, _commit_call(group, some), results_of)

    def lags_bytes(self, ends: Mapping[TopicPartition, int]) -> dict[str, int]:
        """Returns how many bytes below `ends` each group has yet to read.

        Groups that read none of these partitions are left out.
        """
        lags = {}
        for group in self.groups():
            committed = {key: offset for key, offset in self.group_offsets(group).items() if key in ends}
            if committed:
                lags[group] = sum(max(0, ends[key] - offset) for key, offset in committed.items())
        return lags

    # --- deleting ---

    def delete_group(self, group: str) -> None:
        """Deletes a group and its offsets.

        Raises `BrokerError`: NON_EMPTY_GROUP while members of either kind live, GROUP_ID_NOT_FOUND.
        """

        def build(schema: Schema) -> Any:
            return schema.make("DeleteGroupsRequest", groups_names=(group,))

        def results_of(body: Any) -> list[ResultCode]:
            return [ResultCode(each.error_code, f"group {each.group_id!r}", None) for each in body.results]

        call = control_call(ApiKey.DELETE_GROUPS, build)
        # Not sent twice: the second answer would be "not found".
        self._at_coordinator(group, call, results_of, repeatable=False)

    def delete_offsets(self, group: str, partitions: Collection[TopicPartition]) -> None:
        """Deletes a group's offsets of these partitions (KIP-496); what is not stored counts as deleted.

        Raises `BrokerError`: GROUP_SUBSCRIBED_TO_TOPIC while members read one of the topics, whose offsets
        then stay; NON_EMPTY_GROUP while it has members that are no consumers; GROUP_ID_NOT_FOUND.
        """

        def results_of(body: Any) -> list[ResultCode]:
            return [ResultCode(body.error_code, f"group {group!r}", None), *_partition_results(group, body)]

        for some in in_parts(_by_topic(dict.fromkeys(partitions, 0))):
            self._at_coordinator(group, _delete_offsets_call(group, some), results_of)

    # --- coordinators ---

    def _at_coordinator(
        self,
        group: str,
        call: Call,
        results_of: Callable[[Any], list[ResultCode]],
        *,
        repeatable: bool = True,
    ) -> tuple[Any, int]:
        """Returns the answer of the group's coordinator, and its id. It is looked up for each attempt: it
        changes whenever brokers come and go.
        """
        coordinator = -1

        def find(deadline_s: float) -> int:
            nonlocal coordinator
            network = self._requests.network
            body = network.send_and_wait(_find_coordinator_call(group), deadline_s=deadline_s)
            raise_first_error(_found(group, body))
            coordinator = int(body.node_id)
            return coordinator

        body = self._requests.call(call, results_of, target=find, repeatable=repeatable)
        return body, coordinator

    def _coordinator(self, group: str) -> int:
        return int(self._requests.call(_find_coordinator_call(group), partial(_found, group)).node_id)


def _find_coordinator_call(group: str) -> Call:
    def build(schema: Schema) -> Any:
        return schema.make("FindCoordinatorRequest", key=group, key_type=_GROUP_KEY)

    return control_call(ApiKey.FIND_COORDINATOR, build)


def _found(group: str, body: Any) -> list[ResultCode]:
    return [ResultCode(body.error_code, f"the coordinator of group {group!r}", body.error_message)]


def _this(node_id: int, _deadline_s: float) -> int:
    return node_id


def _list_groups_call() -> Call:
    return control_call(ApiKey.LIST_GROUPS, lambda schema: schema.make("ListGroupsRequest", states_filter=()))


def _listed(body: Any) -> list[ResultCode]:
    return [ResultCode(body.error_code, "the groups", None)]


def _describe_calls(names: list[str]) -> list[Call]:
    """Returns one DescribeGroups call for every `DESCRIBED_AT_ONCE_MAX` groups."""

    def call_of(some: list[str]) -> Call:
        def build(schema: Schema) -> Any:
            return schema.make(
                "DescribeGroupsRequest", groups=tuple(some), include_authorized_operations=False
            )

        return control_call(ApiKey.DESCRIBE_GROUPS, build)

    return [
        call_of(names[at : at + DESCRIBED_AT_ONCE_MAX]) for at in range(0, len(names), DESCRIBED_AT_ONCE_MAX)
    ]


def _overview(group: Any, coordinator: int) -> GroupDescription:
    """Returns a group of a ListGroups response; its members are yet to be asked for, unless it has none."""
    state = getattr(group, "group_state", UNKNOWN_STATE)
    members = () if state in _WITHOUT_MEMBERS else None
    return GroupDescription(group.group_id, state, group.protocol_type, "", coordinator, members)


def _by_topic(offsets: Mapping[TopicPartition, int]) -> dict[str, dict[int, int]]:
    topics: dict[str, dict[int, int]] = {}
    for (topic, partition), offset in sorted(offsets.items()):
        topics.setdefault(topic, {})[partition] = offset
    return topics


def _commit_call(group: str, offsets: Mapping[str, Mapping[int, int]]) -> Call:
    """Returns an OffsetCommit of a client outside of the group. `offsets`: topic → partition → offset."""

    def build(schema: Schema) -> Any:
        topics = tuple(
            schema.make(
                "OffsetCommitRequestTopic",
                name=name,
                partitions=tuple(
                    schema.make(
                        "OffsetCommitRequestPartition",
                        partition_index=partition,
                        committed_offset=offset,
                        committed_metadata="",
                    )
                    for partition, offset in parts.items()
                ),
            )
            for name, parts in offsets.items()
        )
        return schema.make(
            "OffsetCommitRequest",
            group_id=group,
            generation_id_or_member_epoch=_NO_GENERATION,
            member_id="",
            topics=topics,
        )

    return control_call(ApiKey.OFFSET_COMMIT, build)


def _delete_offsets_call(group: str, partitions: Mapping[str, Iterable[int]]) -> Call:
    """Returns an OffsetDelete. `partitions`: topic → partitions."""

    def build(schema: Schema) -> Any:
        topics = tuple(
            schema.make(
                "OffsetDeleteRequestTopic",
                name=name,
                partitions=tuple(
                    schema.make("OffsetDeleteRequestPartition", partition_index=number) for number in parts
                ),
            )
            for name, parts in partitions.items()
        )
        return schema.make("OffsetDeleteRequest", group_id=group, topics=topics)

    return control_call(ApiKey.OFFSET_DELETE, build)


def _partition_results(group: str, body: Any) -> list[ResultCode]:
    return [
        ResultCode(part.error_code, f"group {group!r}, {topic.name}-{part.partition_index}", None)
        for topic in body.topics
        for part in topic.partitions
    ]
