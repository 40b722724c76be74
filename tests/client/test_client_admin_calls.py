"""Calls of the admin clients: a coordinator that moves between two requests, and `close` beside a call."""

from __future__ import annotations

import contextlib
import datetime
import threading
import time
from collections.abc import Iterator

import pytest
from kio.schema.errors import ErrorCode as KioErrorCode

from fix_client import FakeCluster, StartCluster
from fix_fake_broker import FakeBroker, Fault
from headrace.client import Admin
from headrace.client.errors import BrokerError, ClosedError
from headrace.client.group_admin import GroupAdmin
from headrace.wire import messages
from headrace.wire.apis import ApiKey


class GroupCluster(FakeCluster):
    """Two brokers. One coordinates all groups: `coordinator`, as that of `told` is out of date."""

    def __init__(self) -> None:
        self.coordinator = 1
        self.told = [1]
        self.no_coordinators = 0
        self.deleted: list[str] = []
        super().__init__(brokers=2)
        self.versions |= {
            ApiKey.FIND_COORDINATOR: (1, 3),
            ApiKey.OFFSET_FETCH: (2, 7),
            ApiKey.DELETE_GROUPS: (0, 2),
        }

    def handle(self, broker: FakeBroker, request: messages.Request, fault: Fault) -> bytes | None:
        none = datetime.timedelta()
        is_it = broker.broker_id == self.coordinator
        code = KioErrorCode.none if is_it else KioErrorCode.not_coordinator
        if request.api_key == ApiKey.FIND_COORDINATOR:
            refused, self.no_coordinators = self.no_coordinators > 0, self.no_coordinators - 1
            return self._reply(
                request,
                "FindCoordinatorResponse",
                throttle_time=none,
                error_code=KioErrorCode.coordinator_not_available if refused else KioErrorCode.none,
                error_message="no broker is registered" if refused else None,
                node_id=self.told.pop(0) if self.told else self.coordinator,
                host="127.0.0.1",
                port=1,
            )
        if request.api_key == ApiKey.OFFSET_FETCH:
            part = self._make(
                request,
                "OffsetFetchResponsePartition",
                partition_index=0,
                committed_offset=7,
                committed_leader_epoch=-1,
                metadata="",
                error_code=KioErrorCode.none,
            )
            topic = self._make(request, "OffsetFetchResponseTopic", name="t", partitions=(part,))
            topics = (topic,) if is_it else ()
            return self._reply(
                request, "OffsetFetchResponse", throttle_time=none, topics=topics, error_code=code
            )
        if request.api_key == ApiKey.DELETE_GROUPS:
            self.deleted += request.body.groups_names if is_it else ()
            results = tuple(
                self._make(request, "DeletableGroupResult", group_id=name, error_code=code)
                for name in request.body.groups_names
            )
            return self._reply(request, "DeleteGroupsResponse", throttle_time=none, results=results)
        return super().handle(broker, request, fault)


@pytest.fixture
def groups() -> Iterator[GroupCluster]:
    with contextlib.closing(GroupCluster()) as cluster:
        yield cluster


def test_a_coordinator_that_has_moved_is_found_again(groups: GroupCluster) -> None:
    groups.coordinator = 2
    with GroupAdmin(groups.bootstrap) as admin:
        assert admin.group_offsets("g") == {("t", 0): 7}
        groups.told, groups.coordinator = [2, 2], 1
        admin.delete_group("g")
    assert groups.deleted == ["g"]


def test_a_coordinator_that_is_not_known_yet_is_asked_for_again(groups: GroupCluster) -> None:
    groups.no_coordinators = 2
    with GroupAdmin(groups.bootstrap) as admin:
        assert admin.group_offsets("g") == {("t", 0): 7}


def test_a_coordinator_that_is_never_found_is_an_error(groups: GroupCluster) -> None:
    groups.no_coordinators = 1000
    with (
        GroupAdmin(groups.bootstrap, timeout_ms=600) as admin,
        pytest.raises(BrokerError, match="COORDINATOR_NOT_AVAILABLE: no broker is registered"),
    ):
        admin.group_offsets("g")


def test_close_ends_a_call_of_another_thread(fake_cluster: StartCluster) -> None:
    cluster = fake_cluster()
    admin = Admin(cluster.bootstrap)
    admin.topics()
    cluster.next(ApiKey.METADATA, Fault(delay_s=30))
    errors: list[Exception] = []

    def call() -> None:
        try:
            admin.topics()
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=call, daemon=True)
    asked = len(cluster.requests_of(ApiKey.METADATA))
    thread.start()
    until = time.monotonic() + 5
    while len(cluster.requests_of(ApiKey.METADATA)) == asked and time.monotonic() < until:
        time.sleep(0.005)
    admin.close()
    thread.join(2)
    assert not thread.is_alive()
    assert [type(error) for error in errors] == [ClosedError]
    with pytest.raises(ClosedError):
        admin.topics()
