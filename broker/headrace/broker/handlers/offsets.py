"""OffsetCommit and OffsetFetch: a group's offsets, checked against its members, stored in ZooKeeper."""

from __future__ import annotations

from typing import Any, Final

from headrace.broker.bodies import Tree
from headrace.broker.groups.committed import Committed, Offsets, TopicPartition
from headrace.broker.groups.coordinator import GroupCoordinator
from headrace.broker.groups.offsets import OffsetStore, is_group_name
from headrace.broker.promise import Promise
from headrace.broker.state import BrokerState
from headrace.wire.errors import ErrorCode
from headrace.wire.messages import Request

GROUPS_FROM: Final = 8  # OffsetFetch versions that ask for several groups
NOTHING: Final = Committed(-1)


class OffsetService:
    """Handlers around the store."""

    def __init__(self, coordinator: GroupCoordinator, store: OffsetStore) -> None:
        self._coordinator = coordinator
        self._store = store

    def commit(self, state: BrokerState, request: Request) -> Promise[Tree]:
        """Answered when ZooKeeper has them. Unknown partitions and words that are too long are refused, the
        others stored.
        """
        body = request.body
        promise: Promise[Tree] = Promise()
        generation_id = getattr(body, "generation_id_or_member_epoch", -1)
        code = self._coordinator.refuse_commit(
            body.group_id, body.member_id, getattr(body, "group_instance_id", None), generation_id
        )
        if code is ErrorCode.NONE and not is_group_name(body.group_id):
            code = ErrorCode.INVALID_GROUP_ID
        known: Offsets = {}
        refused: dict[TopicPartition, ErrorCode] = {}
        for topic in body.topics:
            for each in topic.partitions:
                key = (topic.name, each.partition_index)
                metadata = each.committed_metadata or ""
                if state.view.partition(*key) is None:
                    refused[key] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                elif len(metadata.encode()) > state.config["offset.metadata.max.bytes"]:
                    refused[key] = ErrorCode.OFFSET_METADATA_TOO_LARGE
                else:
                    known[key] = Committed(each.committed_offset, metadata)

        def code_of(key: TopicPartition, outcome: ErrorCode) -> ErrorCode:
            return outcome if outcome is not ErrorCode.NONE else refused.get(key, outcome)

        def answer(outcome: ErrorCode) -> None:
            promise.resolve(
                {
                    "topics": [
                        {
                            "name": topic.name,
                            "partitions": [
                                {
                                    "partition_index": each.partition_index,
                                    "error_code": code_of((topic.name, each.partition_index), outcome),
                                }
                                for each in topic.partitions
                            ],
                        }
                        for topic in body.topics
                    ]
                }
            )

        if code is not ErrorCode.NONE or not known:
            answer(code)
        else:
            stored = self._store.commit(body.group_id, known)
            stored.then(lambda error: answer(ErrorCode.NONE if error is None else _UNAVAILABLE))
        return promise

    def fetch(self, _: BrokerState, request: Request) -> Promise[Tree]:
        """What the groups stored; -1 where there is nothing."""
        body = request.body
        promise: Promise[Tree] = Promise()
        if request.version >= GROUPS_FROM:
            asked = [(group.group_id, group.topics) for group in body.groups]
        else:
            asked = [(body.group_id, body.topics)]
        answers: list[Tree] = [{} for _ in asked]
        left = len(asked)

        def answered(at: int, answer: Tree) -> None:
            nonlocal left
            answers[at] = answer
            left -= 1
            if not left:
                promise.resolve({"groups": answers} if request.version >= GROUPS_FROM else answers[0])

        if not asked:
            promise.resolve({"groups": []})
        for at, (group_id, topics) in enumerate(asked):
            self._fetch_group(group_id, topics, lambda answer, at=at: answered(at, answer))
        return promise

    def _fetch_group(self, group_id: str, topics: Any, done: Any) -> None:
        code = self._coordinator.refuse_offset_read(group_id)
        if code is ErrorCode.NONE and not is_group_name(group_id):
            code = ErrorCode.INVALID_GROUP_ID
        wanted = None
        if topics is not None:
            wanted = [(topic.name, index) for topic in topics for index in topic.partition_indexes]
        if code is not ErrorCode.NONE:
            done(_fetched(group_id, wanted or [], {}, code))
            return

        def read(found: Offsets | Exception) -> None:
            if isinstance(found, Exception):
                done(_fetched(group_id, wanted or [], {}, _UNAVAILABLE))
            else:
                done(
                    _fetched(group_id, wanted if wanted is not None else sorted(found), found, ErrorCode.NONE)
                )

        self._store.read(group_id, wanted).then(read)


_UNAVAILABLE: Final = ErrorCode.COORDINATOR_NOT_AVAILABLE


def _fetched(group_id: str, keys: list[TopicPartition], found: Offsets, code: ErrorCode) -> Tree:
    topics: dict[str, list[Tree]] = {}
    for topic, index in keys:
        committed = found.get((topic, index), NOTHING)
        topics.setdefault(topic, []).append(
            {
                "partition_index": index,
                "committed_offset": committed.offset,
                "metadata": committed.metadata,
                "error_code": code,
            }
        )
    return {
        "group_id": group_id,
        "error_code": code,
        "topics": [{"name": name, "partitions": partitions} for name, partitions in topics.items()],
    }
