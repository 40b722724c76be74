"""Topics without a number of replicas: three, or one on each live broker; and how many must be in sync."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable

import pytest

from fix_broker import BrokerCluster, RawClient, StartCluster
from headrace.broker.settings.config import BrokerConfig
from headrace.broker.settings.origins import of_topic
from headrace.broker.settings.replication import MIN_INSYNC
from headrace.client import Admin, Producer
from headrace.wire.errors import ErrorCode
from headrace.wire.records import Record, encode_batch

WAIT_MAX_S = 60.0


def shown(config: BrokerConfig, replicas: int) -> str:
    (found,) = (each.value for each in of_topic(config, {}, replicas) if each.setting.name == MIN_INSYNC)
    return found


@pytest.mark.parametrize(("replicas", "expected"), [(1, "1"), (2, "1"), (3, "2"), (4, "2"), (9, "2")])
def test_min_insync_replicas_follows_the_number_of_replicas_where_nobody_sets_it(
    replicas: int, expected: str
) -> None:
    plain = BrokerConfig()
    assert shown(plain, replicas) == expected
    assert plain.topic_config({}).min_insync(replicas) == int(expected)
    assert plain.topic_config({MIN_INSYNC: "3"}).min_insync(replicas) == 3
    chosen = BrokerConfig({MIN_INSYNC: "1"})
    assert shown(chosen, replicas) == "1"
    assert chosen.topic_config({}).min_insync(replicas) == 1


@pytest.fixture(scope="module")
def cluster(module_clusters: StartCluster) -> BrokerCluster:
    return module_clusters(count=3, config={"auto.create.topics.enable": "true"})


def name() -> str:
    return f"t-{uuid.uuid4().hex[:8]}"


def wait_for(what: str, condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_MAX_S
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain for: {what}"
        time.sleep(0.05)


def replicas_of(admin: Admin, topic: str) -> set[int]:
    return {len(partition.replicas) for partition in admin.topic(topic).partitions.values()}


def test_a_topic_without_a_number_has_three_replicas_of_which_two_must_be_in_sync(
    cluster: BrokerCluster,
) -> None:
    with Admin(cluster.bootstrap) as admin:
        topic = name()
        admin.create_topic(topic, 3)
        assert replicas_of(admin, topic) == {3}
        setting = admin.describe_configs(topic)[MIN_INSYNC]
        assert (setting.value, setting.is_own) == ("2", False)
        for factor, least in ((1, "1"), (2, "1")):
            topic = name()
            admin.create_topic(topic, 1, factor)
            assert replicas_of(admin, topic) == {factor}
            assert admin.describe_configs(topic)[MIN_INSYNC].value == least
        on_demand = name()
        with Producer(cluster.bootstrap) as producer:
            producer.send(on_demand, b"v")
            producer.flush(WAIT_MAX_S)
        assert replicas_of(admin, on_demand) == {3}


def test_any_one_broker_may_die_and_with_the_second_acks_all_stops(cluster: BrokerCluster) -> None:
    topic = name()
    batch = encode_batch([Record(0, 1_000, None, b"v")])
    with Admin(cluster.bootstrap) as admin:
        admin.create_topic(topic, 1)
        leader = admin.topic(topic).partitions[0].leader
        followers = [each for each in (1, 2, 3) if each != leader]
        with RawClient(cluster[leader].address) as client:
            assert client.produce(topic, 0, batch).error_code == ErrorCode.NONE
            cluster[followers[0]].kill()
            try:
                assert client.produce(topic, 0, batch).error_code == ErrorCode.NONE
                wait_for("two brokers are left", lambda: len(cluster[leader].sees()) == 2)
                later = name()
                admin.create_topic(later, 1)
                assert replicas_of(admin, later) == {3}, "the dead one is to come back"
                cluster[followers[1]].kill()
                codes = {ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND}
                assert client.produce(topic, 0, batch).error_code in codes, "one disk alone would have it"
                refused = client.produce(topic, 0, batch)
                assert refused.error_code == ErrorCode.NOT_ENOUGH_REPLICAS
                assert "min.insync.replicas is 2" in (refused.error_message or "")
            finally:
                for follower in followers:
                    if not cluster[follower].is_running:
                        cluster[follower].start()
            wait_for("it goes on", lambda: client.produce(topic, 0, batch).error_code == ErrorCode.NONE)
