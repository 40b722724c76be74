"""What is known of consumer groups of both kinds: members by Kafka's protocol, and members by ZooKeeper.

Both kinds keep their offsets in the same place, so only their members tell them apart. What a silent broker
coordinates is unknown, which is never the same as "has no members".
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from headrace.cli.cluster import READ_TIMEOUT_MS, Brokers, brokers_of
from headrace.cli.context import datacenter
from headrace.cli.errors import CommandError, ExitCode

if TYPE_CHECKING:
    from headrace.client.asking import SilentBroker
    from headrace.client.cluster import TopicPartition
    from headrace.client.group_admin import GroupAdmin
    from headrace.client.group_types import GroupDescription
    from headrace.coordination.consumers import ConsumerRegistry
    from headrace.coordination.session import ZooKeeperSession

ZOOKEEPER_MAX_S: Final = 3.5
STABLE: Final = "Stable"
EMPTY: Final = "Empty"
UNKNOWN: Final = "Unknown"


class Kind(StrEnum):
    """How the members of a group find each other. BOTH: two programs use one name, and disturb each other."""

    KAFKA = "kafka"
    ZOOKEEPER = "zookeeper"
    BOTH = "kafka and zookeeper"


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
    """`members` is None if its coordinator does not answer, and so nobody knows."""

    name: str
    kind: Kind
    state: str
    members: tuple[Member, ...] | None
    topics: tuple[str, ...] = ()
    coordinator: int | None = None

    def refuse_if_live(self, action: str) -> None:
        """Raises `CommandError` unless it is known that the group has no members."""
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
def zookeeper(where: str | None) -> Iterator[ZooKeeperSession]:
    """A session with the datacenter's ZooKeeper. Raises `ZooKeeperUnavailableError`."""
    from headrace.coordination.session import ZooKeeperSession

    hosts = str(datacenter(where).zookeeper)
    session = ZooKeeperSession(hosts, name="headrace-groups", call_timeout_s=ZOOKEEPER_MAX_S)
    session.start(connect_timeout_s=ZOOKEEPER_MAX_S)
    try:
        yield session
    finally:
        session.close()


@contextmanager
def group_admin(where: str | None) -> Iterator[tuple[GroupAdmin, Brokers]]:
    """The brokers' side, and who they should be."""
    from headrace.client.group_admin import GroupAdmin

    brokers = brokers_of(where, None)
    with GroupAdmin(brokers.bootstrap, timeout_ms=READ_TIMEOUT_MS) as admin:
        yield admin, brokers


def all_groups(where: str | None) -> tuple[list[GroupState], list[SilentBroker], str]:
    """Returns the groups of both kinds, the silent brokers, and ZooKeeper's problem ("" if it answers).

    Brokers and ZooKeeper are asked at the same time. Raises `NetworkError` if no broker answers.
    """
    from headrace.coordination.errors import ZooKeeperUnavailableError

    with group_admin(where) as (admin, brokers), ThreadPoolExecutor(1) as thread:
        listing = thread.submit(admin.list_groups, known=brokers.known)
        found: dict[str, GroupState] = {}
        problem = ""
        try:
            with zookeeper(where) as session:
                found = _in_zookeeper(session)
        except ZooKeeperUnavailableError as error:
            problem = str(error)
        listed = listing.result()
    names = sorted(found.keys() | listed.groups.keys())
    is_complete = not listed.silent
    groups = [merged(name, found.get(name), listed.groups.get(name), is_complete) for name in names]
    return groups, list(listed.silent), problem


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


def one_group(
    session: ZooKeeperSession,
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

    registry = ConsumerRegistry(session, group)
    is_kind = group in registering_here(session, [group])
    stored = {topic for topic, _ in registry.all_offsets()}
    here = _registered(registry, stored, is_kind=is_kind)
    described = admin.describe_unless_silent(group, {each.broker_id for each in silent})
    if must_exist and not is_kind and not stored and described.state == "Dead":
        raise CommandError(f"there is no group {group!r}; `headrace groups list` lists the groups")
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
    name: str, here: GroupState | None, described: GroupDescription | None, is_complete: bool
) -> GroupState:
    """Returns a group from what ZooKeeper and its coordinator tell; `is_complete`: all coordinators told."""
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
