"""Administration of consumer groups: which groups exist, their committed offsets, their lags.

Covers groups that coordinate through ZooKeeper and groups of Kafka's own protocol: both commit to the same
registry, which the brokers serve.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, Final

from headrace.client.admin import Admin
from headrace.client.admin_requests import ResultCode
from headrace.client.calls import Schema, control_call
from headrace.client.cluster import TopicPartition
from headrace.wire.apis import ApiKey

_GROUP_KEY: Final = 0


class GroupAdmin(Admin):
    """An `Admin` with the operations on consumer groups."""

    def groups(self) -> list[str]:
        """Returns the names of all groups that have members or committed offsets."""

        def build(schema: Schema) -> Any:
            return schema.make("ListGroupsRequest", states_filter=())

        def results_of(body: Any) -> list[ResultCode]:
            return [ResultCode(body.error_code, "the groups", None)]

        names: set[str] = set()
        call = control_call(ApiKey.LIST_GROUPS, build)
        # Each broker lists the groups that it coordinates.
        for node_id in self.describe_cluster().brokers:
            body = self._requests.call(call, results_of, target=partial(int, node_id))
            names |= {group.group_id for group in body.groups}
        return sorted(names)

    def group_offsets(self, group: str) -> dict[TopicPartition, int]:
        """Returns the group's committed offsets: the next address to read, by partition."""

        def build(schema: Schema) -> Any:
            return schema.make("OffsetFetchRequest", group_id=group, topics=None, require_stable=False)

        def results_of(body: Any) -> list[ResultCode]:
            return [ResultCode(body.error_code, f"group {group!r}", None)]

        coordinator = self._coordinator(group)
        call = control_call(ApiKey.OFFSET_FETCH, build)
        body = self._requests.call(call, results_of, target=lambda: coordinator)
        return {
            (topic.name, partition.partition_index): partition.committed_offset
            for topic in body.topics
            for partition in topic.partitions
            if partition.committed_offset >= 0
        }

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

    def _coordinator(self, group: str) -> int:
        def build(schema: Schema) -> Any:
            return schema.make("FindCoordinatorRequest", key=group, key_type=_GROUP_KEY)

        def results_of(body: Any) -> list[ResultCode]:
            return [ResultCode(body.error_code, f"the coordinator of group {group!r}", None)]

        call = control_call(ApiKey.FIND_COORDINATOR, build)
        return int(self._requests.call(call, results_of).node_id)
