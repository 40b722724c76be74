"""A broker's logs in a backup: each partition's folder as the broker has it, up to a flushed address."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from headrace.agent.configuration import BrokerConfiguration
from headrace.backup.units import HomeUnit
from headrace.backup.writer import SourceChangedError, Writer, local_stamp
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


def flushed_ends(brokers: Sequence[HomeUnit]) -> dict[str, int]:
    """Returns the flushed end of each partition that these brokers serve, as `topic-0` → address."""
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
    return {f"{topic}-{partition}": found.end for (topic, partition), found in survey.ranges.items()}


def folders_of(data_dir: Path) -> list[Path]:
    """Returns the folders of partitions, without those that were deleted or moved aside."""
    if not data_dir.is_dir():
        return []
    found = (path for path in data_dir.iterdir() if _PARTITION.fullmatch(path.name))
    return sorted(path for path in found if path.is_dir() and not path.is_symlink())


def size_to_copy(broker: HomeUnit, writer: Writer) -> int:
    """Returns about how many bytes of a broker's logs are not in an earlier backup."""
    total = 0
    for folder in folders_of(broker.directory):
        for path in folder.iterdir():
            try:
                stat = path.stat()
            except FileNotFoundError:
                continue
            if not writer.has(f"{broker.name}/{folder.name}/{path.name}", stat.st_size, local_stamp(stat)):
                total += stat.st_size
    return total


def copy_broker(
    broker: HomeUnit,
    ends: Mapping[str, int],
    topics: Mapping[str, str] | None,
    writer: Writer,
    observe: Callable[[str], None],
) -> Copied:
    """Copies all partitions of a broker. `topics`: the ids of the topics that its ZooKeeper had, by name;
    None if that is not known here: then every folder is copied.
    """
    copied = Copied({}, [], [])
    owner = broker.directory / OWNER_FILE
    if owner.exists():
        writer.put(f"{broker.name}/{OWNER_FILE}", owner.read_bytes())
    for folder in folders_of(broker.directory):
        found = _PARTITION.fullmatch(folder.name)
        assert found is not None
        try:
            if topics is not None and topics.get(found[1]) != snapshot.topic_id_of(folder):
                copied.notes.append(
                    f"{broker.name}: {folder.name} is of no topic that ZooKeeper had: left out"
                )
                continue
            taken = _copy_partition(broker, folder, ends.get(folder.name), writer)
        except (LogError, SourceChangedError) as error:
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
            "end_told_by": "broker" if folder.name in ends else "files",
        }
        observe(f"{broker.name}  {folder.name}  [{taken.start:,}, {taken.end:,})")
    return copied


def _copy_partition(broker: HomeUnit, folder: Path, flushed: int | None, writer: Writer) -> LogSnapshot:
    """Copies one partition. Repeats when retention or a roll comes in between."""
    for attempt in range(ATTEMPTS_MAX):
        taken = snapshot.take(folder, flushed)
        base = f"{broker.name}/{folder.name}"
        try:
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
