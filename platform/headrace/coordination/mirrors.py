"""The map from source partitions to partitions of the analysis cluster: `/headrace/mirrors/<topic>`.

A topic keeps its name. Its analysis partitions are assigned to (datacenter, source partition) in the order of
claims and never reassigned. The map is stored in the analysis cluster's ZooKeeper only.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple
from uuid import UUID

from headrace.coordination import documents, znodes
from headrace.coordination.errors import BadVersionError, CorruptNodeError, NodeExistsError
from headrace.coordination.nodes import Node
from headrace.coordination.session import ZooKeeperSession


class MirrorSource(NamedTuple):
    """The source partition that a mirror partition copies."""

    datacenter: str
    partition: int


class MirrorMap:
    def __init__(self, session: ZooKeeperSession) -> None:
        self._session = session

    def topics(self) -> list[str]:
        return self._session.children_or_empty(znodes.MIRRORS)

    def sources(self, topic: str) -> list[MirrorSource]:
        """Returns the source of each analysis partition, in partition order; empty if the topic is not
        mirrored."""
        return self._parse(topic, self._session.get_or_none(znodes.mirror(topic)))

    def sources_with_ids(self, topic: str) -> tuple[list[MirrorSource], dict[int, UUID]]:
        """Returns `sources` and `topic_ids` of one moment."""
        node = self._session.get_or_none(znodes.mirror(topic))
        return self._parse(topic, node), self._parse_ids(topic, node)

    def claim(self, datacenter: str, topic: str, source_partition_count: int) -> list[int]:
        """Assigns an analysis partition to each of a source topic's partitions that has none yet.

        Returns the analysis partitions of source partitions 0, 1, …. Concurrent claims of several mirrors
        never get the same one.
        """
        wanted = [MirrorSource(datacenter, partition) for partition in range(source_partition_count)]
        while True:
            node = self._session.get_or_none(znodes.mirror(topic))
            sources = self._parse(topic, node)
            added = [source for source in wanted if source not in sources]
            if not added:
                return [sources.index(source) for source in wanted]
            self._replace(topic, node, [*sources, *added], self._parse_ids(topic, node))

    def topic_ids(self, topic: str) -> dict[int, UUID]:
        """Returns, by analysis partition, the id of the source topic whose bytes it holds. A partition is
        missing until the first bytes are about to be copied.
        """
        return self._parse_ids(topic, self._session.get_or_none(znodes.mirror(topic)))

    def note_topic_ids(self, topic: str, ids: Mapping[int, UUID]) -> None:
        """Records, by analysis partition, whose bytes it will hold from now on: call it for empty ones only,
        or those that have no id yet.
        """
        while True:
            node = self._session.get_or_none(znodes.mirror(topic))
            known = self._parse_ids(topic, node)
            wanted = {**known, **ids}
            if node is None or wanted == known:
                return
            self._replace(topic, node, self._parse(topic, node), wanted)

    def _replace(
        self, topic: str, node: Node | None, sources: list[MirrorSource], ids: Mapping[int, UUID]
    ) -> None:
        """Writes the map, unless it has changed since `node` was read."""
        path = znodes.mirror(topic)
        content: dict[str, Any] = {"partitions": sources}
        if ids:
            content["topic_ids"] = {str(partition): str(topic_id) for partition, topic_id in ids.items()}
        try:
            if node is None:
                self._session.create(path, documents.encode(content), make_parents=True)
            else:
                self._session.set(path, documents.encode(content), version=node.stat.version)
        except (BadVersionError, NodeExistsError):
            return

    @staticmethod
    def _parse(topic: str, node: Node | None) -> list[MirrorSource]:
        if node is None:
            return []
        path = znodes.mirror(topic)
        try:
            return [
                MirrorSource(str(dc), int(p)) for dc, p in documents.decode(path, node.data)["partitions"]
            ]
        except (KeyError, ValueError, TypeError):
            raise CorruptNodeError(f"{path}: not a list of mirror sources: {node.data[:80]!r}") from None

    @staticmethod
    def _parse_ids(topic: str, node: Node | None) -> dict[int, UUID]:
        if node is None:
            return {}
        path = znodes.mirror(topic)
        try:
            found = documents.decode(path, node.data).get("topic_ids", {})
            return {int(partition): UUID(topic_id) for partition, topic_id in found.items()}
        except (AttributeError, ValueError, TypeError):
            raise CorruptNodeError(f"{path}: not a map of topic ids: {node.data[:80]!r}") from None
