"""The balancer with real brokers and real producers, both engines: brokers start, stop and hang; the
balancer reloads. Acknowledged records are in the log once, and the records of a key keep their order.
"""

import contextlib
import itertools
import signal
import socket
import threading
import time
import urllib.request
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Protocol

import confluent_kafka
import kafka
import pytest

from fix_balancer import Balanced, BalancerProcess, wait_until
from fix_broker import RawClient
from fix_java import JavaPeer
from headrace.agent.probes import BalancerProbe
from headrace.wire.batch import hop
from headrace.wire.records import Record, decode_records, encode_batch

PARTITIONS: Final = 4
KEYS: Final = 10
PAUSE_S: Final = 0.01
"""Between a client's records: six clients at once, on a machine of two cores."""
BETWEEN_S: Final = 0.5
LINES: Final = 100_000
REPEATED_MAX: Final = 0.1
"""The share for a client without idempotence, on a machine so slow that a stopping broker's waits run out."""
ACKNOWLEDGED_WAIT_MAX_S: Final = 120.0


class Publishing(Protocol):
    """A client that publishes records numbered from 0. `finish` ends it and returns their count.

    It raises unless all were acknowledged.
    """

    def finish(self) -> int: ...


def key_of(number: int) -> bytes:
    return b"key-%d" % (number % KEYS)


class InThread:
    """Calls `send(number)` until `finish`, then `flush`, which returns the failures."""

    def __init__(self, send: Callable[[int], None], flush: Callable[[], list[object]]) -> None:
        self._send = send
        self._flush = flush
        self._ending = threading.Event()
        self._count = 0
        self._failures: list[object] = []
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            for number in itertools.count():
                if self._ending.wait(PAUSE_S):
                    break
                self._send(number)
                self._count = number + 1
            self._failures = self._flush()
        except Exception as error:
            self._failures.append(error)

    def finish(self) -> int:
        self._ending.set()
        self._thread.join(ACKNOWLEDGED_WAIT_MAX_S + 10)
        assert not self._thread.is_alive()
        assert not self._failures, f"{len(self._failures)} of {self._count}: {self._failures[0]}"
        return self._count


def confluent(bootstrap: str, topic: str, *, idempotent: bool) -> Publishing:
    failures: list[object] = []
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": bootstrap,
            "enable.idempotence": idempotent,
            "max.in.flight": 5 if idempotent else 1,
            "message.timeout.ms": int(ACKNOWLEDGED_WAIT_MAX_S * 1000),
            "reconnect.backoff.max.ms": 500,
        }
    )

    def send(number: int) -> None:
        producer.produce(
            topic,
            b"%d" % number,
            key_of(number),
            on_delivery=lambda error, _: failures.append(error) if error else None,
        )
        producer.poll(0)

    def flush() -> list[object]:
        left = producer.flush(ACKNOWLEDGED_WAIT_MAX_S)
        return [*failures, *(["not acknowledged"] * left)]

    return InThread(send, flush)


def kafka_python(bootstrap: str, topic: str, *, idempotent: bool) -> Publishing:
    producer = kafka.KafkaProducer(
        bootstrap_servers=bootstrap,
        acks="all",
        enable_idempotence=idempotent,
        max_in_flight_requests_per_connection=5 if idempotent else 1,
        delivery_timeout_ms=int(ACKNOWLEDGED_WAIT_MAX_S * 1000),
        reconnect_backoff_max_ms=500,
        linger_ms=5,
    )
    sent: list[Any] = []

    def flush() -> list[object]:
        producer.flush(ACKNOWLEDGED_WAIT_MAX_S)
        failures: list[object] = [each.exception or "no answer" for each in sent if not each.succeeded()]
        producer.close()
        return failures

    return InThread(lambda number: sent.append(producer.send(topic, b"%d" % number, key_of(number))), flush)


class Java:
    def __init__(self, peer: JavaPeer, lines: Path, bootstrap: str, topic: str, *, idempotent: bool) -> None:
        self._peer = peer
        self._topic = topic
        settings = {
            "bootstrap.servers": bootstrap,
            "acks": "all",
            "enable.idempotence": str(idempotent).lower(),
            "max.in.flight.requests.per.connection": 5 if idempotent else 1,
            "delivery.timeout.ms": int(ACKNOWLEDGED_WAIT_MAX_S * 1000),
            "linger.ms": 5,
        }
        pause_ms = int(PAUSE_S * 1000)
        peer("begin", settings, name=topic, topic=topic, records=lines, pause_ms=pause_ms)

    def finish(self) -> int:
        return int(self._peer("finish", name=self._topic)["count"])


def values_by_key(balanced: Balanced, topic: str) -> dict[bytes, list[int]]:
    """The records in the logs of all partitions, in their order."""
    found = defaultdict(list)
    for broker in balanced.cluster.brokers[:2]:
        with RawClient(broker.address) as client:
            for partition in range(PARTITIONS):
                data = client.read_all(topic, partition)
                for at, _ in hop(data):
                    for record in decode_records(data, at):
                        found[record.key or b""].append(int(record.value or b""))
    return found


@pytest.mark.real_client
@pytest.mark.slow
def test_producers_do_not_notice_brokers_that_start_and_stop(
    balanced_cluster: Balanced, java_peer: JavaPeer, tmp_path: Path
) -> None:
    balanced, balancer = balanced_cluster, balanced_cluster.balancer
    lines = tmp_path / "lines"
    lines.write_text("".join(f"0 1000 x{key_of(n).hex()} x{(b'%d' % n).hex()}\n" for n in range(LINES)))
    publishing: dict[str, Publishing] = {}
    with RawClient(balanced.cluster[1].address) as client:
        for name, idempotent in itertools.product(("confluent", "kafka-python", "java"), (True, False)):
            client.create_topic(f"{name}-{'idempotent' if idempotent else 'plain'}", PARTITIONS)
    for idempotent in (True, False):
        suffix = "idempotent" if idempotent else "plain"
        publishing[f"confluent-{suffix}"] = confluent(
            balancer.address, f"confluent-{suffix}", idempotent=idempotent
        )
        publishing[f"kafka-python-{suffix}"] = kafka_python(
            balancer.address, f"kafka-python-{suffix}", idempotent=idempotent
        )
        publishing[f"java-{suffix}"] = Java(
            java_peer, lines, balancer.address, f"java-{suffix}", idempotent=idempotent
        )

    one, two, three = (balanced.broker(number) for number in (1, 2, 3))
    time.sleep(BETWEEN_S)
    for stopped, left in ((one, two), (two, one)):
        assert stopped.stop() == 0
        balancer.wait_serving(left.broker_id)
        time.sleep(BETWEEN_S)
        stopped.start()
        balancer.wait_serving(1, 2)
        time.sleep(BETWEEN_S)
    three.start()
    balancer.wait_serving(1, 2, 3)
    one.restart()
    balancer.wait_serving(1, 2, 3)
    time.sleep(BETWEEN_S)
    assert three.stop() == 0
    balancer.wait_serving(1, 2)

    counts = {topic: client.finish() for topic, client in publishing.items()}
    for topic, count in counts.items():
        assert count > 2 * KEYS, f"{topic}: {count} records are too few to show anything"
        expected = {key_of(first): list(range(first, count, KEYS)) for first in range(KEYS)}
        found = values_by_key(balanced, topic)
        if topic.endswith("plain"):
            # A stopping broker finishes accepted requests, within a limit; then a client resends them.
            repeated = sum(map(len, found.values())) - count
            assert repeated <= REPEATED_MAX * count, f"{topic}: {repeated} of {count} are there twice"
            found = {key: sorted(set(values)) for key, values in found.items()}
        assert found == expected, topic


def test_a_reload_loses_no_connection(balanced_cluster: Balanced) -> None:
    balancer = balanced_cluster.balancer
    with RawClient(balanced_cluster.cluster[1].address) as client:
        client.create_topic("reload")
    batch = encode_batch([Record(0, 1_000, None, b"v")])
    with RawClient(balancer.address) as before:
        assert before.produce("reload", 0, batch).error_code == 0
        balancer.process.send_signal(signal.SIGHUP)
        wait_until(lambda: "reloaded" in balancer.output(), "the balancer has reloaded")
        assert before.produce("reload", 0, batch).error_code == 0
        balancer.wait_serving(1, 2)
        with RawClient(balancer.address) as after:
            assert after.produce("reload", 0, batch).error_code == 0
        assert before.produce("reload", 0, batch).error_code == 0


def test_a_broker_that_hangs_gets_no_connections(balanced_cluster: Balanced) -> None:
    balancer, hung = balanced_cluster.balancer, balanced_cluster.broker(2)
    balancer.wait_serving(1, 2)
    clients = [socket.create_connection(("127.0.0.1", balancer.port), timeout=20) for _ in range(4)]
    wait_until(
        lambda: all(row.get("connections", 0) for row in balancer.backends().values()),
        "both have connections",
    )
    hung.send_signal(signal.SIGSTOP)
    try:
        balancer.wait_serving(1)
        ended = 0
        for client in clients:
            client.settimeout(0.5)
            with contextlib.suppress(TimeoutError):
                ended += not client.recv(1)
            client.close()
        assert 1 <= ended < 4, "only the connections of the hung broker are cut"
        for _ in range(4):
            with RawClient(balancer.address) as raw:
                raw.send(raw.produce_frame("nowhere", 0, encode_batch([Record(0, 1, None, b"v")])))
                assert raw.read_produced().error_code
        # Its session with ZooKeeper expires, and so does its front.
        wait_until(lambda: balancer.withdrawn().get(2) == "does not answer", "the status says that it hangs")
        assert "does not answer, and gets no connections" in balancer.page()
    finally:
        hung.send_signal(signal.SIGCONT)
    balancer.wait_serving(1, 2)
    assert 2 not in balancer.withdrawn()


def haproxy_statistics(balancer: BalancerProcess) -> str:
    """HAProxy's own statistics, as CSV."""
    url = f"http://127.0.0.1:{balancer.statistics_port}/;csv"
    with urllib.request.urlopen(url, timeout=5) as response:
        return str(response.read().decode())


def test_status_page_and_log_agree(balanced_cluster: Balanced) -> None:
    balancer = balanced_cluster.balancer
    balancer.wait_serving(1, 2)
    status = balancer.status()
    assert status["engine"] == balancer.engine
    assert status["problem"] is None
    assert status["listen"] == balancer.address
    assert {row["broker_id"] for row in status["backends"]} == {1, 2}
    assert status["why"] in balancer.output()
    probe = BalancerProbe(f"http://127.0.0.1:{balancer.status_port}/status")
    assert probe.check() is None
    assert probe.note() == (status["why"] if balancer.engine == "embedded" else "")
    with urllib.request.urlopen(f"http://127.0.0.1:{balancer.status_port}/metrics", timeout=60) as answer:
        assert b'\nheadrace_balancer_broker_up{broker="2"} 1\n' in answer.read()
    page = balancer.page()
    assert balancer.address in page
    assert all(row["address"] in page for row in status["backends"])
    if balancer.engine == "haproxy":
        assert "brokers,broker-1," in haproxy_statistics(balancer)


def test_a_killed_balancer_leaves_nothing_behind(balanced_cluster: Balanced) -> None:
    """HAProxy ends with it: the next balancer, which supervisord starts at once, needs the address."""
    balancer = balanced_cluster.balancer
    balancer.process.kill()
    balancer.process.wait(20)
    balancer.start()
    balancer.wait_serving(1, 2)
    with RawClient(balancer.address) as client:
        client.send(client.produce_frame("nowhere", 0, encode_batch([Record(0, 1, None, b"v")])))
        assert client.read_produced().error_code


def test_without_brokers_the_status_has_a_problem(balanced_cluster: Balanced) -> None:
    balancer = balanced_cluster.balancer
    for broker in balanced_cluster.cluster.brokers[:2]:
        assert broker.stop() == 0
    balancer.wait_serving()
    assert balancer.status()["problem"] == "no broker takes connections"
    if balancer.engine == "haproxy":
        wait_until(lambda: "brokers,broker-" not in haproxy_statistics(balancer), "no server is left")
    assert "HAProxy answered" not in balancer.output(), "no command failed"
    assert balancer.stop() == 0
    with pytest.raises(ConnectionRefusedError):
        RawClient(balancer.address)
