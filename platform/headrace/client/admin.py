"""Administration: topics, configurations, the cluster, offsets. Blocking calls, one connection at a time.

Owns what is asked, and what an answer means. Whom, and how often, is `asking`'s.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple
from uuid import UUID

from headrace.client.asking import Asker, Result, existing
from headrace.client.calls import Schema, control_call, list_offsets_call, milliseconds
from headrace.client.cluster import Address, TopicInfo
from headrace.client.errors import BrokerError, ClientError, NetworkError, UnknownTopicError
from headrace.client.network import Network
from headrace.wire.apis import ApiKey
from headrace.wire.errors import ErrorCode
from headrace.wire.primitives import NO_UUID

EARLIEST: Final = -2
LATEST: Final = -1

_TOPIC_RESOURCE: Final = 2
_BROKER_RESOURCE: Final = 4
_SET: Final = 0
_DELETE: Final = 1


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """One setting. `source`: Kafka's number of where the value comes from (1 its own, 5 a default)."""

    name: str
    value: str | None
    source: int
    is_read_only: bool
    is_sensitive: bool

    @property
    def is_own(self) -> bool:
        """Whether it was set on the resource itself."""
        return self.source == 1


@dataclass(frozen=True, slots=True)
class ClusterDescription:
    """The brokers by id, which one is the controller (-1: unknown), and the cluster's id."""

    cluster_id: str | None
    controller_id: int
    brokers: Mapping[int, Address]


class OffsetAndTimestamp(NamedTuple):
    """`offset` -1: no record is that young. `timestamp_ms` -1 for the start and the end."""

    offset: int
    timestamp_ms: int


class Admin:
    """Use it as a context manager. Safe to share: calls wait for each other, each at most `timeout_ms`.

    Raises `BrokerError` with the broker's reason, `NetworkError` when nobody answers, `UnsupportedApiError`.
    """

    def __init__(
        self,
        bootstrap: str | Iterable[str],
        *,
        client_id: str = "headrace-admin",
        timeout_ms: float = 30_000,
        clock: Callable[[], float] = time.monotonic,
        draw: Callable[[], float] = random.random,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        network = Network(
            bootstrap, client_id=client_id, request_timeout_ms=timeout_ms, clock=clock, draw=draw
        )
        self._timeout_ms = milliseconds(timeout_ms)
        self._asker = Asker(network, timeout_ms=timeout_ms, clock=clock, draw=draw, sleep=sleep)

    # topics

    def topics(self) -> dict[str, TopicInfo]:
        """All topics, by name."""
        return dict(self._asker.metadata(None).topics)

    def topic(self, name: str) -> TopicInfo:
        """One topic. Raises `UnknownTopicError`."""
        info = existing(name, self._asker.metadata([name]))
        if info.error is not ErrorCode.NONE:
            raise BrokerError(info.error, f"topic {name!r}")
        return info

    def create_topic(
        self,
        name: str,
        partitions: int,
        replication_factor: int = 1,
        config: Mapping[str, str] | None = None,
        *,
        wait_for_leaders: bool = True,
        validate_only: bool = False,
    ) -> UUID:
        """Create a topic; returns its id.

        Every partition has a leader on return, unless told not to wait for that. `validate_only`: raise what
        would be raised, and create nothing.
        """

        def build(schema: Schema) -> Any:
            entries = (config or {}).items()
            topic = schema.make(
                "CreatableTopic",
                name=name,
                num_partitions=partitions,
                replication_factor=replication_factor,
                assignments=(),
                configs=tuple(schema.make("CreatableTopicConfig", name=k, value=v) for k, v in entries),
            )
            return schema.make(
                "CreateTopicsRequest",
                topics=(topic,),
                timeout=self._timeout_ms,
                validate_only=validate_only,
            )

        def result(body: Any) -> list[Result]:
            return [Result(t.error_code, f"topic {t.name!r}", t.error_message) for t in body.topics]

        body = self._asker.change(ApiKey.CREATE_TOPICS, build, result)
        if wait_for_leaders and not validate_only:
            self._asker.wait_for_leaders(name, partitions)
        return getattr(body.topics[0], "topic_id", None) or NO_UUID

    def delete_topic(self, name: str) -> None:
        """Delete a topic and its records."""

        def build(schema: Schema) -> Any:
            if schema.version >= 6:
                states = (schema.make("DeleteTopicState", name=name, topic_id=None),)
                return schema.make("DeleteTopicsRequest", topics=states, timeout=self._timeout_ms)
            return schema.make("DeleteTopicsRequest", topic_names=(name,), timeout=self._timeout_ms)

        def result(body: Any) -> list[Result]:
            return [
                Result(t.error_code, f"topic {t.name!r}", getattr(t, "error_message", None))
                for t in body.responses
            ]

        self._asker.change(ApiKey.DELETE_TOPICS, build, result)

    def create_partitions(self, name: str, total: int) -> None:
        """Let the topic have `total` partitions. Keys may land elsewhere from then on."""

        def build(schema: Schema) -> Any:
            topic = schema.make("CreatePartitionsTopic", name=name, count=total, assignments=None)
            return schema.make(
                "CreatePartitionsRequest",
                topics=(topic,),
                timeout=self._timeout_ms,
                validate_only=False,
            )

        def result(body: Any) -> list[Result]:
            return [Result(t.error_code, f"topic {t.name!r}", t.error_message) for t in body.results]

        self._asker.change(ApiKey.CREATE_PARTITIONS, build, result)
        self._asker.wait_for_leaders(name, total)

    # configuration

    def describe_configs(self, topic: str) -> dict[str, ConfigEntry]:
        """A topic's settings, defaults too, by name."""
        return self._describe(_TOPIC_RESOURCE, topic, None)

    def describe_broker_configs(self, broker_id: int) -> dict[str, ConfigEntry]:
        """A broker's settings, as it tells them itself."""
        return self._describe(_BROKER_RESOURCE, str(broker_id), broker_id)

    def _describe(self, kind: int, name: str, node_id: int | None) -> dict[str, ConfigEntry]:
        def build(schema: Schema) -> Any:
            resource = schema.make(
                "DescribeConfigsResource", resource_type=kind, resource_name=name, configuration_keys=None
            )
            return schema.make("DescribeConfigsRequest", resources=(resource,))

        def result(body: Any) -> list[Result]:
            return [Result(r.error_code, repr(r.resource_name), r.error_message) for r in body.results]

        body = self._asker.call(
            control_call(ApiKey.DESCRIBE_CONFIGS, build), result, lambda: node_id, repeatable=True
        )
        return {
            entry.name: ConfigEntry(
                entry.name, entry.value, entry.config_source, entry.read_only, entry.is_sensitive
            )
            for entry in body.results[0].configs
        }

    def alter_configs(
        self, topic: str, changes: Mapping[str, str | None], *, validate_only: bool = False
    ) -> None:
        """Set some of a topic's settings, and leave the others; None puts one back to its default.

        `validate_only`: raise what would be raised, and change nothing.
        """

        def build(schema: Schema) -> Any:
            configs = tuple(
                schema.make(
                    "AlterableConfig",
                    name=name,
                    config_operation=_DELETE if value is None else _SET,
                    value=value,
                )
                for name, value in changes.items()
            )
            resource = schema.make(
                "AlterConfigsResource", resource_type=_TOPIC_RESOURCE, resource_name=topic, configs=configs
            )
            return schema.make(
                "IncrementalAlterConfigsRequest", resources=(resource,), validate_only=validate_only
            )

        def result(body: Any) -> list[Result]:
            return [Result(r.error_code, repr(r.resource_name), r.error_message) for r in body.responses]

        self._asker.change(ApiKey.INCREMENTAL_ALTER_CONFIGS, build, result)

    # cluster and offsets

    def describe_cluster(self) -> ClusterDescription:
        def build(schema: Schema) -> Any:
            return schema.make("DescribeClusterRequest", include_cluster_authorized_operations=False)

        def result(body: Any) -> list[Result]:
            return [Result(body.error_code, "the cluster", body.error_message)]

        body = self._asker.call(
            control_call(ApiKey.DESCRIBE_CLUSTER, build), result, lambda: None, repeatable=True
        )
        brokers = {broker.broker_id: Address(broker.host, broker.port) for broker in body.brokers}
        return ClusterDescription(body.cluster_id, body.controller_id, brokers)

    def list_offsets(
        self, topic: str, timestamp_ms: int = LATEST, *, partitions: Iterable[int] | None = None
    ) -> dict[int, OffsetAndTimestamp]:
        """Per partition (by default all) the offset at EARLIEST, LATEST, or of the first record not older
        than a time.
        """
        wanted = set(partitions) if partitions is not None else None
        found: dict[int, OffsetAndTimestamp] = {}

        def attempt(deadline_s: float) -> ClientError | None:
            cluster = self._asker.refresh([topic], deadline_s)
            missing = (set(existing(topic, cluster).partitions) if wanted is None else wanted) - found.keys()
            return self._offsets_round(topic, missing, timestamp_ms, found, deadline_s)

        self._asker.until_done(attempt)
        return dict(sorted(found.items()))

    def _offsets_round(
        self,
        topic: str,
        missing: set[int],
        timestamp_ms: int,
        found: dict[int, OffsetAndTimestamp],
        deadline_s: float,
    ) -> ClientError | None:
        """Ask each leader once; what came goes into `found`. Returns an error worth trying again after."""
        by_leader: dict[int, list[int]] = {}
        error: ClientError | None = None
        cluster = self._asker.network.cluster
        for partition in sorted(missing):
            if partition not in cluster.topics[topic].partitions:
                raise UnknownTopicError(f"{topic} has no partition {partition}")
            leader = cluster.leader(topic, partition)
            if leader is None:
                error = NetworkError(f"{topic}-{partition} has no leader")
            else:
                by_leader.setdefault(leader, []).append(partition)
        for leader, partitions in by_leader.items():
            call = list_offsets_call({topic: dict.fromkeys(partitions, timestamp_ms)})
            try:
                body = self._asker.network.ask(call, node_id=leader, deadline_s=deadline_s)
            except NetworkError as failure:
                error = failure
                continue
            for part in body.topics[0].partitions:
                if part.error_code == ErrorCode.NONE:
                    found[part.partition_index] = OffsetAndTimestamp(part.offset, part.timestamp)
                    continue
                refusal = BrokerError(part.error_code, f"{topic}-{part.partition_index}")
                if not refusal.retriable:
                    raise refusal
                error = refusal
        return error

    # end

    def close(self) -> None:
        """May be called again."""
        self._asker.close()

    def __enter__(self) -> Admin:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()
