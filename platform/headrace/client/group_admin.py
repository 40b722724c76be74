"""Administration of consumer groups: which there are, and where each has stored that it is.

Groups of both kinds: those that coordinate through ZooKeeper and those of Kafka's own protocol store their
offsets in the same registry, and the brokers tell of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, Final

from headrace.client.admin import Admin
from headrace.client.asking import Result
from headrace.client.calls import Schema, control_call
from headrace.wire.apis import ApiKey

_GROUP_KEY: Final = 0

TopicPartition = tuple[str, int]


class GroupAdmin(Admin):
    """An `Admin` that knows of groups, too."""

    def groups(self) -> list[str]:
        """The names of all groups that have members or have stored an offset."""

        def build(schema: Schema) -> Any:
            return schema.make("ListGroupsRequest", states_filter=())

        def result(body: Any) -> list[Result]:
            return [Result(body.error_code, "the groups", None)]

        found: set[str] = set()
        call = control_call(ApiKey.LIST_GROUPS, build)
        # Each broker tells of those that it coordinates.
        for node_id in self.describe_cluster().brokers:
            body = self._asker.call(call, result, partial(int, node_id), repeatable=True)
            found |= {each.group_id for each in body.groups}
        return sorted(found)

    def group_offsets(self, group: str) -> dict[TopicPartition, int]:
        """The next address to read, by (topic, partition), of all that the group has stored."""

        def build(schema: Schema) -> Any:
            return schema.make("OffsetFetchRequest", group_id=group, topics=None, require_stable=False)

        def result(body: Any) -> list[Result]:
            return [Result(body.error_code, f"group {group!r}", None)]

        coordinator = self._coordinator(group)
        call = control_call(ApiKey.OFFSET_FETCH, build)
        body = self._asker.call(call, result, lambda: coordinator, repeatable=True)
        return {
            (topic.name, each.partition_index): each.committed_offset
            for topic in body.topics
            for each in topic.partitions
            if each.committed_offset >= 0
        }

    def lags_bytes(self, ends: Mapping[TopicPartition, int]) -> dict[str, int]:
        """How many bytes below these ends each group has still to read, of the groups that read any of it."""
        lags = {}
        for group in self.groups():
            stored = {key: at for key, at in self.group_offsets(group).items() if key in ends}
            if stored:
                lags[group] = sum(max(0, ends[key] - at) for key, at in stored.items())
        return lags

    def _coordinator(self, group: str) -> int:
        def build(schema: Schema) -> Any:
            return schema.make("FindCoordinatorRequest", key=group, key_type=_GROUP_KEY)

        def result(body: Any) -> list[Result]:
            return [Result(body.error_code, f"the coordinator of group {group!r}", None)]

        call = control_call(ApiKey.FIND_COORDINATOR, build)
        return int(self._asker.call(call, result, lambda: None, repeatable=True).node_id)
