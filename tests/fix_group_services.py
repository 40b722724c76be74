"""Brokers that coordinate groups, over a real ZooKeeper, without sockets: `ServiceBroker`.

Fixtures: `coordinator`, of the group; `heir`, which coordinates it once that has gone; `group_session`, with
a topic.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from fix_group_brokers import FIRST, GROUP, KEY, SECOND, HeldJobs, joining
from fix_zookeeper import ZooKeeperRoom
from headrace.broker.bodies import Tree
from headrace.broker.cluster import ClusterView
from headrace.broker.groups.fencing import registered
from headrace.broker.groups.store import GroupStore
from headrace.broker.groups.types import GroupDescription, JoinReply, Sync, SyncReply
from headrace.broker.handlers.groups import GroupService
from headrace.broker.handlers.offsets import OffsetService
from headrace.broker.promise import Promise
from headrace.broker.settings.config import BrokerConfig
from headrace.coordination.brokers import BrokerRegistration, BrokerRegistry
from headrace.coordination.session import ZooKeeperSession
from headrace.coordination.standing import HeldNode
from headrace.coordination.topics import TopicRegistry
from headrace.wire.apis import ApiKey
from headrace.wire.errors import ErrorCode
from headrace.wire.messages import Request

DELAY_MS = 100


class ServiceBroker:
    """A broker's groups. It sees other brokers by `see` alone, and ZooKeeper answers by `settle`."""

    def __init__(self, session: ZooKeeperSession, broker_id: int) -> None:
        self.broker_id = broker_id
        self.now_ms = 1_000
        self.jobs = HeldJobs()
        self.held: HeldNode
        self._registry = BrokerRegistry(session)
        self._topics = TopicRegistry(session)
        self._state = SimpleNamespace(
            config=BrokerConfig({"group.initial.rebalance.delay.ms": str(DELAY_MS)}),
            broker_id=broker_id,
            view=ClusterView(),
            monotonic_ms=lambda: self.now_ms,
            loop=SimpleNamespace(call_later=lambda *_: SimpleNamespace(cancel=lambda: None)),
            peer="127.0.0.1:5",
        )
        self.store = GroupStore(session, cast(Any, self.jobs), lambda: registered(cast(Any, self._state)))
        self.service = GroupService(cast(Any, self._state), self.store)
        self.offsets = OffsetService(self.service.coordinator, self.store, self.service.when_known)
        self.register()
        self.see()

    def register(self) -> None:
        self.held = self._registry.register(BrokerRegistration(self.broker_id, "127.0.0.1", 9092, "east"))

    def see(self) -> None:
        """Its watches tell of all brokers that live."""
        self._state.view = ClusterView().with_topics(self._topics.list()).with_brokers(self._registry.live())
        self.service.brokers_changed()
        self.settle()

    def settle(self) -> None:
        while self.jobs.jobs:
            self.jobs.run()

    def wait(self, ms: int) -> None:
        self.now_ms += ms
        self.service.coordinator.expire_and_advance(self.now_ms)
        self.settle()

    # --- requests ---

    def join(
        self, instance_id: str | None = None, member_id: str = "", group: str = GROUP
    ) -> list[JoinReply]:
        replies: list[JoinReply] = []
        asked = joining(group, instance_id=instance_id, member_id=member_id)

        def known(code: ErrorCode) -> None:
            if code is ErrorCode.NONE:
                self.service.coordinator.join(asked, self.now_ms, replies.append)
            else:
                replies.append(JoinReply(error=code, member_id=member_id))

        self.service.when_known(group, known)
        return replies

    def sync(self, member: JoinReply, assignments: dict[str, bytes] | None = None) -> list[SyncReply]:
        replies: list[SyncReply] = []
        request = Sync(
            group_id=GROUP,
            member_id=member.member_id,
            group_instance_id=None,
            generation_id=member.generation_id,
            protocol_type=None,
            protocol_name=None,
            assignments=assignments or {},
        )
        self.service.coordinator.sync(request, self.now_ms, replies.append)
        return replies

    def joined(self) -> JoinReply:
        """Returns the only member of a new group. Its part is b"all"."""
        (member,) = self.together(None)
        return member

    def together(self, *instance_ids: str | None) -> list[JoinReply]:
        """Returns the members of a new group, the leader first. The part of each is b"all"."""
        waiting = [self.join(instance_id) for instance_id in instance_ids]
        self.settle()
        self.wait(DELAY_MS)
        members = [reply for replies in waiting for reply in replies]
        assert [each.error for each in members] == [ErrorCode.NONE] * len(instance_ids)
        self.begin(members[0], *members[1:])
        return members

    def begin(self, leader: JoinReply, *others: JoinReply) -> None:
        """Lets the leader give each of them all."""
        members = [leader, *others]
        synced = [self.sync(each) for each in others]
        synced.append(self.sync(leader, {each.member_id: b"all" for each in members}))
        self.settle()
        assert [each.assignment for replies in synced for each in replies] == [b"all"] * len(members)

    def heartbeat(self, member: JoinReply, instance_id: str | None = None) -> ErrorCode:
        body = SimpleNamespace(
            group_id=GROUP,
            member_id=member.member_id,
            group_instance_id=instance_id,
            generation_id=member.generation_id,
        )
        code = self._answer(self.service.heartbeat(*self._request(ApiKey.HEARTBEAT, 4, body)))["error_code"]
        assert isinstance(code, ErrorCode)
        return code

    def leave(self, member: JoinReply) -> ErrorCode:
        body = SimpleNamespace(group_id=GROUP, member_id=member.member_id)
        code = self._answer(self.service.leave(*self._request(ApiKey.LEAVE_GROUP, 1, body)))["error_code"]
        assert isinstance(code, ErrorCode)
        return code

    def commit(self, offset: int, member: JoinReply | None = None) -> list[ErrorCode]:
        """Commits, as a client outside of the group if there is no member. `settle` brings the answer."""
        part = SimpleNamespace(partition_index=KEY[1], committed_offset=offset, committed_metadata=None)
        body = SimpleNamespace(
            group_id=GROUP,
            member_id="" if member is None else member.member_id,
            generation_id_or_member_epoch=-1 if member is None else member.generation_id,
            topics=[SimpleNamespace(name=KEY[0], partitions=[part])],
        )
        codes: list[ErrorCode] = []
        self.offsets.commit(*self._request(ApiKey.OFFSET_COMMIT, 9, body)).then(
            lambda tree: codes.append(tree["topics"][0]["partitions"][0]["error_code"])
        )
        return codes

    def delete(self) -> ErrorCode:
        body = SimpleNamespace(groups_names=[GROUP])
        tree = self._answer(self.service.administration.delete(*self._request(ApiKey.DELETE_GROUPS, 2, body)))
        code = tree["results"][0]["error_code"]
        assert isinstance(code, ErrorCode)
        return code

    def delete_offsets(self) -> ErrorCode:
        part = SimpleNamespace(partition_index=KEY[1])
        body = SimpleNamespace(group_id=GROUP, topics=[SimpleNamespace(name=KEY[0], partitions=[part])])
        tree = self._answer(self.offsets.delete(*self._request(ApiKey.OFFSET_DELETE, 0, body)))
        code = tree["error_code"] or tree["topics"][0]["partitions"][0]["error_code"]
        assert isinstance(code, ErrorCode)
        return code

    def listed(self) -> dict[str, str]:
        """Returns the state of each group that ListGroups shows."""
        body = SimpleNamespace()
        tree = self._answer(self.service.administration.list(*self._request(ApiKey.LIST_GROUPS, 0, body)))
        return {group["group_id"]: group["group_state"] for group in tree["groups"]}

    def described(self) -> Tree:
        body = SimpleNamespace(groups=[GROUP])
        request = self._request(ApiKey.DESCRIBE_GROUPS, 5, body)
        (found,) = self._answer(self.service.administration.describe(*request))["groups"]
        assert isinstance(found, dict)
        return found

    def known(self) -> GroupDescription | None:
        """Returns what it has in memory of the group."""
        return self.service.coordinator.describe(GROUP)[1]

    def _request(self, api: ApiKey, version: int, body: object) -> tuple[Any, Request]:
        return self._state, Request(api, version, 1, None, body)

    def _answer(self, promise: Promise[Any]) -> Tree:
        answers: list[Any] = []
        promise.then(answers.append)
        self.settle()
        (answer,) = answers
        assert isinstance(answer, dict)
        return answer


@pytest.fixture
def group_session(zookeeper: ZooKeeperRoom) -> Iterator[ZooKeeperSession]:
    with zookeeper.session() as made:
        TopicRegistry(made).create("t", uuid.uuid4(), {0: (1,)})
        yield made


@pytest.fixture
def coordinator(group_session: ZooKeeperSession) -> ServiceBroker:
    return ServiceBroker(group_session, FIRST)


@pytest.fixture
def heir(group_session: ZooKeeperSession, coordinator: ServiceBroker) -> ServiceBroker:
    """Coordinates the group once `coordinator` has gone."""
    made = ServiceBroker(group_session, SECOND)
    coordinator.see()
    return made


def dies(broker: ServiceBroker, heir: ServiceBroker) -> None:
    broker.held.release()
    heir.see()
