"""Data that a deletion would lose: what a topic, a broker, a ZooKeeper or a warehouse holds.

Owns the counting and the refusals. Sizes are those of the logs; the audit counts the events that are not in
HDFS yet.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, NamedTuple

from headrace.provider.attributes import Attribute
from headrace.provider.audits import read_report
from headrace.provider.problems import Problem, ResourceError, format_bytes, join_some, plural

if TYPE_CHECKING:
    from headrace.client.group_admin import GroupAdmin
    from headrace.coordination.nodes import Node
    from headrace.coordination.session import ZooKeeperSession

CONNECT_TIMEOUT_S: Final = 3.0

ALLOW_DATA_LOSS: Final = Attribute(
    name="allow_data_loss",
    type="bool",
    default=False,
    description="Whether it may be deleted or replaced while it holds data. The last applied value counts.",
)
_REMEDY: Final = (
    "To delete it anyway, set allow_data_loss = true and apply that first. If Terraform replaces it because "
    "it is tainted, `terraform untaint` keeps it; without that no value can be applied first."
)

_OWN_SUBJECTS: Final = ("headrace.audit.", "headrace-drill-")

TopicPartition = tuple[str, int]


class Holdings(NamedTuple):
    """The data of a resource.

    `where` completes the sentence "It holds N bytes …". `behind`: consumer group → bytes it has not read.
    `unloaded` is a sentence on what is not in HDFS yet, None without an audit store. `empty`: the partitions
    of which a broker has a replica without a byte.
    """

    size_bytes: int
    where: str
    behind: Mapping[str, int] = {}
    unloaded: str | None = None
    empty: tuple[str, ...] = ()

    @property
    def is_nothing(self) -> bool:
        return not self.size_bytes and not self.empty

    def __str__(self) -> str:
        sentences = [f"It holds {format_bytes(self.size_bytes)} {self.where}."]
        if self.unloaded is not None:
            sentences.append(self.unloaded)
        behind = {group: lag for group, lag in sorted(self.behind.items()) if lag}
        if behind:
            groups = join_some(f"{group} ({format_bytes(lag)} behind)" for group, lag in behind.items())
            sentences.append(f"Consumer groups that have not read all of it: {groups}.")
        return " ".join(sentences)


def refuse_if_any(what: str, holdings: Holdings, obstacle: str = "") -> None:
    """Raises `ResourceError` if there is data to lose, or a replica of an empty partition: without it the
    partition has one less for ever, or is not there at all. `obstacle`: why it cannot be saved."""
    if holdings.size_bytes:
        text = " ".join(filter(None, (str(holdings), obstacle, _REMEDY)))
        raise ResourceError(Problem(f"{what} holds data", text))
    if holdings.empty:
        held = (
            f"It has {plural(len(holdings.empty), 'replica')}, without data: of {join_some(holdings.empty)}."
        )
        lost = "Without it they would have one less for ever, or would not be there at all."
        text = " ".join(filter(None, (held, lost, obstacle, _REMEDY)))
        raise ResourceError(Problem(f"{what} has replicas", text))


def unknown(what: str, problem: str) -> ResourceError:
    """Returns the refusal for a unit whose data cannot be measured."""
    return ResourceError(Problem(f"Whether {what} holds data is not known", f"{problem} {_REMEDY}"))


def holds_registry(what: str, topics: list[str]) -> ResourceError:
    """Returns the refusal for a ZooKeeper that knows these topics."""
    return ResourceError(
        Problem(
            f"{what} holds the registry of {plural(len(topics), 'topic')}",
            f"It stores the partitions, settings and consumer offsets of {join_some(topics)}. Without it the "
            f"data on the brokers cannot be found. {_REMEDY}",
        )
    )


def holds_schemas(what: str, subjects: list[str]) -> ResourceError:
    """Returns the refusal for a ZooKeeper in which a registry has the schemas of these subjects."""
    return ResourceError(
        Problem(
            f"{what} holds the schemas of {plural(len(subjects), 'subject')}",
            f"A schema registry stores those of {join_some(subjects)} there. Without them events that are "
            f"kept elsewhere, such as in copies, cannot be read. {_REMEDY}",
        )
    )


def of_topic(admin: GroupAdmin, topic: str, audit_store: str | None) -> Holdings:
    """Returns what a topic holds. Raises `ClientError`."""
    starts, ends = _log_bounds(admin, {topic})
    return Holdings(
        sum(end - starts[partition] for partition, end in ends.items()),
        f"in {plural(len(ends), 'partition')}",
        admin.lags_bytes(ends),
        None if audit_store is None else _unloaded(audit_store, topic),
    )


def of_broker(admin: GroupAdmin, broker_id: int, deleted_topics: Collection[str]) -> Holdings:
    """Returns what the broker's replicas hold, except those of deleted topics (ids). Raises `ClientError`."""
    here = {
        (name, number)
        for name, topic in admin.topics().items()
        for number, partition in topic.partitions.items()
        if broker_id in partition.replicas and str(topic.topic_id) not in deleted_topics
    }
    starts, ends = _log_bounds(admin, {topic for topic, _ in here})
    sizes = {key: ends[key] - starts[key] for key in sorted(here) if ends[key] > starts[key]}
    topics = join_some(sorted({topic for topic, _ in sizes}))
    behind = admin.lags_bytes({key: ends[key] for key in sizes}) if sizes else {}
    empty = tuple(f"{topic}-{number}" for topic, number in sorted(here - sizes.keys()))
    where = f"in {plural(len(sizes), 'partition')} of {topics}"
    return Holdings(sum(sizes.values()), where, behind=behind, empty=empty)


def topics_in(zookeeper: str, deleted_topics: Collection[str]) -> list[str]:
    """Returns the topics that a ZooKeeper knows, at its root and below paths such as `/east`, except internal
    topics and deleted ones (ids).

    Raises `CoordinationError`.
    """
    # Imported here and below because each import is slow, and few requests need it.
    from headrace.coordination.topics import TopicRegistry
    from headrace.coordination.tree import clusters_in

    with _zookeeper(zookeeper) as session:
        chroots = clusters_in(session)
    found: list[str] = []
    for chroot in chroots:
        with _zookeeper(zookeeper + chroot) as session:
            topics = TopicRegistry(session).list()
        where = f" (in {chroot})" if chroot else ""
        found += (
            f"{name}{where}"
            for name, topic in topics.items()
            if not name.startswith("_") and str(topic.topic_id) not in deleted_topics
        )
    return sorted(found)


def subjects_in(zookeeper: str, deleted_subjects: Collection[str]) -> list[str]:
    """Returns the subjects that registries have in a ZooKeeper, at its root and below paths, except deleted
    ones and those of headrace's own records, which each installation has and makes again.

    Raises `CoordinationError`.
    """
    from headrace.coordination.tree import registries_in
    from headrace.registry.subjects import SUBJECTS

    with _zookeeper(zookeeper) as session:
        chroots = registries_in(session)
    found: list[str] = []
    for chroot in chroots:
        where = f" (in {chroot})" if chroot else ""
        with _zookeeper(zookeeper + chroot) as session:
            paths = [f"{SUBJECTS}/{name}" for name in session.children_or_empty(SUBJECTS)]
            nodes = session.get_many(paths)
        live = (_live_subject(path, node) for path, node in zip(paths, nodes, strict=True))
        found += (
            f"{name}{where}"
            for name in live
            if name is not None and not name.startswith(_OWN_SUBJECTS) and name not in deleted_subjects
        )
    return sorted(found)


def _live_subject(path: str, node: Node | None) -> str | None:
    """Returns the subject's name, unless all of its versions are deleted. A damaged one may have some."""
    from headrace.coordination.errors import CorruptNodeError
    from headrace.registry.subjects import parse_subject, subject_name

    if node is None:
        return None
    try:
        return subject_name(path) if parse_subject(path, node).is_live else None
    except CorruptNodeError:
        return subject_name(path)


@contextmanager
def _zookeeper(hosts: str) -> Iterator[ZooKeeperSession]:
    from headrace.coordination.session import ZooKeeperSession

    session = ZooKeeperSession(hosts, name="headrace-terraform")
    session.start(connect_timeout_s=CONNECT_TIMEOUT_S)
    try:
        yield session
    finally:
        session.close()


def of_warehouse(webhdfs_url: str) -> Holdings:
    """Returns what HDFS holds. Raises `HdfsError`."""
    from headrace.warehouse.hdfs.client import HdfsClient

    with HdfsClient(webhdfs_url, patience_s=CONNECT_TIMEOUT_S) as hdfs:
        files, size_bytes = hdfs.usage("/")
    return Holdings(size_bytes, f"in {plural(files, 'file')} of HDFS")


def _unloaded(audit_store: str, topic: str) -> str:
    """Returns how many events of a topic the tiers before the warehouse counted that it did not."""
    try:
        counts = [verdict.counts for verdict in read_report(audit_store, topic).verdicts]
    except ResourceError as error:
        return f"How many of its events are in HDFS is not known: {error.problems[0].detail}"
    missing = sum(
        max(0, max(hour.datacenter, hour.analysis) - hour.warehouse - hour.dead_lettered) for hour in counts
    )
    if missing:
        return f"By the audit's count {missing:,} of its events are not in HDFS yet."
    return "By the audit's count all of its events are in HDFS."


def _log_bounds(
    admin: GroupAdmin, topics: set[str]
) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]]:
    """Returns the first and the end address of each partition's log."""
    from headrace.client.admin import EARLIEST, LATEST

    starts: dict[TopicPartition, int] = {}
    ends: dict[TopicPartition, int] = {}
    for topic in sorted(topics):
        starts |= {(topic, p): found.offset for p, found in admin.list_offsets(topic, EARLIEST).items()}
        ends |= {(topic, p): found.offset for p, found in admin.list_offsets(topic, LATEST).items()}
    return starts, ends
