"""Work on a topic's records that is done once for all partitions, or once for each source datacenter.

Two registries may have different schemas for one id. Then a record is read with the schemas of the datacenter
in which its partition's source is, for the registry there knows what its producers meant. Loads and replays
decide so here. Everywhere else any registry will do, and the sources are not asked for.
"""

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace
from typing import Final, TypeVar

from headrace.coordination.mirrors import MirrorMap
from headrace.coordination.session import ZooKeeperSession
from headrace.registry.client import SchemaConflictError
from headrace.registry.errors import RegistryUnavailableError
from headrace.warehouse.manifest import TableState
from headrace.warehouse.options import WarehouseOptions
from headrace.warehouse.schemas import (
    Registries,
    SchemasError,
    TopicSchemas,
    WriterSchema,
    topic_schemas,
    with_reader,
)

CONNECT_TIMEOUT_S: Final = 30.0

_T = TypeVar("_T")


@dataclass(frozen=True)
class Share:
    """Partitions whose records are read with the same registries."""

    registries: Registries
    datacenter: str | None = None
    """None: all partitions, whatever their source."""
    partitions: frozenset[int] = frozenset()
    """Those of the datacenter."""
    reader: WriterSchema | None = None
    """The newest schema of all datacenters, if each has schemas of its own."""
    newest_id: int | None = None
    """The id of the table's newest schema, as its last change has it."""

    def has(self, partition: int) -> bool:
        return self.datacenter is None or partition in self.partitions

    def below(self, directory: str) -> str:
        """Returns a directory of the share's own."""
        return directory if self.datacenter is None else f"{directory}/{self.datacenter}"

    def schemas(self, subject: str) -> TopicSchemas:
        """Returns the subject's schemas, to be read as the newest one of all shares.

        Raises `SchemaConflictError` if two registries have different schemas for one id, and
        `RegistryUnavailableError` if one does not answer that may have the table's newest schema: without it
        the table would lose columns.
        """
        schemas = topic_schemas(subject, self.registries)
        known = (*schemas.writers, *(writer for writer, _ in schemas.refused))
        if self.newest_id is not None and self.newest_id not in {each.schema_id for each in known}:
            self.registries.check_all_answered()
        return schemas if self.reader is None else with_reader(schemas, self.reader)


def _is_contradicted(state: TableState) -> bool:
    """Whether registries have meant different schemas by an id of this table."""
    return state.schema_datacenter is not None or any(
        file.schema_datacenter is not None for file in state.files.values()
    )


def for_each_source(
    warehouse: WarehouseOptions,
    topic: str,
    subject: str,
    partitions: Callable[[], Iterable[int]],
    work: Callable[[Share], _T],
    now: TableState | None = None,
) -> list[_T]:
    """Does the work for all partitions at once; if it meets a `SchemaConflictError`, for each datacenter.

    `now`: the table. If registries are known to mean different schemas by an id of it, one that does not
    answer may be the one that says so. Raises `SchemasError` then, and if the sources of the partitions are
    not known.
    """
    now = now or TableState()
    contradicted = _is_contradicted(now)
    with Registries(warehouse.registry_url, needs_all=contradicted) as registries:
        try:
            return [work(Share(registries, newest_id=now.schema_id))]
        except SchemaConflictError as conflict:
            sources = _sources(warehouse, topic, conflict)
        except RegistryUnavailableError as error:
            if not contradicted:
                raise
            raise SchemasError(
                f"{error}. Registries mean different schemas by an id of this table, and without that one "
                "nobody knows which is meant: start it, or leave it out of the registries if none of the "
                "records is of its schemas"
            ) from error
        groups: dict[str, set[int]] = {}
        for partition in partitions():
            name = sources[partition] if partition < len(sources) else warehouse.datacenter
            groups.setdefault(name, set()).add(partition)
        newest = _newest(registries, subject, groups.keys(), sources)
        done: list[_T] = []
        for name, group in groups.items():
            with registries.of_datacenter(name) as own:
                done.append(work(Share(own, name, frozenset(group), newest)))
        return done


def _newest(
    registries: Registries, subject: str, needed: Collection[str], sources: Iterable[str]
) -> WriterSchema:
    """Returns the reader for all shares: the schema with the highest version in any source datacenter.

    Also of those that have no records now: the table's columns must not depend on who has news.
    """
    readers: list[WriterSchema] = []
    for name in sorted({*needed, *sources}):
        try:
            with registries.of_datacenter(name) as own:
                readers.append(replace(topic_schemas(subject, own).reader, datacenter=name))
        except SchemasError:
            if name in needed:
                raise
    return max(readers, key=lambda reader: reader.version or 0)


def _sources(warehouse: WarehouseOptions, topic: str, conflict: SchemaConflictError) -> list[str]:
    """Returns the datacenter of each partition's source; partitions beyond are the warehouse's own."""
    if warehouse.zookeeper is None:
        raise SchemasError(
            f"{conflict.message}. Give the analysis cluster's ZooKeeper (--zookeeper), which knows each "
            "partition's source"
        ) from conflict
    session = ZooKeeperSession(warehouse.zookeeper, name="warehouse")
    with session.start(connect_timeout_s=CONNECT_TIMEOUT_S):
        return [source.datacenter for source in MirrorMap(session).sources(topic)]
