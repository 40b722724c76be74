"""What is known of consumer groups of both kinds: members by Kafka's protocol, and members by ZooKeeper.

Both kinds keep their offsets in the same place, so only their members tell them apart. What a silent broker
coordinates is unknown, which is never the same as "has no members".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Final, Generic, NamedTuple, TypeVar

from headrace.cli.cluster import Brokers, brokers_of, left_of_s, read_timeout_ms, reading_until_s
from headrace.cli.context import datacenter
from headrace.cli.errors import CommandError, ExitCode
from headrace.cli.output import note
from headrace.cli.suggestions import did_you_mean
from headrace.process.background import in_background

if TYPE_CHECKING:
    from headrace.client.asking import SilentBroker
    from headrace.client.cluster import TopicPartition
    from headrace.client.group_admin import GroupAdmin
    from headrace.client.group_types import GroupDescription, GroupListing
    from headrace.coordination.consumers import ConsumerRegistry
    from headrace.coordination.session import ZooKeeperSession

T = TypeVar("T")

ZOOKEEPER_MAX_S: Final = 3.5
"""How long a command that changes something waits for ZooKeeper."""
ZOOKEEPER_LATE_MAX_S: Final = 0.25
"""How long ZooKeeper's own word on why it cannot be asked may come late."""
ZOOKEEPER_END_MAX_S: Final = 0.5
GROUPS_ASKED_MAX: Final = 100
"""Groups whose offsets are asked for one by one, to list their topics without ZooKeeper."""
STABLE: Final = "Stable"
EMPTY: Final = "Empty"
DEAD: Final = "Dead"
"""What a coordinator says of a group that it does not know."""
UNKNOWN: Final = "Unknown"
NO_ZOOKEEPER: Final = "members that coordinate through ZooKeeper cannot be seen from here"


class Kind(StrEnum):
    """How the members of a group find each other.

    BOTH: two programs use one name, and disturb each other. UNKNOWN: it has no members of Kafka's protocol,
    and ZooKeeper, which would know the others, cannot be asked.
    """

    KAFKA = "kafka"
    ZOOKEEPER = "zookeeper"
    BOTH = "kafka and zookeeper"
    UNKNOWN = "not known"


@dataclass(frozen=True, slots=True)
class Member:
    """A member of either kind; ZooKeeper knows no client id and no host, only the id that it chose."""

    member_id: str
    client_id: str | None
    host: str | None
    partitions: tuple[TopicPartition, ...]

    def __str__(self) -> str:
        return self.member_id if self.client_id is None else f"{self.client_id} at {self.host}"


@dataclass(frozen=True, slots=True)
class GroupState:
    """`members` is None if nobody knows: its coordinator does not answer, or the kind is UNKNOWN."""

    name: str
    kind: Kind
    state: str
    members: tuple[Member, ...] | None
    topics: tuple[str, ...] = ()
    coordinator: int | None = None

    def refuse_if_live(self, action: str, *, is_sure: bool = False) -> None:
        """Raises `CommandError` unless it is known that the group has no members.

        `is_sure`: the user has said so of members that only ZooKeeper knows, where it cannot be asked.
        """
        if self.kind is Kind.UNKNOWN:
            if is_sure:
                return
            raise CommandError(
                f"group {self.name}: {NO_ZOOKEEPER}, so nobody knows whether it has members there; {action} "
                "it with --yes if none of its members runs, or where ZooKeeper's address is known"
            )
        if self.members is None:
            raise CommandError(
                f"group {self.name}: broker {self.coordinator}, which coordinates it, does not answer, so "
                f"nobody knows whether it has members; {action} it once that broker is back",
                ExitCode.UNREACHABLE,
            )
        if self.members:
            who = ", ".join(str(member) for member in self.members[:3])
            more = f" and {len(self.members) - 3} more" if len(self.members) > 3 else ""
            raise CommandError(
                f"group {self.name} has {len(self.members)} live member{'s' * (len(self.members) > 1)} "
                f"({who}{more}), which would overwrite its offsets; stop them first "
                f"(`headrace groups describe` shows when none is left), then {action} it"
            )


@dataclass(frozen=True, slots=True)
class InZooKeeper:
    """What ZooKeeper tells of one group: its offsets, of either kind, and which partitions those members own
    that coordinate there. `is_kind`: whether the group's members do."""

    state: GroupState
    is_kind: bool
    offsets: Mapping[TopicPartition, int]
    owned: Mapping[str, tuple[TopicPartition, ...]]


def zookeeper_hosts(where: str | None, given: str | None) -> str | None:
    """Returns the datacenter's ZooKeeper; None, and says so, if it is not known, or brokers were given."""
    hosts = None if given else datacenter(where).zookeeper_servers
    if hosts is None:
        note(f"{NO_ZOOKEEPER}: {'--bootstrap names' if given else 'this context has'} brokers alone")
    return hosts


@contextmanager
def zookeeper(hosts: str, wait_max_s: float = ZOOKEEPER_MAX_S) -> Iterator[ZooKeeperSession]:
    """A session with the ZooKeeper at `hosts`. Raises `ZooKeeperUnavailableError`."""
    from headrace.coordination.session import ZooKeeperSession

    session = ZooKeeperSession(hosts, name="headrace-groups", call_timeout_s=wait_max_s)
    session.start(connect_timeout_s=wait_max_s)
    try:
        yield session
    finally:
        session.close(wait_max_s=ZOOKEEPER_END_MAX_S)


def ask_zookeeper(
    hosts: str | None, read: Callable[[ZooKeeperSession], T], until_s: float
) -> Future[T] | None:
    """Begins to read in the background what ZooKeeper knows; `told` waits for it. None without `hosts`."""
    if hosts is None:
        return None
    wait_max_s = left_of_s(until_s)

    def ask() -> T:
        with zookeeper(hosts, wait_max_s) as session:
            return read(session)

    return in_background(ask, "zookeeper")


class Told(NamedTuple, Generic[T]):
    """What ZooKeeper told, or its problem; neither if nobody asked it."""

    found: T | None
    problem: str


def told(asked: Future[T] | None, until_s: float) -> Told[T]:
    """Waits for what `ask_zookeeper` asks."""
    from headrace.coordination.errors import ZooKeeperUnavailableError

    if asked is None:
        return Told(None, "")
    try:
        return Told(asked.result(left_of_s(until_s) + ZOOKEEPER_LATE_MAX_S), "")
    except ZooKeeperUnavailableError as error:
        return Told(None, str(error))
    except TimeoutError:
        return Told(None, "ZooKeeper does not answer")


@contextmanager
def group_admin(
    where: str | None, given: str | None, *, changes: bool = False
) -> Iterator[tuple[GroupAdmin, Brokers]]:
    """The brokers' side, and who they should be.

    All calls together have the time of a command that lists; one that `changes` something, and may ask its
    user in between, has as much for each call.
    """
    from headrace.client.group_admin import GroupAdmin

    brokers = brokers_of(where, given)
    timeout_ms = read_timeout_ms()
    total_ms = None if changes else timeout_ms
    with GroupAdmin(brokers.bootstrap, timeout_ms=timeout_ms, total_ms=total_ms) as admin:
        yield admin, brokers


def all_groups(where: str | None, given: str | None) -> tuple[list[GroupState], list[SilentBroker], str]:
    """Returns the groups of both kinds, the silent brokers, and ZooKeeper's problem ("" if it answers).

    Brokers and ZooKeeper are asked at the same time. Without a ZooKeeper the brokers alone are asked. Raises
    `NetworkError` if no broker answers.
    """
    until_s = reading_until_s()
    asked = ask_zookeeper(zookeeper_hosts(where, given), _groups_in_zookeeper, until_s)
    with group_admin(where, given) as (admin, brokers):
        listed = admin.list_groups(known=brokers.known)
        there = told(asked, until_s)
        found = there.found or {}
        topics = _topics_read(admin, listed) if asked is None else {}
    is_complete = not listed.silent
    groups = [
        merged(name, found.get(name), listed.groups.get(name), is_complete, is_seen=there.found is not None)
        for name in sorted(found.keys() | listed.groups.keys())
    ]
    if topics:
        groups = [replace(group, topics=topics.get(group.name, group.topics)) for group in groups]
    return groups, list(listed.silent), there.problem


def _topics_read(admin: GroupAdmin, listed: GroupListing) -> dict[str, tuple[str, ...]]:
    """Returns the topics whose offsets each group has stored, as its coordinator tells them.

    Of `GROUPS_ASKED_MAX` groups at most; those of silent coordinators are left out.
    """
    from headrace.client.errors import ClientError

    silent = {each.broker_id for each in listed.silent}
    topics = {}
    for name, group in list(listed.groups.items())[:GROUPS_ASKED_MAX]:
        if group.coordinator in silent:
            continue
        try:
            topics[name] = tuple(sorted({topic for topic, _ in admin.group_offsets(name)}))
        except ClientError:
            return topics  # a broker that has just gone; what it knows is left out
    return topics


def _groups_in_zookeeper(session: ZooKeeperSession) -> dict[str, GroupState]:
    """Returns what ZooKeeper knows of all groups. Those of Kafka's protocol have offsets only."""
    from headrace.coordination.consumers import ConsumerRegistry, groups, registering_here, stored_topics

    names = groups(session)
    registering = registering_here(session, names)
    topics = stored_topics(session, names)
    return {
        name: _registered(ConsumerRegistry(session, name), topics[name], is_kind=name in registering)
        for name in names
    }


def group_in_zookeeper(session: ZooKeeperSession, group: str) -> InZooKeeper:
    """Returns what ZooKeeper knows of one group, of either kind."""
    from headrace.coordination.consumers import ConsumerRegistry, registering_here

    registry = ConsumerRegistry(session, group)
    offsets = registry.all_offsets()
    is_kind = group in registering_here(session, [group])
    state = _registered(registry, {topic for topic, _ in offsets}, is_kind=is_kind)
    owned: dict[str, list[TopicPartition]] = {}
    for topic in state.topics if state.members else ():
        for partition, owner in registry.owners(topic).items():
            owned.setdefault(owner.name.rpartition("-")[0], []).append((topic, partition))
    return InZooKeeper(state, is_kind, offsets, {name: tuple(keys) for name, keys in owned.items()})


def _registered(registry: ConsumerRegistry, topics: set[str], *, is_kind: bool) -> GroupState:
    subscriptions = registry.members() if is_kind else {}
    subscribed = {topic for subscription in subscriptions.values() for topic in subscription}
    members = tuple(Member(name, None, None, ()) for name in sorted(subscriptions))
    return GroupState(
        name=registry.group,
        kind=Kind.ZOOKEEPER if is_kind else Kind.KAFKA,
        state=STABLE if members else EMPTY,
        members=members,
        topics=tuple(sorted(topics | subscribed)),
    )


def stored_offsets(
    here: InZooKeeper | None, admin: GroupAdmin, group: str, silent: Iterable[SilentBroker]
) -> Mapping[TopicPartition, int]:
    """Returns a group's offsets: of ZooKeeper, or else of its coordinator; none if that one is silent."""
    if here is not None:
        return here.offsets
    described = admin.describe_unless_silent(group, {each.broker_id for each in silent})
    return {} if described.members is None else admin.group_offsets(group)


def one_group(
    here: InZooKeeper | None,
    admin: GroupAdmin,
    group: str,
    silent: Iterable[SilentBroker],
    *,
    must_exist: bool = True,
    problem: str = "",
) -> GroupState:
    """Returns one group of either kind, with its members' partitions. `problem`: of ZooKeeper.

    Raises `CommandError` if there is no such group and it must exist.
    """
    described = admin.describe_unless_silent(group, {each.broker_id for each in silent})
    is_dead = described.state == DEAD
    stored = {} if problem and is_dead else stored_offsets(here, admin, group, silent)
    if must_exist and is_dead and not stored and not (here is not None and here.is_kind):
        if problem:
            raise CommandError(f"no broker knows group {group!r}, and {problem}", ExitCode.UNREACHABLE)
        known = admin.list_groups().groups
        raise CommandError(f"there is no group {group!r}{did_you_mean(group, known, 'headrace groups list')}")
    if here is None:
        found = merged(group, None, described, is_complete=True, is_seen=False)
        topics = {topic for topic, _ in stored} | set(found.topics)
        return replace(found, topics=tuple(sorted(topics)))
    found = merged(group, here.state, described, is_complete=True)
    if found.members is None:
        return found
    members = tuple(
        member
        if member.client_id is not None
        else replace(member, partitions=here.owned.get(member.member_id, ()))
        for member in found.members
    )
    return replace(found, members=members)


def merged(
    name: str,
    here: GroupState | None,
    described: GroupDescription | None,
    is_complete: bool,
    *,
    is_seen: bool = True,
) -> GroupState:
    """Returns a group from what ZooKeeper and its coordinator tell.

    `is_complete`: all coordinators told. `is_seen`: ZooKeeper told, too.
    """
    by_zookeeper = () if here is None else here.members or ()
    by_kafka: tuple[Member, ...] | None = () if is_complete else None
    if described is not None:
        by_kafka = None
        if described.members is not None:
            by_kafka = tuple(
                Member(member.member_id, member.client_id, member.host, member.partitions)
                for member in described.members
            )
    kind = Kind.KAFKA if here is None else here.kind
    if by_kafka == () and not is_seen:
        kind, by_kafka = Kind.UNKNOWN, None
    if by_kafka:
        kind = Kind.BOTH if by_zookeeper else Kind.KAFKA
    state = UNKNOWN if by_kafka is None else EMPTY
    if by_zookeeper:
        state = STABLE
    elif by_kafka and described is not None:
        state = described.state
    topics = {topic for member in by_kafka or () for topic, _ in member.partitions}
    return GroupState(
        name=name,
        kind=kind,
        state=state,
        members=None if by_kafka is None else (*by_kafka, *by_zookeeper),
        topics=tuple(sorted(topics | set(() if here is None else here.topics))),
        coordinator=None if described is None else described.coordinator,
    )
