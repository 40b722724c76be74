"""ElectLeaders (KIP-460), AlterPartitionReassignments and ListPartitionReassignments (KIP-455).

Any broker serves them, as it serves CreateTopics. A response means that ZooKeeper has the change, for a
reassignment that it has begun, and that this broker sees it: a list of those under way then names it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any, Final

from headrace.broker.bodies import Tree
from headrace.broker.errors import Refused
from headrace.broker.leadership.administration import LeadershipAdmin, Made, Outcome
from headrace.broker.promise import Promise
from headrace.broker.service import Api, BrokerService
from headrace.broker.state import BrokerState
from headrace.coordination.topics import TopicRegistry
from headrace.wire.apis import ApiKey
from headrace.wire.errors import ErrorCode
from headrace.wire.messages import Request
from headrace.wire.topic_names import is_topic_name

SHOWN_WAIT_MAX_S: Final = 5.0
PREFERRED: Final = 0
UNCLEAN: Final = 1


class LeadershipService:
    """Serves the three APIs."""

    def __init__(self, state: BrokerState, registry: TopicRegistry) -> None:
        self._admin = LeadershipAdmin(registry, lambda: state.view, state.offline_logs, state.topic_config)

    def serve(self, service: BrokerService) -> None:
        service.add(ApiKey.ELECT_LEADERS, Api(0, 2, self.elect))
        service.add(ApiKey.ALTER_PARTITION_REASSIGNMENTS, Api(0, 1, self.alter_reassignments))
        service.add(ApiKey.LIST_PARTITION_REASSIGNMENTS, Api(0, 0, list_reassignments))

    def elect(self, state: BrokerState, request: Request) -> Promise[Any] | Tree:
        body = request.body
        kind = getattr(body, "election_type", PREFERRED)
        if kind not in (PREFERRED, UNCLEAN):
            return {"error_code": ErrorCode.INVALID_REQUEST, "replica_election_results": []}
        run = self._admin.elect_preferred if kind == PREFERRED else self._admin.elect_unclean
        everything = body.topic_partitions is None
        if everything:
            wanted = {name: list(topic.partitions) for name, topic in state.view.topics.items()}
        else:
            wanted = _merged((each.topic, each.partitions) for each in body.topic_partitions)

        made: Made = []

        def step(topic: str, partitions: list[int]) -> Callable[[Refused | None], Tree]:
            def elected(refusal: Refused | None) -> Tree:
                outcome = _outcome(topic, partitions, refusal, lambda: run(topic, partitions, made))
                if everything:
                    outcome = {index: found for index, found in outcome.items() if not _needless(found)}
                results = [{"partition_id": index, **_fields(found)} for index, found in outcome.items()]
                return {"topic": topic, "partition_result": results}

            return elected

        return self._answer(state, "replica_election_results", [step(*each) for each in wanted.items()], made)

    def alter_reassignments(self, state: BrokerState, request: Request) -> Promise[Any]:
        wanted: dict[str, dict[int, Any]] = {}
        for topic in request.body.topics:
            chosen = wanted.setdefault(topic.name, {})
            chosen.update({each.partition_index: each.replicas for each in topic.partitions})

        made: Made = []
        may_resize = getattr(request.body, "allow_replication_factor_change", True)  # KIP-860

        def step(topic: str, chosen: dict[int, Any]) -> Callable[[Refused | None], Tree]:
            def altered(refusal: Refused | None) -> Tree:
                outcome = _outcome(
                    topic,
                    chosen,
                    refusal,
                    lambda: self._admin.reassign(topic, chosen, made, may_resize=may_resize),
                )
                results = [{"partition_index": index, **_fields(found)} for index, found in outcome.items()]
                return {"name": topic, "partitions": results}

            return altered

        return self._answer(state, "responses", [step(*each) for each in wanted.items()], made)

    def _answer(
        self, state: BrokerState, field_name: str, steps: list[Callable[[Refused | None], Tree]], made: Made
    ) -> Promise[Any]:
        """Takes the steps, waits until this broker sees what they have `made`, and resolves."""
        promise: Promise[Any] = Promise()
        top: Tree = {"error_code": ErrorCode.NONE, "error_message": None}

        def taken(found: Tree | Exception) -> None:
            until_s = time.monotonic() + SHOWN_WAIT_MAX_S
            state.when(lambda: all(map(self._admin.is_shown, made)), until_s).then(
                lambda _: promise.resolve(found if isinstance(found, Exception) else top | found)
            )

        state.later(field_name, steps).then(taken)
        return promise


def list_reassignments(state: BrokerState, request: Request) -> Tree:
    wanted = request.body.topics
    named = None
    if wanted is not None:
        merged = _merged((each.name, each.partition_indexes) for each in wanted)
        named = {name: frozenset(partitions) for name, partitions in merged.items()}
    topics: list[Tree] = []
    for name, topic in state.view.topics.items():
        if named is not None and name not in named:
            continue
        moving = [
            {
                "partition_index": index,
                "replicas": partition.replicas,
                "adding_replicas": partition.adding,
                "removing_replicas": partition.removing,
            }
            for index, partition in topic.partitions.items()
            if (partition.adding or partition.removing) and (named is None or index in named[name])
        ]
        if moving:
            topics.append({"name": name, "partitions": moving})
    return {"error_code": ErrorCode.NONE, "error_message": None, "topics": topics}


def _merged(topics: Iterable[tuple[str, Iterable[int]]]) -> dict[str, list[int]]:
    merged: dict[str, list[int]] = {}
    for name, partitions in topics:
        merged.setdefault(name, []).extend(partitions)
    return merged


def _outcome(
    topic: str, partitions: Iterable[int], refusal: Refused | None, run: Callable[[], Outcome]
) -> Outcome:
    if refusal is None and not is_topic_name(topic):
        refusal = Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {topic!r}")
    return run() if refusal is None else dict.fromkeys(partitions, refusal)


def _needless(found: Refused | None) -> bool:
    return found is not None and found.code == ErrorCode.ELECTION_NOT_NEEDED


def _fields(found: Refused | None) -> Tree:
    return {"error_code": ErrorCode.NONE, "error_message": None} if found is None else found.fields
