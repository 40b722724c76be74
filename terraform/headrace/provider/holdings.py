"""What would be lost: how much a topic, a broker or a warehouse holds.

Owns the counting and the words for it. Bytes are those of the logs (an offset is an address); events that are
not in HDFS yet are the audit's count; groups that are behind are told in bytes, too.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from headrace.provider.audits import reported
from headrace.provider.values import (
    ResourceError,
    Trouble,
    bytes_of,
    listed,
)

if TYPE_CHECKING:
    from headrace.client.group_admin import GroupAdmin

PATIENCE_S: Final = 3.0

TopicPartition = tuple[str, int]


class Holdings(NamedTuple):
    """What something holds. `behind`: group → bytes that it has still to read; `unloaded`: what is not yet in
    HDFS, in a sentence, None where nobody was asked.
    """

    size_bytes: int
    where: str
    behind: Mapping[str, int] = {}
    unloaded: str | None = None

    def words(self) -> str:
        """In sentences, for a refusal."""
        said = [f"It holds {bytes_of(self.size_bytes)} {self.where}."]
        if self.unloaded is not None:
            said.append(self.unloaded)
        behind = {group: lag for group, lag in sorted(self.behind.items()) if lag}
        if behind:
            groups = listed(f"{group} ({bytes_of(lag)} behind)" for group, lag in behind.items())
            said.append(f"Consumer groups that have not read it all: {groups}.")
        return " ".join(said)


def refuse(what: str, holdings: Holdings) -> None:
    """Raises `ResourceError` when there is something to lose."""
    if holdings.size_bytes:
        raise ResourceError(Trouble(f"{what} holds data", f"{holdings.words()} {_WAY_OUT}"))


def refuse_unknown(what: str, reason: str) -> ResourceError:
    """The refusal for something that cannot be asked."""
    return ResourceError(Trouble(f"Whether {what} holds data is not known", f"{reason} {_WAY_OUT}"))


_WAY_OUT = "To have it destroyed nevertheless, set allow_data_loss = true and apply that first."


def of_topic(admin: GroupAdmin, topic: str, audit_store: str | None) -> Holdings:
    """What a topic holds. Raises `ClientError`."""
    starts, ends = _addresses(admin, {topic})
    return Holdings(
        sum(end - starts[key] for key, end in ends.items()),
        f"in {len(ends)} partition{'s' if len(ends) > 1 else ''}",
        admin.lags_bytes(ends),
        None if audit_store is None else _unloaded(audit_store, topic),
    )


def of_broker(admin: GroupAdmin, broker_id: int, going: Collection[str]) -> Holdings:
    """What the partitions hold that lie on this broker, but for those of topics (by id) that are going.

    Raises `ClientError`.
    """
    here = {
        (name, partition)
        for name, info in admin.topics().items()
        for partition, part in info.partitions.items()
        if broker_id in part.replicas and str(info.topic_id) not in going
    }
    starts, ends = _addresses(admin, {topic for topic, _ in here})
    sizes = {key: ends[key] - starts[key] for key in sorted(here) if ends[key] > starts[key]}
    topics = listed(sorted({topic for topic, _ in sizes}))
    where = f"in {len(sizes)} partition{'s' if len(sizes) > 1 else ''} of {topics}"
    behind = admin.lags_bytes({key: ends[key] for key in sizes}) if sizes else {}
    return Holdings(sum(sizes.values()), where, behind=behind)


def topics_known_to(zookeeper: str, going: Collection[str]) -> list[str]:
    """The topics in a datacenter's registry, but for internal ones and those (by id) that are going.

    Raises `CoordinationError`.
    """
    from headrace.coordination.session import ZooKeeperSession
    from headrace.coordination.topics import TopicRegistry

    session = ZooKeeperSession(zookeeper, name="headrace-terraform")
    session.start(connect_timeout_s=PATIENCE_S)
    try:
        found = TopicRegistry(session).list()
    finally:
        session.close()
    return sorted(
        name for name, topic in found.items() if not name.startswith("_") and str(topic.topic_id) not in going
    )


def registry_of(what: str, topics: list[str]) -> Trouble:
    """The refusal for a ZooKeeper that knows these topics."""
    return Trouble(
        f"{what} holds the registry of {len(topics)} topic{'s' if len(topics) > 1 else ''}",
        f"It knows of {listed(topics)}: where their partitions lie, how they are set, and how far consumer "
        f"groups have read. Without it nobody finds what the brokers hold. {_WAY_OUT}",
    )


def of_warehouse(webhdfs_url: str) -> Holdings:
    """What HDFS holds. Raises `HdfsError`."""
    from headrace.warehouse.hdfs.client import HdfsClient

    with HdfsClient(webhdfs_url, patience_s=PATIENCE_S) as hdfs:
        files, size_bytes = hdfs.usage("/")
    return Holdings(size_bytes, f"in {files:,} file{'s' if files != 1 else ''} of HDFS")


def _unloaded(audit_store: str, topic: str) -> str:
    """How many events of a topic the tiers before the warehouse have counted more than it has."""
    try:
        counts = [verdict.counts for verdict in reported(audit_store, topic).verdicts]
    except ResourceError as error:
        return f"How many of its events are in HDFS is not known: {error.troubles[0].detail}"
    before = (max(each.datacenter, each.analysis) - each.warehouse - each.dead_lettered for each in counts)
    if missing := sum(max(0, each) for each in before):
        return f"{missing:,} of its events are not yet in HDFS, as the audit counts."
    return "By the audit's count all of its events are in HDFS."


def _addresses(
    admin: GroupAdmin, topics: set[str]
) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]]:
    from headrace.client.admin import EARLIEST, LATEST

    starts: dict[TopicPartition, int] = {}
    ends: dict[TopicPartition, int] = {}
    for topic in sorted(topics):
        starts |= {(topic, p): at.offset for p, at in admin.list_offsets(topic, EARLIEST).items()}
        ends |= {(topic, p): at.offset for p, at in admin.list_offsets(topic, LATEST).items()}
    return starts, ends
