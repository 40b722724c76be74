"""Clients of a front do not wait for one another: each has its own links to the leaders."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Iterator
from uuid import uuid4

import pytest

from fix_broker import BrokerCluster, RawClient, StartCluster
from fix_client import StartCluster as StartFakeCluster
from fix_ports import free_port
from fix_zookeeper import ZooKeeperRoom
from headrace.broker.loop import EventLoop
from headrace.broker.network import peers as links
from headrace.broker.network.links import IDLE_MAX_S, Lost, Sender
from headrace.broker.network.peers import Peers
from headrace.wire.apis import ApiKey
from headrace.wire.batch import hop
from headrace.wire.primitives import NO_UUID
from headrace.wire.produce import ProducePartition, ProduceRequest, ProduceResponse, ProduceTopic
from headrace.wire.records import Record, decode_records, encode_batch

SLOW_FLUSH_MS = 20_000
QUICK_MAX_S = 5.0
LARGE_BYTES = 20_000  # of a batch: a link does not copy so much
RAW = encode_batch([Record(0, 1_000, None, b"v")])


@pytest.fixture
def cluster(
    broker_cluster: StartCluster, zookeeper: ZooKeeperRoom
) -> Iterator[tuple[BrokerCluster, list[int]]]:
    ports = [free_port(), free_port()]

    def arguments(broker_id: int) -> list[str]:
        port = ports[broker_id - 1]
        return ["--front-listen", f"127.0.0.1:{port}", "--front-advertise", f"127.0.0.1:{port}"]

    yield broker_cluster(2, zookeeper=zookeeper, arguments=arguments), ports


def test_a_topic_that_flushes_seldom_delays_no_other_client(
    cluster: tuple[BrokerCluster, list[int]],
) -> None:
    brokers, ports = cluster
    with RawClient(brokers[1].address) as client:
        client.create_topic("slow", 2, {"flush.ms": str(SLOW_FLUSH_MS), "flush.messages": "1000000"})
        client.create_topic("quick", 2)
    front = f"127.0.0.1:{ports[0]}"
    with RawClient(front) as slow, RawClient(front) as quick:
        for partition in (0, 1):  # one of them is led by the other broker
            slow.send(slow.produce_frame("slow", partition, RAW))
        time.sleep(0.2)
        began_s = time.monotonic()
        assert [quick.produce("quick", partition, RAW).error_code for partition in (0, 1)] == [0, 0]
        assert time.monotonic() - began_s < QUICK_MAX_S


def stored_values(brokers: BrokerCluster, partition: int) -> list[bytes]:
    """All values of a partition of the topic `t`, sorted, from its leader."""
    for broker in brokers.brokers:
        with RawClient(broker.address) as reader:
            if reader.fetch("t", partition, 0).error_code == 0:
                data = reader.read_all("t", partition)
                return sorted(each.value or b"" for at, _ in hop(data) for each in decode_records(data, at))
    raise AssertionError("nobody leads it")


def test_clients_whose_batches_come_at_once_get_each_its_own_stored(
    cluster: tuple[BrokerCluster, list[int]],
) -> None:
    """A batch that waited to be passed on was overwritten by the next client's, and acknowledged."""
    brokers, ports = cluster
    with RawClient(brokers[1].address) as admin:
        admin.create_topic("t", 2)
    values = [bytes([number]) * LARGE_BYTES for number in range(1, 4)]
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(RawClient(f"127.0.0.1:{ports[0]}")) for _ in values]
        for partition in (0, 1):  # one of them is led by the other broker
            for client in clients:  # then it has its link
                assert client.produce("t", partition, RAW).error_code == 0
            brokers[1].send_signal(signal.SIGSTOP)
            for client, value in zip(clients, values, strict=True):
                client.send(client.produce_frame("t", partition, encode_batch([Record(0, 1, None, value)])))
            brokers[1].send_signal(signal.SIGCONT)
            assert [client.read_produced().error_code for client in clients] == [0, 0, 0]
    found = [stored_values(brokers, partition) for partition in (0, 1)]
    assert found == [sorted([b"v"] * 3 + values)] * 2


class Links:
    def __init__(self) -> None:
        self.loop = EventLoop()
        self.peers = Peers(self.loop)

    def send(self, port: int, sender: Sender) -> list[ProduceResponse | Lost]:
        responses: list[ProduceResponse | Lost] = []
        topics = [ProduceTopic("t", NO_UUID, [ProducePartition(0, RAW)])]
        assert self.peers.send(
            "127.0.0.1", port, ProduceRequest(None, -1, 1_000, topics), responses.append, sender
        )
        return responses

    def turn_until_idle(self) -> None:
        deadline = time.monotonic() + 20
        while not self.peers.is_idle:
            assert time.monotonic() < deadline, "waited too long"
            self.loop.turn(0.05)

    @property
    def count(self) -> int:
        return len(self.peers._links)


@pytest.fixture
def made() -> Iterator[Links]:
    links = Links()
    yield links
    links.peers.close()
    links.loop.close()


def test_the_link_of_a_client_that_left_serves_the_next_one(
    made: Links, fake_cluster: StartFakeCluster
) -> None:
    port = fake_cluster().brokers[0].port
    stays = made.peers.sender()
    for _ in range(20):
        leaves = made.peers.sender()
        answered = made.send(port, leaves)
        made.turn_until_idle()
        leaves.close()
        assert isinstance(answered[0], ProduceResponse)
        made.send(port, stays)
        made.turn_until_idle()
    assert made.count == 2, "clients that come and go open no connections"
    leaves.close()
    assert made.count == 2, "closed once more, it gives nothing away that another one uses"


def test_a_link_is_not_shared_before_all_is_answered(made: Links, fake_cluster: StartFakeCluster) -> None:
    port = fake_cluster().brokers[0].port
    leaves, comes = made.peers.sender(), made.peers.sender()
    made.send(port, leaves)
    leaves.close()
    made.send(port, comes)
    assert made.count == 2
    made.turn_until_idle()
    made.send(port, made.peers.sender())
    assert made.count == 2


@pytest.mark.parametrize("comes_later", [False, True])
def test_nothing_is_sent_on_a_link_that_its_leader_has_closed(
    made: Links, fake_cluster: StartFakeCluster, *, comes_later: bool
) -> None:
    """The loop has not seen it yet: with acks=0 the batch was lost, with others nobody knew."""
    broker = fake_cluster().brokers[0]
    sender = made.peers.sender()
    made.send(broker.port, sender)
    made.turn_until_idle()
    if comes_later:
        sender.close()
        sender = made.peers.sender()
    broker.stop()
    broker.start()
    answered = made.send(broker.port, sender)
    made.turn_until_idle()
    assert isinstance(answered[0], ProduceResponse)
    assert made.count == 1


def test_a_link_that_nobody_used_for_long_is_replaced_before_its_leader_closes_it(
    made: Links, fake_cluster: StartFakeCluster
) -> None:
    now_s = [0.0]
    port = fake_cluster().brokers[0].port
    made.peers = Peers(made.loop, lambda: now_s[0])
    sender = made.peers.sender()
    links = []
    for now_s[0] in (0.0, IDLE_MAX_S - 1, 2 * IDLE_MAX_S - 1):
        made.send(port, sender)
        made.turn_until_idle()
        links.append(next(iter(sender.links.values())))
    assert links[0] is links[1] is not links[2]
    assert made.count == 1


def test_a_request_that_a_leader_does_not_understand_is_refused_alone(
    made: Links, fake_cluster: StartFakeCluster
) -> None:
    cluster = fake_cluster()
    cluster.versions[ApiKey.PRODUCE] = (3, 12)  # without topic ids
    responses: list[ProduceResponse | Lost] = []
    for topic in (ProduceTopic("", uuid4(), []), ProduceTopic("t", NO_UUID, [])) * 2:
        request = ProduceRequest(None, -1, 1_000, [topic._replace(partitions=[ProducePartition(0, RAW)])])
        assert made.peers.send("127.0.0.1", cluster.brokers[0].port, request, responses.append)
        if responses:
            made.turn_until_idle()
    made.turn_until_idle()
    lost = [response for response in responses if isinstance(response, Lost)]
    assert len(responses) == 4
    assert [each.was_sent for each in lost] == [False, False]
    assert "supports no version of PRODUCE" in lost[0].problem


def test_what_a_client_sent_before_it_left_is_stored(made: Links, fake_cluster: StartFakeCluster) -> None:
    cluster = fake_cluster()
    senders = [made.peers.sender() for _ in range(10)]
    responses = [made.send(cluster.brokers[0].port, sender) for sender in senders]
    for sender in senders:
        sender.close()
    made.turn_until_idle()
    assert all(isinstance(response, ProduceResponse) for [response] in responses)
    assert len(cluster.log().batches) == 10


def test_links_to_a_broker_are_bounded_and_requests_keep_their_order(
    made: Links, fake_cluster: StartFakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(links, "LINKS_TO_A_BROKER_MAX", 3)
    port = fake_cluster().brokers[0].port
    senders = [made.peers.sender() for _ in range(10)]
    for sender in senders:
        made.send(port, sender)
    assert made.count == 3 + 1, "those beyond the bound share one"
    for sender in senders[:3]:
        sender.close()
    made.turn_until_idle()
    made.send(port, senders[9])
    made.send(port, senders[8])
    assert len([link for link in made.peers._links if not link.is_idle]) == 1, "as before: an order stays"
    made.turn_until_idle()


def test_links_leave_descriptors_to_logs(made: Links, fake_cluster: StartFakeCluster) -> None:
    port = fake_cluster().brokers[0].port
    made.peers = Peers(made.loop, descriptors=64)
    for _ in range(10):
        made.send(port, made.peers.sender())
    assert made.count == 64 // 16 + 1
    made.turn_until_idle()
