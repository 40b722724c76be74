"""Administration of replicas: a survey of them, reassignments, preferred leaders."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from headrace.client.admin import Admin
from headrace.client.admin_requests import ResultCode
from headrace.client.asking import ANSWER_MAX_S
from headrace.client.calls import Schema, control_call, milliseconds
from headrace.client.cluster import BrokerAddress, TopicPartition
from headrace.client.errors import BrokerError
from headrace.client.replicas import SERVER_WAIT_MS, ReplicaSurvey, take_replica_survey
from headrace.wire.apis import ApiKey
from headrace.wire.errors import ErrorCode

PREFERRED: Final = 0

Refusals = dict[TopicPartition, BrokerError]
"""Why brokers refused a change, by partition; without those that were changed."""


class ReplicaAdmin(Admin):
    """An `Admin` with the operations on replicas."""

    def replicas(self, *, known: Mapping[int, BrokerAddress] | None = None) -> ReplicaSurvey:
        """Returns which broker has which replicas. `known`: see `Admin.survey`.

        Raises `NetworkError` if no broker tells it.
        """
        requests = self._requests
        with requests.alone():
            return take_replica_survey(
                requests.network,
                requests.refresh,
                known=known or {},
                clock=requests.clock,
                answer_max_s=min(ANSWER_MAX_S, requests.left_s()),
            )

    def reassign(self, targets: Mapping[TopicPartition, Sequence[int] | None]) -> Refusals:
        """Begins to move partitions to these replicas, the preferred leader first; None calls a reassignment
        off. Repeating it changes nothing."""
        by_topic: dict[str, dict[int, Sequence[int] | None]] = {}
        for (topic, partition), replicas in targets.items():
            by_topic.setdefault(topic, {})[partition] = replicas

        def build(schema: Schema) -> Any:
            topics = tuple(
                schema.make(
                    "ReassignableTopic",
                    name=topic,
                    partitions=tuple(
                        schema.make(
                            "ReassignablePartition",
                            partition_index=partition,
                            replicas=None if replicas is None else tuple(replicas),
                        )
                        for partition, replicas in partitions.items()
                    ),
                )
                for topic, partitions in by_topic.items()
            )
            timeout = milliseconds(SERVER_WAIT_MS)
            return schema.make("AlterPartitionReassignmentsRequest", timeout=timeout, topics=topics)

        body = self._call(ApiKey.ALTER_PARTITION_REASSIGNMENTS, build)
        return _refusals(
            (topic.name, part.partition_index, part) for topic in body.responses for part in topic.partitions
        )

    def elect_preferred(self, partitions: Iterable[TopicPartition]) -> Refusals:
        """Gives partitions to their preferred leaders; those that have them already count as changed."""
        by_topic: dict[str, list[int]] = {}
        for topic, partition in partitions:
            by_topic.setdefault(topic, []).append(partition)

        def build(schema: Schema) -> Any:
            topics = tuple(
                schema.make("TopicPartitions", topic=topic, partitions=tuple(numbers))
                for topic, numbers in by_topic.items()
            )
            timeout = milliseconds(SERVER_WAIT_MS)
            return schema.make(
                "ElectLeadersRequest", election_type=PREFERRED, topic_partitions=topics, timeout=timeout
            )

        body = self._call(ApiKey.ELECT_LEADERS, build)
        found = _refusals(
            (topic.topic, part.partition_id, part)
            for topic in body.replica_election_results
            for part in topic.partition_result
        )
        return {key: error for key, error in found.items() if error.code is not ErrorCode.ELECTION_NOT_NEEDED}

    def _call(self, api_key: ApiKey, build: Any) -> Any:
        def results_of(body: Any) -> list[ResultCode]:
            message = getattr(body, "error_message", None)
            return [ResultCode(getattr(body, "error_code", ErrorCode.NONE), api_key.name, message)]

        return self._requests.call(control_call(api_key, build), results_of)


def _refusals(results: Iterable[tuple[str, int, Any]]) -> Refusals:
    return {
        (topic, partition): BrokerError(result.error_code, f"{topic}-{partition}", result.error_message)
        for topic, partition, result in results
        if result.error_code != ErrorCode.NONE
    }
