"""OffsetCommit and OffsetFetch: a group's offsets, checked against its members, stored in ZooKeeper."""

from __future__ import annotations

from typing import Any, Final

from headrace.broker.groups.coordinator import GroupCoordinator
from headrace.broker.groups.offsets import Offsets, OffsetStore, TopicPartition, is_group_name
from headrace.broker.promise import Promise
from headrace.broker.state import BrokerState
from headrace.wire.errors import ErrorCode
from headrace.wire.messages import Request

GROUPS_FROM: Final = 8  # OffsetFetch versions that ask for several groups
NO_OFFSET: Final = -1

Tree = dict[str, Any]


class OffsetService:
    """Handlers around the store."""

    def __init__(self, coordinator: GroupCoordinator, store: OffsetStore) -> None:
        self._coordinator = coordinator
        self._store = store

    def commit(self, state: BrokerState, request: Request) -> Promise[Tree]:
        """Answered when ZooKeeper has them. Unknown partitions are refused, the others stored."""
        body = request.body
        promise: Promise[Tree] = Promise()
        generation_id = getattr(body, "generation_id_or_member_epoch", -1)
        code = self._coordinator.refuse_commit(
            body.group_id, body.member_id, getattr(body, "group_instance_id", None), generation_id
        )
        if code is ErrorCode.NONE and not is_group_name(body.group_id):
            code = ErrorCode.INVALID_GROUP_ID
        known: Offsets = {}
        for topic in body.topics:
            for each in topic.partitions:
                if state.view.partition(topic.name, each.partition_index) is not None:
                    known[topic.name, each.partition_index] = each.committed_offset

        def code_of(key: TopicPartition, outcome: ErrorCode) -> ErrorCode:
            return outcome if outcome is not ErrorCode.NONE or key in known else _UNKNOWN

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


_UNKNOWN: Final = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
_UNAVAILABLE: Final = ErrorCode.COORDINATOR_NOT_AVAILABLE


def _fetched(group_id: str, keys: list[TopicPartition], found: Offsets, code: ErrorCode) -> Tree:
    topics: dict[str, list[Tree]] = {}
    for topic, index in keys:
        topics.setdefault(topic, []).append(
            {
                "partition_index": index,
                "committed_offset": found.get((topic, index), NO_OFFSET),
                "metadata": "",
                "error_code": code,
            }
        )
    return {
        "group_id": group_id,
        "error_code": code,
        "topics": [{"name": name, "partitions": partitions} for name, partitions in topics.items()],
    }
