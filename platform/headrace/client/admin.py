"""Administration of topics, configurations, the cluster and offsets, by blocking calls.

Owns the requests and the meaning of the responses. `client.admin_requests` sends and retries them.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Self
from uuid import UUID

from headrace.client.admin_requests import AdminRequests, ResultCode, existing_topic
from headrace.client.altering import APPEND, BROKER_RESOURCE, SUBTRACT, TOPIC_RESOURCE, altering
from headrace.client.asking import ANSWER_MAX_S
from headrace.client.calls import EARLIEST as EARLIEST
from headrace.client.calls import LATEST as LATEST
from headrace.client.calls import Schema, control_call, milliseconds
from headrace.client.cluster import BrokerAddress, TopicInfo, TopicPartition
from headrace.client.eligible import eligible_replicas
from headrace.client.errors import BrokerError
from headrace.client.listed_offsets import OffsetAndTimestamp as OffsetAndTimestamp
from headrace.client.listed_offsets import list_offsets
from headrace.client.log_dirs import LogDirectory, log_dirs_call, read_log_dirs
from headrace.client.network import Network
from headrace.client.replicas import Reassignment, list_reassignments_call, read_reassignments
from headrace.client.survey import Survey, take_survey
from headrace.wire.apis import ApiKey
from headrace.wire.errors import ErrorCode
from headrace.wire.primitives import NO_UUID

_RESOURCES_PER_REQUEST_MAX: Final = 100
_BROKERS_CHOICE: Final = -1  # KIP-464


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """One setting. `source`: Kafka's number for where the value was set (1 on the resource, 5 a default)."""

    name: str
    value: str | None
    source: int
    is_read_only: bool
    is_sensitive: bool

    @property
    def is_own(self) -> bool:
        """Whether the value was set on the resource itself."""
        return self.source == 1


@dataclass(frozen=True, slots=True)
class ClusterDescription:
    """The brokers by id, the controller's id (-1: unknown), and the cluster's id."""

    cluster_id: str | None
    controller_id: int
    brokers: Mapping[int, BrokerAddress]


class Admin:
    """A context manager. Safe to share: calls wait for each other, each at most `timeout_ms`, and all
    together at most `total_ms`. Each that begins later has `LATE_CALL_S`, all of those `LATE_MAX_S`.

    Every call raises `BrokerError` if a broker refuses, `NetworkError` if none responds, and
    `UnsupportedApiError`.
    """

    def __init__(
        self,
        bootstrap: str | Iterable[str],
        *,
        client_id: str = "headrace-admin",
        timeout_ms: float = 30_000,
        total_ms: float | None = None,
        clock: Callable[[], float] = time.monotonic,
        draw: Callable[[], float] = random.random,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        network = Network(
            bootstrap, client_id=client_id, request_timeout_ms=timeout_ms, clock=clock, draw=draw
        )
        self._timeout_ms = milliseconds(timeout_ms)
        self._requests = AdminRequests(
            network, timeout_ms=timeout_ms, total_ms=total_ms, clock=clock, draw=draw, sleep=sleep
        )

    # --- topics ---

    def topics(self) -> dict[str, TopicInfo]:
        """Returns all topics by name."""
        return dict(self._requests.metadata(None).topics)

    def topic(self, name: str) -> TopicInfo:
        """Returns one topic. Raises `UnknownTopicError`."""
        info = existing_topic(name, self._requests.metadata([name]))
        if info.error is not ErrorCode.NONE:
            raise BrokerError(info.error, f"topic {name!r}")
        return info

    def create_topic(
        self,
        name: str,
        partitions: int,
        replication_factor: int | None = None,
        config: Mapping[str, str] | None = None,
        *,
        wait_for_leaders: bool = True,
        validate_only: bool = False,
    ) -> UUID:
        """Creates a topic and returns its id, by default once every partition has a leader.

        `replication_factor`: None: what the brokers choose. `validate_only`: raises what creating it
        would raise, and creates nothing.
        """

        def build(schema: Schema) -> Any:
            entries = (config or {}).items()
            topic = schema.make(
                "CreatableTopic",
                name=name,
                num_partitions=partitions,
                replication_factor=replication_factor or _BROKERS_CHOICE,
                assignments=(),
                configs=tuple(schema.make("CreatableTopicConfig", name=k, value=v) for k, v in entries),
            )
            return schema.make(
                "CreateTopicsRequest",
                topics=(topic,),
                timeout=self._timeout_ms,
                validate_only=validate_only,
            )

        def results_of(body: Any) -> list[ResultCode]:
            return [ResultCode(t.error_code, f"topic {t.name!r}", t.error_message) for t in body.topics]

        body = self._requests.change(ApiKey.CREATE_TOPICS, build, results_of)
        if wait_for_leaders and not validate_only:
            self._requests.wait_for_leaders(name, partitions)
        return getattr(body.topics[0], "topic_id", None) or NO_UUID

    def delete_topic(self, name: str) -> None:
        """Deletes a topic and its records."""

        def build(schema: Schema) -> Any:
            if schema.version >= 6:
                states = (schema.make("DeleteTopicState", name=name, topic_id=None),)
                return schema.make("DeleteTopicsRequest", topics=states, timeout=self._timeout_ms)
            return schema.make("DeleteTopicsRequest", topic_names=(name,), timeout=self._timeout_ms)

        def results_of(body: Any) -> list[ResultCode]:
            return [
                ResultCode(t.error_code, f"topic {t.name!r}", getattr(t, "error_message", None))
                for t in body.responses
            ]

        self._requests.change(ApiKey.DELETE_TOPICS, build, results_of)

    def create_partitions(self, name: str, total: int) -> None:
        """Adds partitions until the topic has `total`. A key may map to another partition from then on."""

        def build(schema: Schema) -> Any:
            topic = schema.make("CreatePartitionsTopic", name=name, count=total, assignments=None)
            return schema.make(
                "CreatePartitionsRequest",
                topics=(topic,),
                timeout=self._timeout_ms,
                validate_only=False,
            )

        def results_of(body: Any) -> list[ResultCode]:
            return [ResultCode(t.error_code, f"topic {t.name!r}", t.error_message) for t in body.results]

        self._requests.change(ApiKey.CREATE_PARTITIONS, build, results_of)
        self._requests.wait_for_leaders(name, total)

    def reassignments(self, topic: str, partitions: Iterable[int]) -> dict[TopicPartition, Reassignment]:
        """Returns those of the topic's partitions that are on their way to other replicas."""

        def results_of(body: Any) -> list[ResultCode]:
            return [ResultCode(body.error_code, repr(topic), body.error_message)]

        return read_reassignments(
            self._requests.call(list_reassignments_call({topic: partitions}), results_of)
        )

    def eligible_replicas(self, topic: str) -> dict[int, tuple[int, ...]]:
        """Returns the eligible leader replicas of the topic's partitions that have some (KIP-966)."""
        return eligible_replicas(lambda call: self._requests.call(call, lambda _: []), topic)

    # --- configurations ---

    def describe_configs(self, topic: str) -> dict[str, ConfigEntry]:
        """Returns a topic's settings by name, defaults included."""
        return self._describe(TOPIC_RESOURCE, topic, None)

    def topic_settings(self, topics: Iterable[str], names: Iterable[str]) -> dict[str, dict[str, str]]:
        """Returns the named settings of many topics, by topic; without topics that do not exist."""
        wanted, keys = list(topics), tuple(names)
        found: dict[str, dict[str, str]] = {}
        for start in range(0, len(wanted), _RESOURCES_PER_REQUEST_MAX):
            some = wanted[start : start + _RESOURCES_PER_REQUEST_MAX]
            body = self._describe_resources(TOPIC_RESOURCE, some, keys, None, gone_is_error=False)
            for result in body.results:
                if result.error_code == ErrorCode.NONE:
                    entries = {entry.name: entry.value or "" for entry in result.configs}
                    found[result.resource_name] = entries
        return found

    def describe_broker_configs(
        self, broker_id: int, names: Iterable[str] | None = None
    ) -> dict[str, ConfigEntry]:
        """Returns a broker's settings by name, from the broker itself: all, or those with these names."""
        keys = None if names is None else tuple(names)
        return self._describe(BROKER_RESOURCE, str(broker_id), broker_id, keys)

    def _describe(
        self, kind: int, name: str, node_id: int | None, keys: tuple[str, ...] | None = None
    ) -> dict[str, ConfigEntry]:
        body = self._describe_resources(kind, [name], keys, node_id)
        return {
            entry.name: ConfigEntry(
                entry.name, entry.value, entry.config_source, entry.read_only, entry.is_sensitive
            )
            for entry in body.results[0].configs
        }

    def _describe_resources(
        self,
        kind: int,
        names: Iterable[str],
        keys: tuple[str, ...] | None,
        node_id: int | None,
        *,
        gone_is_error: bool = True,
    ) -> Any:
        """Returns the response. `keys` None: all settings."""
        ignored = () if gone_is_error else (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,)

        def build(schema: Schema) -> Any:
            resources = tuple(
                schema.make(
                    "DescribeConfigsResource", resource_type=kind, resource_name=name, configuration_keys=keys
                )
                for name in names
            )
            return schema.make("DescribeConfigsRequest", resources=resources)

        def results_of(body: Any) -> list[ResultCode]:
            return [
                ResultCode(r.error_code, repr(r.resource_name), r.error_message)
                for r in body.results
                if r.error_code not in ignored
            ]

        call = control_call(ApiKey.DESCRIBE_CONFIGS, build)
        return self._requests.call(call, results_of, target=lambda _: node_id)

    def alter_configs(
        self, topic: str, changes: Mapping[str, str | None], *, validate_only: bool = False
    ) -> None:
        """Sets the given settings of a topic; None resets one to its default. Other settings stay.

        `validate_only`: raises what changing them would raise, and changes nothing.
        """
        build, results_of = altering(TOPIC_RESOURCE, topic, changes, validate_only=validate_only)
        self._requests.change(ApiKey.INCREMENTAL_ALTER_CONFIGS, build, results_of)

    def append_configs(self, topic: str, words: Mapping[str, str]) -> None:
        """Adds words to settings that are lists, where they lack them; others may do so at the same time."""
        build, results_of = altering(TOPIC_RESOURCE, topic, words, operation=APPEND)
        self._requests.change(ApiKey.INCREMENTAL_ALTER_CONFIGS, build, results_of)

    def subtract_configs(self, topic: str, words: Mapping[str, str]) -> None:
        """Removes words from settings that are lists; others may do so at the same time."""
        build, results_of = altering(TOPIC_RESOURCE, topic, words, operation=SUBTRACT)
        self._requests.change(ApiKey.INCREMENTAL_ALTER_CONFIGS, build, results_of)

    def alter_broker_configs(self, broker_id: int, changes: Mapping[str, str | None]) -> None:
        """Sets settings that change while a broker runs, also of one that is down; None resets one."""
        build, results_of = altering(BROKER_RESOURCE, str(broker_id), changes)
        self._requests.call(control_call(ApiKey.INCREMENTAL_ALTER_CONFIGS, build), results_of)

    # --- cluster and offsets ---

    def describe_cluster(self) -> ClusterDescription:
        def build(schema: Schema) -> Any:
            return schema.make("DescribeClusterRequest", include_cluster_authorized_operations=False)

        def results_of(body: Any) -> list[ResultCode]:
            return [ResultCode(body.error_code, "the cluster", body.error_message)]

        body = self._requests.call(control_call(ApiKey.DESCRIBE_CLUSTER, build), results_of)
        brokers = {broker.broker_id: BrokerAddress(broker.host, broker.port) for broker in body.brokers}
        return ClusterDescription(body.cluster_id, body.controller_id, brokers)

    def describe_log_dirs(
        self, broker_id: int, partitions: Mapping[str, Iterable[int]] | None = None
    ) -> list[LogDirectory]:
        """Returns a broker's log directories; `partitions` of each topic are looked at, None: all."""
        body = self._requests.call(log_dirs_call(partitions), lambda _: [], target=lambda _: broker_id)
        return read_log_dirs(body)

    def survey(
        self,
        topics: Iterable[str] | None = None,
        *,
        known: Mapping[int, BrokerAddress] | None = None,
        with_replicas: bool = False,
    ) -> Survey:
        """Returns what the brokers tell of the topics (None: all), and which brokers do not answer.

        Takes at most `ANSWER_MAX_S`. `known`: addresses of brokers that should be there, by id; they are
        only asked if they are bootstrap addresses, too. `with_replicas`: asks what is on disks, too.
        """
        requests = self._requests
        with requests.alone():
            return take_survey(
                requests.network,
                topics,
                requests.refresh,
                known=known or {},
                clock=requests.clock,
                answer_max_s=min(ANSWER_MAX_S, requests.left_s()),
                with_replicas=with_replicas,
            )

    def list_offsets(
        self, topic: str, timestamp_ms: int = LATEST, *, partitions: Iterable[int] | None = None
    ) -> dict[int, OffsetAndTimestamp]:
        """Returns the offset at EARLIEST, LATEST, or of the first record with this timestamp or a later one.

        By partition; `partitions` defaults to all. Raises `UnknownTopicError`, also for a partition.
        """
        return list_offsets(self._requests, topic, timestamp_ms, partitions)

    # --- closing ---

    def close(self) -> None:
        """May be called again."""
        self._requests.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()
