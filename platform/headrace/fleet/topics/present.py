"""What a site has of a topic already: in each datacenter's registry and brokers, at the agent, in Airflow.

Owns the reading; changes nothing. The values are plain, so that decisions need no server.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from headrace.agent.client import AgentClient
from headrace.agent.errors import AgentRefusedError
from headrace.airflow.topics import read_topics
from headrace.client.admin import Admin
from headrace.client.errors import UnknownTopicError
from headrace.registry.client import SchemaRegistryClient
from headrace.registry.errors import SCHEMA_NOT_FOUND, SUBJECT_NOT_FOUND, RegistryError
from headrace.site.context import Context, ContextDatacenter
from headrace.warehouse.schedule import LoadSchedule, parse_schedule

ADMIN_TIMEOUT_MS: Final = 30_000.0
"""Longer than a busy machine stalls: an answer that comes late is better than half a topic."""
REGISTRY_ROUNDS: Final = 2


@dataclass(frozen=True)
class PresentSubject:
    """A subject at one registry. `level`: the compatibility that applies, `own_level` if it is its own.

    `registered`: version and id of the wanted schema, None if it is not there.
    """

    versions: tuple[tuple[int, str], ...] = ()
    level: str = "BACKWARD"
    own_level: str | None = None
    registered: tuple[int, int] | None = None


@dataclass(frozen=True)
class PresentTopic:
    """A topic at one datacenter's brokers, and its own settings. `replication_factor`: None if it is theirs
    to choose."""

    partitions: int
    settings: Mapping[str, str]
    replication_factor: int | None = None


@dataclass(frozen=True)
class PresentDatacenter:
    """`copied_from`: the datacenters whose mirrors fill this one; services publish where that is empty."""

    name: str
    subject: PresentSubject
    topic: PresentTopic | None = None
    copied_from: tuple[str, ...] = ()


@dataclass(frozen=True)
class PresentLoad:
    """How the topic is loaded. `file`: the `topics.yaml` that says so, None if the agent has the load."""

    schedule: LoadSchedule
    file: Path | None = None


@dataclass(frozen=True)
class PresentDags:
    """Each DAG of the topic with whether it is paused; None: Airflow does not know it yet.

    `problem`: why Airflow cannot be asked.
    """

    paused: Mapping[str, bool | None]
    problem: str | None = None


@dataclass(frozen=True)
class Present:
    datacenters: tuple[PresentDatacenter, ...]
    load: PresentLoad | None
    dags: PresentDags
    has_contract_test: bool = False


def origins_of(context: Context) -> tuple[ContextDatacenter, ...]:
    """Returns the datacenters where services publish: those that no mirror fills."""
    return tuple(each for each in context.datacenters if not _sources_of(context, each))


def _sources_of(context: Context, datacenter: ContextDatacenter) -> tuple[str, ...]:
    return tuple(each.source for each in context.mirrors if each.target == datacenter.name)


def read_datacenter(
    context: Context, datacenter: ContextDatacenter, topic: str, subject: str, schema: str
) -> PresentDatacenter:
    """Raises the errors of the registry's and the brokers' clients."""
    with SchemaRegistryClient(datacenter.registry, retry_rounds=REGISTRY_ROUNDS) as registry:
        found = read_subject(registry, subject, schema)
    with Admin(datacenter.bootstrap, timeout_ms=ADMIN_TIMEOUT_MS) as admin:
        return PresentDatacenter(
            datacenter.name, found, read_topic(admin, topic), _sources_of(context, datacenter)
        )


def read_subject(registry: SchemaRegistryClient, subject: str, schema: str) -> PresentSubject:
    """Raises `RegistryError`, `RegistryUnavailableError`."""
    level, own_level = registry.config(subject), registry.own_config(subject)
    try:
        versions = tuple(
            (number, registry.version(subject, number).schema)
            for number in sorted(registry.versions(subject))
        )
    except RegistryError as error:
        if error.error_code != SUBJECT_NOT_FOUND:
            raise
        return PresentSubject((), level, own_level)
    try:
        same = registry.lookup(subject, schema)
    except RegistryError as error:
        if error.error_code not in (SUBJECT_NOT_FOUND, SCHEMA_NOT_FOUND):
            raise
        return PresentSubject(versions, level, own_level)
    return PresentSubject(versions, level, own_level, (same.version, same.schema_id))


def read_topic(admin: Admin, topic: str) -> PresentTopic | None:
    """None: the brokers have no such topic. Raises `ClientError`."""
    try:
        info = admin.topic(topic)
    except UnknownTopicError:
        return None
    entries = admin.describe_configs(topic).values()
    return PresentTopic(
        len(info.partitions),
        {entry.name: entry.value or "" for entry in entries if entry.is_own},
        max(len(partition.replicas) for partition in info.partitions.values()),
    )


def read_load(agent: AgentClient, topic: str, topics_file: Path) -> PresentLoad | None:
    """None: nothing loads the topic. Raises `TopicsFileError`, and the errors of the agent's client."""
    try:
        fields: dict[str, Any] = agent.load(topic)
    except AgentRefusedError as error:
        if error.code != "load_unknown":
            raise
    else:
        return PresentLoad(parse_schedule(topic, fields))
    listed = read_topics(topics_file) if topics_file.exists() else ()
    return next((PresentLoad(each, topics_file) for each in listed if each.topic == topic), None)
