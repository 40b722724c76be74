"""OffsetCommit, OffsetFetch, OffsetDelete: a group's offsets, checked against its members, stored in
ZooKeeper.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Set
from functools import partial
from typing import Any, Final

from headrace.broker.bodies import Tree
from headrace.broker.errors import Refused
from headrace.broker.groups.coordinator import GroupCoordinator
from headrace.broker.groups.deletion import NoGroupError
from headrace.broker.groups.fencing import NotCoordinatorError
from headrace.broker.groups.offset_nodes import Committed, Offsets
from headrace.broker.groups.recovery import Then
from headrace.broker.groups.room import NoRoomError
from headrace.broker.groups.store import GroupStore
from headrace.broker.promise import Promise
from headrace.broker.state import BrokerState
from headrace.coordination.consumers import is_group_name
from headrace.wire.errors import ErrorCode
from headrace.wire.messages import Request
from headrace.wire.topic_names import TopicPartition

logger = logging.getLogger(__name__)

GROUPS_FROM: Final = 8  # OffsetFetch versions that name several groups
NOTHING: Final = Committed(-1)
REPORT_EVERY_S: Final = 10.0


class OffsetService:
    """The handlers of these APIs, around the store."""

    def __init__(
        self, coordinator: GroupCoordinator, store: GroupStore, when_known: Callable[[str, Then], None]
    ) -> None:
        self._coordinator = coordinator
        self._when_known = when_known
        self._store = store
        self._reported_s = -REPORT_EVERY_S

    def commit(self, state: BrokerState, request: Request) -> Promise[Tree]:
        """Commits offsets; responds when ZooKeeper has them. Unknown partitions and metadata that is too long
        are refused; all others are stored.
        """
        body = request.body
        promise: Promise[Tree] = Promise()
        generation_id = getattr(body, "generation_id_or_member_epoch", -1)
        known, refused = _commits_of(state, body)

        def code_of(key: TopicPartition, outcome: ErrorCode) -> ErrorCode:
            return outcome if outcome is not ErrorCode.NONE else refused.get(key, outcome)

        def respond(outcome: ErrorCode) -> None:
            promise.resolve(
                {
                    "topics": [
                        {
                            "name": topic.name,
                            "partitions": [
                                {
                                    "partition_index": part.partition_index,
                                    "error_code": code_of((topic.name, part.partition_index), outcome),
                                }
                                for part in topic.partitions
                            ],
                        }
                        for topic in body.topics
                    ]
                }
            )

        def stored(error: Exception | None) -> None:
            if error is not None:
                self._report(body.group_id, "stored", error)
            if isinstance(error, NoRoomError):  # clients do not repeat the commit of these
                refused.update(dict.fromkeys(error.refused, ErrorCode.INVALID_COMMIT_OFFSET_SIZE))
                error = None
            respond(_code_of(error))

        def commit(code: ErrorCode) -> None:
            if code is ErrorCode.NONE:
                code = self._coordinator.check_commit(
                    body.group_id, body.member_id, getattr(body, "group_instance_id", None), generation_id
                )
            if code is ErrorCode.NONE and not is_group_name(body.group_id):
                code = ErrorCode.INVALID_GROUP_ID
            if code is not ErrorCode.NONE or not known:
                respond(code)
            else:
                self._store.commit(body.group_id, known).then(stored)

        self._when_known(body.group_id, commit)
        return promise

    def delete(self, state: BrokerState, request: Request) -> Promise[Tree]:
        """Deletes offsets (KIP-496), but not those of topics that members read."""
        body = request.body
        promise: Promise[Tree] = Promise()
        group, named = body.group_id, {topic.name for topic in body.topics}
        read: Set[str] = frozenset()

        # What exists is looked at once: a topic that is made meanwhile would else count as deleted.
        keys = {(topic.name, part.partition_index) for topic in body.topics for part in topic.partitions}
        known = {key for key in keys if state.view.partition(*key) is not None}

        def code_of(key: TopicPartition, kept: Set[str]) -> ErrorCode:
            if key not in known:
                return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            return ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC if key[0] in kept else ErrorCode.NONE

        def topic_results(topic: Any, kept: Set[str]) -> Tree:
            numbers = [part.partition_index for part in topic.partitions]
            codes = [
                {"partition_index": each, "error_code": code_of((topic.name, each), kept)} for each in numbers
            ]
            return {"name": topic.name, "partitions": codes}

        def respond(outcome: Set[str] | Exception) -> None:
            if isinstance(outcome, NoGroupError) and self._coordinator.describe(group)[1] is not None:
                outcome = frozenset()  # its members have stored nothing yet
            if isinstance(outcome, Exception):
                self._report(group, "deleted", outcome)
                promise.resolve({"error_code": _code_of(outcome), "topics": []})
            else:
                results = [topic_results(topic, read | outcome) for topic in body.topics]
                promise.resolve({"error_code": ErrorCode.NONE, "topics": results})

        def delete(code: ErrorCode) -> None:
            nonlocal read
            if code is ErrorCode.NONE:
                code, read = self._coordinator.refuse_offset_deletion(group, named)
            if code is ErrorCode.NONE and not is_group_name(group):
                code = ErrorCode.INVALID_GROUP_ID
            if code is not ErrorCode.NONE:
                promise.resolve({"error_code": code, "topics": []})
            else:
                unread = sorted(key for key in known if key[0] not in read)
                self._store.delete_offsets(group, unread).then(respond)

        self._when_known(group, delete)
        return promise

    def _report(self, group_id: str, what: str, error: Exception) -> None:
        """Says why offsets are not stored or read, now and then: clients only ask again and again."""
        now_s = time.monotonic()
        is_expected = isinstance(error, (NotCoordinatorError, NoGroupError, Refused))
        if not is_expected and now_s - self._reported_s >= REPORT_EVERY_S:
            self._reported_s = now_s
            logger.warning("group %r: its offsets are not %s: %s", group_id, what, error)

    def fetch(self, _: BrokerState, request: Request) -> Promise[Tree]:
        """Returns the groups' offsets; -1 where there is none."""
        body = request.body
        promise: Promise[Tree] = Promise()
        several = request.version >= GROUPS_FROM
        wanted = _by_group(body.groups) if several else [(body.group_id, body.topics)]
        groups: list[Tree] = [{} for _ in wanted]
        left = len(wanted)

        def fetched(at: int, group: Tree) -> None:
            nonlocal left
            groups[at] = group
            left -= 1
            if not left:
                promise.resolve({"groups": groups} if several else groups[0])

        if not wanted:
            promise.resolve({"groups": []})
        for at, (group_id, topics) in enumerate(wanted):
            self._fetch_group(group_id, topics, partial(fetched, at))
        return promise

    def _fetch_group(self, group_id: str, topics: Any, done: Callable[[Tree], None]) -> None:
        code = self._coordinator.misplaced(group_id)
        if code is ErrorCode.NONE and not is_group_name(group_id):
            code = ErrorCode.INVALID_GROUP_ID
        wanted = None
        if topics is not None:
            named = ((topic.name, index) for topic in topics for index in topic.partition_indexes)
            wanted = list(dict.fromkeys(named))
        if code is not ErrorCode.NONE:
            done(_fetched(group_id, wanted or [], {}, code))
            return

        def read(found: Offsets | Exception) -> None:
            if isinstance(found, Exception):
                self._report(group_id, "read", found)
                done(_fetched(group_id, wanted or [], {}, _UNREADABLE))
            else:
                done(
                    _fetched(group_id, wanted if wanted is not None else sorted(found), found, ErrorCode.NONE)
                )

        self._store.read(group_id, wanted).then(read)


def _by_group(groups: Iterable[Any]) -> list[tuple[str, list[Any] | None]]:
    """Returns each group once, with all topics that are asked for (None: all it has). Repeated ones would
    multiply the response: a name is short, and a group may have megabytes.
    """
    found: dict[str, list[Any] | None] = {}
    for group in groups:
        topics = found.setdefault(group.group_id, [])
        if group.topics is None or topics is None:
            found[group.group_id] = None
        else:
            topics.extend(group.topics)
    return list(found.items())


def _commits_of(state: BrokerState, body: Any) -> tuple[Offsets, dict[TopicPartition, ErrorCode]]:
    """Returns the offsets of a request that may be stored, and why the others may not."""
    known: Offsets = {}
    refused: dict[TopicPartition, ErrorCode] = {}
    for topic in body.topics:
        for part in topic.partitions:
            key = (topic.name, part.partition_index)
            metadata = part.committed_metadata or ""
            if state.view.partition(*key) is None:
                refused[key] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            elif len(metadata.encode()) > state.config["offset.metadata.max.bytes"]:
                refused[key] = ErrorCode.OFFSET_METADATA_TOO_LARGE
            else:
                known[key] = Committed(part.committed_offset, metadata)
    return known, refused


_UNAVAILABLE: Final = ErrorCode.COORDINATOR_NOT_AVAILABLE
# Apache Kafka's consumer asks again after this one; COORDINATOR_NOT_AVAILABLE in answer to an OffsetFetch
# ends its poll with an exception.
_UNREADABLE: Final = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS


def _code_of(error: Exception | None) -> ErrorCode:
    if error is None:
        return ErrorCode.NONE
    if isinstance(error, NoGroupError):
        return ErrorCode.GROUP_ID_NOT_FOUND
    return ErrorCode.NOT_COORDINATOR if isinstance(error, NotCoordinatorError) else _UNAVAILABLE


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
