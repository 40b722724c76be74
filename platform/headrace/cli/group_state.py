"""What is known of consumer groups of both kinds: members by Kafka's protocol, and members by ZooKeeper.

Both kinds keep their offsets in the same place, so only their members tell them apart. What a silent broker
coordinates is unknown, which is never the same as "has no members".
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from headrace.cli.cluster import Brokers, brokers_of, read_timeout_ms
from headrace.cli.context import datacenter
from headrace.cli.errors import CommandError, ExitCode
from headrace.cli.output import note
from headrace.cli.suggestions import did_you_mean

if TYPE_CHECKING:
    from headrace.client.asking import SilentBroker
    from headrace.client.cluster import TopicPartition
    from headrace.client.group_admin import GroupAdmin
    from headrace.client.group_types import GroupDescription, GroupListing
    from headrace.coordination.consumers import ConsumerRegistry
    from headrace.coordination.session import ZooKeeperSession

ZOOKEEPER_MAX_S: Final = 3.5
GROUPS_ASKED_MAX: Final = 100
"""Groups whose offsets are asked for one by one, to list their topics without ZooKeeper."""
STABLE: Final = "Stable"
EMPTY: Final = "Empty"
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


@contextmanager
def zookeeper(where: str | None, given: str | None) -> Iterator[ZooKeeperSession | None]:
    """A session with the datacenter's ZooKeeper; None if its address is not known, or brokers were given.

    Raises `ZooKeeperUnavailableError`.
    """
    from headrace.coordination.session import ZooKeeperSession

    hosts = None if given else datacenter(where).zookeeper_servers
    if hosts is None:
        note(f"{NO_ZOOKEEPER}: {'--bootstrap names' if given else 'this context has'} brokers alone")
        yield None
        return
    session = ZooKeeperSession(hosts, name="headrace-groups", call_timeout_s=ZOOKEEPER_MAX_S)
    session.start(connect_timeout_s=ZOOKEEPER_MAX_S)
    try:
        yield session
    finally:
        session.close()


@contextmanager
def group_admin(where: str | None, given: str | None) -> Iterator[tuple[GroupAdmin, Brokers]]:
    """The brokers' side, and who they should be."""
    from headrace.client.group_admin import GroupAdmin

    brokers = brokers_of(where, given)
    with GroupAdmin(brokers.bootstrap, timeout_ms=read_timeout_ms()) as admin:
        yield admin, brokers


def all_groups(where: str | None, given: str | None) -> tuple[list[GroupState], list[SilentBroker], str]:
    """Returns the groups of both kinds, the silent brokers, and ZooKeeper's problem ("" if it answers).

    Brokers and ZooKeeper are asked at the same time. Without a ZooKeeper the brokers alone are asked. Raises
    `NetworkError` if no broker answers.
    """
    from headrace.coordination.errors import ZooKeeperUnavailableError

    with group_admin(where, given) as (admin, brokers), ThreadPoolExecutor(1) as thread:
        listing = thread.submit(admin.list_groups, known=brokers.known)
        found: dict[str, GroupState] = {}
        problem = ""
        is_seen = False
        try:
            with zookeeper(where, given) as session:
                if session is not None:
                    found, is_seen = _in_zookeeper(session), True
        except ZooKeeperUnavailableError as error:
            problem = str(error)
        listed = listing.result()
        names = sorted(found.keys() | listed.groups.keys())
        topics = {} if is_seen or problem else _topics_read(admin, listed)
    is_complete = not listed.silent
    groups = [
        merged(name, found.get(name), listed.groups.get(name), is_complete, is_seen=is_seen) for name in names
    ]
    if topics:
        groups = [replace(group, topics=topics.get(group.name, group.topics)) for group in groups]
    return groups, list(listed.silent), problem


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


def _in_zookeeper(session: ZooKeeperSession) -> dict[str, GroupState]:
    """Returns what ZooKeeper knows of all groups. Those of Kafka's protocol have offsets only."""
    from headrace.coordination.consumers import ConsumerRegistry, groups, registering_here, stored_topics

    names = groups(session)
    registering = registering_here(session, names)
    topics = stored_topics(session, names)
    return {
        name: _registered(ConsumerRegistry(session, name), topics[name], is_kind=name in registering)
        for name in names
    }


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
    session: ZooKeeperSession | None, admin: GroupAdmin, group: str, silent: Iterable[SilentBroker]
) -> dict[TopicPartition, int]:
    """Returns a group's offsets: of ZooKeeper, or else of its coordinator; none if that one is silent."""
    from headrace.coordination.consumers import ConsumerRegistry

    if session is not None:
        return ConsumerRegistry(session, group).all_offsets()
    described = admin.describe_unless_silent(group, {each.broker_id for each in silent})
    return {} if described.members is None else admin.group_offsets(group)


def one_group(
    session: ZooKeeperSession | None,
    admin: GroupAdmin,
    group: str,
    silent: list[SilentBroker],
    *,
    must_exist: bool = True,
) -> GroupState:
    """Returns one group of either kind, with its members' partitions.

    Raises `CommandError` if there is no such group and it must exist.
    """
    from headrace.coordination.consumers import ConsumerRegistry, registering_here

    stored = {topic for topic, _ in stored_offsets(session, admin, group, silent)}
    described = admin.describe_unless_silent(group, {each.broker_id for each in silent})
    is_kind = session is not None and group in registering_here(session, [group])
    if must_exist and not is_kind and not stored and described.state == "Dead":
        known = admin.list_groups().groups
        raise CommandError(f"there is no group {group!r}{did_you_mean(group, known, 'headrace groups list')}")
    if session is None:
        found = merged(group, None, described, is_complete=True, is_seen=False)
        return replace(found, topics=tuple(sorted(stored | set(found.topics))))
    registry = ConsumerRegistry(session, group)
    here = _registered(registry, stored, is_kind=is_kind)
    found = merged(group, here, described, is_complete=True)
    if not here.members or found.members is None:
        return found
    owned: dict[str, list[TopicPartition]] = {}
    for topic in found.topics:
        for partition, owner in registry.owners(topic).items():
            owned.setdefault(owner.name.rpartition("-")[0], []).append((topic, partition))
    members = tuple(
        member
        if member.client_id is not None
        else Member(member.member_id, None, None, tuple(owned.get(member.member_id, ())))
        for member in found.members
    )
    return GroupState(found.name, found.kind, found.state, members, found.topics, found.coordinator)


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
