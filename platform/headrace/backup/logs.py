"""A broker's logs in a backup: each partition's folder as the broker has it, up to a flushed address."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

from headrace.agent.configuration import BrokerConfiguration
from headrace.backup.trees import DAMAGED, Topic
from headrace.backup.units import HomeUnit
from headrace.backup.writer import SourceChangedError, SourceUnreadableError, Writer, local_stamp
from headrace.client.admin import Admin
from headrace.client.errors import ClientError
from headrace.log import snapshot
from headrace.log.directory import OWNER_FILE
from headrace.log.errors import LogError
from headrace.log.snapshot import LogSnapshot

ATTEMPTS_MAX: Final = 5
_PARTITION: Final = re.compile(r"(.+)-(\d+)")


class Copied(NamedTuple):
    """What was copied of a broker: addresses by partition, what is damaged or missing, what was left out."""

    partitions: dict[str, dict[str, Any]]
    problems: list[str]
    notes: list[str]


Ends = Mapping[tuple[int, str], int]
"""Where the logs of in-sync replicas were flushed to at least, by broker id and partition (`topic-0`)."""


def flushed_ends(brokers: Sequence[HomeUnit]) -> Ends:
    """Returns what these brokers tell. A replica that is not in sync may end before its leader, which is no
    damage: its files decide."""
    ready = [
        str(each.configuration.listen)
        for each in brokers
        if isinstance(each.configuration, BrokerConfiguration)
        and each.pid is not None
        and each.problem is None
    ]
    if not ready:
        return {}
    try:
        with Admin(",".join(ready)) as admin:
            survey = admin.survey()
    except ClientError:
        return {}  # then the files decide
    return {
        (broker_id, f"{topic}-{partition}"): found.end
        for (topic, partition), found in survey.ranges.items()
        for broker_id in survey.topics[topic].partitions[partition].isr
    }


def folders_of(data_dir: Path) -> list[Path]:
    """Returns the folders of partitions, without those that were deleted or moved aside."""
    if not data_dir.is_dir():
        return []
    found = (path for path in data_dir.iterdir() if _PARTITION.fullmatch(path.name))
    return sorted(path for path in found if path.is_dir() and not path.is_symlink())


def size_to_copy(broker: HomeUnit, writer: Writer) -> int:
    """Returns about how many bytes of a broker's logs are not in an earlier backup."""
    total = 0
    if broker.data_problem() is not None:
        return total
    for path in (path for folder in folders_of(broker.directory) for path in _paths_in(folder)):
        try:
            stat = path.stat()
        except OSError:
            continue  # its copy says why, if it is still there
        if not writer.has(f"{broker.name}/{path.parent.name}/{path.name}", stat.st_size, local_stamp(stat)):
            total += stat.st_size
    return total


def _paths_in(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:
        return []  # its topic was deleted, or its copy says why


def copy_broker(
    broker: HomeUnit,
    ends: Ends,
    topics: Mapping[str, Topic] | None,
    writer: Writer,
    observe: Callable[[str], None],
) -> Copied:
    """Copies all partitions of a broker. `topics`: those that its ZooKeeper had, by name; None if that is not
    known here: then every folder is copied.
    """
    copied = Copied({}, [], [])
    assert isinstance(broker.configuration, BrokerConfiguration)
    broker_id = broker.configuration.broker_id
    owner = broker.directory / OWNER_FILE
    if owner.exists():
        writer.put(f"{broker.name}/{OWNER_FILE}", owner.read_bytes())
    for folder in folders_of(broker.directory):
        found = _PARTITION.fullmatch(folder.name)
        assert found is not None
        try:
            if topics is not None and not _is_of(topics.get(found[1]), int(found[2]), folder):
                copied.notes.append(
                    f"{broker.name}: {folder.name} is of no partition that ZooKeeper had: left out"
                )
                continue
            flushed = ends.get((broker_id, folder.name))
            taken = _copy_partition(broker, folder, flushed, writer)
        except (LogError, SourceChangedError, SourceUnreadableError) as error:
            _forget(writer, broker, folder)
            if folder.exists():
                copied.problems.append(f"{broker.name}: {error}")
            continue
        if taken.problem is not None:
            copied.problems.append(f"{broker.name}: {folder.name} is damaged: {taken.problem}")
        copied.partitions[folder.name] = {
            "topic_id": taken.topic_id,
            "start": taken.start,
            "end": taken.end,
            "end_told_by": "files" if flushed is None else "broker",
        }
        observe(f"{broker.name}  {folder.name}  [{taken.start:,}, {taken.end:,})")
    copied.problems.extend(
        f"{broker.name}: ZooKeeper's node of topic {name} is damaged: its logs here are copied as they are"
        for name in sorted(name for name, topic in (topics or {}).items() if topic is DAMAGED)
    )
    copied.problems.extend(
        f"{broker.name}: {name} has a replica here, as ZooKeeper says, and no folder in {broker.directory}"
        for name in _replicas_on(topics or {}, broker_id)
        if name not in copied.partitions and not (broker.directory / name).exists()
    )
    return copied


def _replicas_on(topics: Mapping[str, Topic], broker_id: int) -> list[str]:
    return [
        f"{name}-{number}"
        for name, topic in sorted(topics.items())
        for number, brokers in sorted(topic.replicas.items())
        if broker_id in brokers
    ]


def _is_of(topic: Topic | None, partition: int, folder: Path) -> bool:
    """Whether the folder holds this partition of the topic. A restored log that no topic lists would be taken
    for the next partition that gets its number."""
    with _reading(folder):
        topic_id = snapshot.topic_id_of(folder)
    if topic is DAMAGED:
        return True
    return topic is not None and topic_id == topic.topic_id and partition in topic.partitions


@contextmanager
def _reading(folder: Path) -> Iterator[None]:
    """For what reads a folder whose broker may delete its files at any moment, and whose disk may be bad."""
    try:
        yield
    except FileNotFoundError as error:
        raise SourceChangedError(f"{error.filename} is gone") from None
    except OSError as error:
        raise SourceUnreadableError(f"{error.filename or folder} cannot be read: {error.strerror}") from error


def _copy_partition(broker: HomeUnit, folder: Path, flushed: int | None, writer: Writer) -> LogSnapshot:
    """Copies one partition. Repeats when retention or a roll comes in between."""
    base = f"{broker.name}/{folder.name}"
    for attempt in range(ATTEMPTS_MAX):
        try:
            with _reading(folder):
                taken = snapshot.take(folder, flushed)
            for part in taken.segments:
                writer.copy(f"{base}/{part.name}", folder / part.name, part.length_bytes)
            for name in taken.indexes:
                writer.copy(f"{base}/{name}", folder / name)
        except SourceChangedError:
            if attempt == ATTEMPTS_MAX - 1:
                raise
            _forget(writer, broker, folder)
            continue
        for name, content in taken.small_files.items():
            writer.put(f"{base}/{name}", content)
        return taken
    raise AssertionError("unreachable")


def _forget(writer: Writer, broker: HomeUnit, folder: Path) -> None:
    prefix = f"{broker.name}/{folder.name}/"
    for path in [path for path in writer.files if path.startswith(prefix)]:
        writer.forget(path)
