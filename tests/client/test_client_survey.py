"""What a survey knows of a cluster, and what it says of brokers that do not answer."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator

import pytest

from fix_client import FakeCluster, StartCluster
from fix_fake_broker import FakeBroker, refuse
from headrace.client.admin import Admin
from headrace.client.cluster import BrokerAddress
from headrace.client.consumer import Consumer
from headrace.client.errors import NetworkError, UnknownTopicError
from headrace.client.group_admin import GroupAdmin
from headrace.client.survey import LogRange
from headrace.wire.apis import ApiKey
from headrace.wire.errors import ErrorCode
from headrace.wire.records import Record, encode_batch


@contextlib.contextmanager
def hung(broker: FakeBroker) -> Iterator[None]:
    """The broker as it is after SIGSTOP: its kernel accepts connections, and nothing answers on them."""
    broker.stop()
    with socket.create_server((broker.host, broker.port)):
        yield


@pytest.fixture
def cluster(fake_cluster: StartCluster) -> FakeCluster:
    """Two brokers; topic t has partitions 0 and 2 on broker 1, partition 1 on broker 2."""
    made = fake_cluster(brokers=2, partitions=3)
    with made.lock:
        for partition in range(3):
            made.log(partition).append(encode_batch([Record(0, 1_000, None, b"x" * (partition + 1))]))
    return made


def test_every_partition_has_its_range(cluster: FakeCluster) -> None:
    with Admin(cluster.bootstrap) as admin:
        survey = admin.survey()
    assert survey.silent == () and not survey.problems
    assert survey.ranges_of("t") == {
        partition: LogRange(0, cluster.log(partition).end) for partition in range(3)
    }
    assert sorted(map(str, survey.answering)) == sorted(cluster.bootstrap.split(","))


def test_a_hung_broker_hides_nothing_of_the_others(cluster: FakeCluster) -> None:
    broker = cluster.brokers[1]
    with hung(broker), Admin(cluster.bootstrap) as admin:
        survey = admin.survey(["t"])
    assert sorted(survey.ranges_of("t")) == [0, 2]
    (silent,) = survey.silent
    assert str(silent) == f"broker 2 at {broker.host}:{broker.port} does not answer"
    assert survey.problems_of("t") == {1: str(silent)}
    assert [address.port for address in survey.answering] == [cluster.brokers[0].port]


def test_a_broker_that_is_down_is_named_with_the_cause(cluster: FakeCluster) -> None:
    cluster.brokers[1].stop()
    with Admin(cluster.bootstrap) as admin:
        survey = admin.survey()
    assert "does not answer (Connection refused)" in str(survey.silent[0])


def test_a_broker_that_is_not_registered_is_named_by_the_address_it_should_have(cluster: FakeCluster) -> None:
    with cluster.lock:
        gone = cluster.brokers.pop()
        cluster.leaders["t", 1] = 2
    bootstrap = f"{cluster.bootstrap},{gone.host}:{gone.port}"
    try:
        with hung(gone), Admin(bootstrap) as admin:
            survey = admin.survey(known={2: BrokerAddress(gone.host, gone.port)})
            nameless = admin.survey()
    finally:
        gone.end()
    assert survey.problems_of("t") == {1: f"broker 2 at {gone.host}:{gone.port} does not answer"}
    assert [str(each) for each in survey.silent] == list(survey.problems.values())
    assert [str(each) for each in nameless.silent] == [
        f"a broker at {gone.host}:{gone.port} does not answer",
        "broker 2 is not registered: it is down or hangs",
    ]


def test_a_refused_partition_says_why(cluster: FakeCluster) -> None:
    cluster.next(ApiKey.LIST_OFFSETS, *[refuse(ErrorCode.KAFKA_STORAGE_ERROR)] * 4)
    with Admin(cluster.bootstrap) as admin:
        survey = admin.survey()
    assert survey.silent == ()
    assert all("KAFKA_STORAGE_ERROR" in problem for problem in survey.problems.values())
    assert len(survey.problems) == 3


def test_without_any_broker_there_is_nothing_to_know(cluster: FakeCluster) -> None:
    for broker in cluster.brokers:
        broker.stop()
    with Admin(cluster.bootstrap) as admin, pytest.raises(NetworkError, match="could not be reached"):
        admin.survey()


def test_an_unknown_topic_is_named(cluster: FakeCluster) -> None:
    with Admin(cluster.bootstrap) as admin:
        survey = admin.survey(["no-such-topic"])
    with pytest.raises(UnknownTopicError, match="there is no topic 'no-such-topic'"):
        survey.topic("no-such-topic")


@pytest.mark.parametrize("first", [0.0, 0.999])
def test_a_client_does_not_wait_for_a_hung_bootstrap_broker(cluster: FakeCluster, first: float) -> None:
    """Whichever it tries first: the request's timeout is far behind the test's."""
    with (
        hung(cluster.brokers[1]),
        Consumer(cluster.bootstrap, request_timeout_ms=250_000, draw=lambda: first) as consumer,
    ):
        assert consumer.partitions_for("t", timeout_s=60) == [0, 1, 2]


def test_a_broker_that_does_not_know_its_groups_is_named(cluster: FakeCluster) -> None:
    """Those with offsets alone are in ZooKeeper, which may not answer it now."""
    cluster.next(ApiKey.LIST_GROUPS, refuse(ErrorCode.COORDINATOR_NOT_AVAILABLE))
    with GroupAdmin(cluster.bootstrap) as admin:
        listing = admin.list_groups()
    (silent,) = listing.silent
    assert str(silent).endswith("does not answer (ZooKeeper does not tell it its groups)")
