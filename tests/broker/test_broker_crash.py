"""Brokers that die, ZooKeepers that vanish, full disks: nothing acknowledged is lost, service continues."""

import resource
import shutil
import signal
import threading
import time
from dataclasses import dataclass, field

import pytest

from fix_broker import BrokerCluster, BrokerProcess, RawClient, StartCluster
from fix_zookeeper import ZooKeeperRoom
from headrace.coordination.session import ZooKeeperSession
from headrace.wire.batch import hop
from headrace.wire.errors import ErrorCode
from headrace.wire.records import Record, decode_records, encode_batch


def batch(value: bytes, **fields: int) -> bytes:
    return encode_batch([Record(0, 1_000, None, value)], **fields)  # type: ignore[arg-type]


@dataclass
class Load:
    """A producer with acks=all that keeps several requests in flight and remembers what was acknowledged."""

    broker: BrokerProcess
    topic: str
    producer_id: int
    acknowledged: list[tuple[int, int]] = field(default_factory=list)
    stopping: bool = False

    def run(self) -> None:
        sequence = 0
        while not self.stopping:
            try:
                with RawClient(self.broker.address, timeout_s=20) as client:
                    while not self.stopping:
                        numbers = range(sequence, sequence + 20)
                        client.send(b"".join(self.frame(client, number) for number in numbers))
                        for number in numbers:
                            result = client.read_produced()
                            if result.error_code:
                                return  # unknown what was stored: start a new producer
                            self.acknowledged.append((number, result.base_offset))
                            sequence = number + 1
            except (OSError, EOFError):
                return

    def frame(self, client: RawClient, number: int) -> bytes:
        raw = batch(
            b"%d/%d" % (self.producer_id, number) + bytes(number % 700),
            producer_id=self.producer_id,
            producer_epoch=0,
            base_sequence=number,
        )
        return client.produce_frame(self.topic, 0, raw)


@pytest.mark.slow
def test_a_kill_under_load_loses_nothing_acknowledged(broker_cluster: StartCluster) -> None:
    cluster = broker_cluster(config={"log.segment.bytes": "100000"})
    broker = cluster[1]
    with RawClient(broker.address) as client:
        client.create_topic("t")
    everything: list[Load] = []
    for round_number in range(4):
        loads = [Load(broker, "t", 10 * round_number + number) for number in range(3)]
        threads = [threading.Thread(target=load.run) for load in loads]
        for thread in threads:
            thread.start()
        time.sleep(0.4 + 0.1 * round_number)
        broker.kill()
        for load, thread in zip(loads, threads, strict=True):
            load.stopping = True
            thread.join()
        everything += loads
        broker.start()
    with RawClient(broker.address) as client:
        data = client.read_all("t", 0)
        end = client.list_offset("t", 0, -1)[0]
    assert len(data) == end
    stored = {}
    for at, header in hop(data):
        assert header.address == at
        (record,) = decode_records(data, at)
        assert record.value is not None
        producer, sequence = record.value.rstrip(b"\0").split(b"/")
        assert (int(producer), int(sequence)) == (header.producer_id, header.base_sequence)
        assert (header.producer_id, header.base_sequence) not in stored, "nothing twice"
        stored[header.producer_id, header.base_sequence] = header.base_offset
    acknowledged = 0
    for load in everything:
        for number, offset in load.acknowledged:
            assert stored[load.producer_id, number] == offset
            acknowledged += 1
    assert acknowledged > 200


def test_a_killed_broker_is_back_before_its_session_expires(broker_cluster: StartCluster) -> None:
    cluster = broker_cluster(config={"zookeeper.session.timeout.ms": "30000"})
    with RawClient(cluster.bootstrap) as client:
        client.create_topic("t")
        assert client.produce("t", 0, batch(b"before")).error_code == 0
    cluster[1].kill()
    began = time.monotonic()
    cluster[1].start()
    assert time.monotonic() - began < 25, "its predecessor's node was replaced, not waited for"
    with RawClient(cluster.bootstrap) as client:
        assert client.produce("t", 0, batch(b"after")).error_code == 0
        assert len(list(hop(client.read_all("t", 0)))) == 2


def test_two_brokers_with_one_id_do_not_live_together(broker_cluster: StartCluster) -> None:
    cluster = broker_cluster(config={"zookeeper.session.timeout.ms": "1000"})
    twin = BrokerProcess(1, cluster.directory / "twin", cluster.zookeeper.hosts, "test", cluster[1].config)
    twin.data_dir.parent.mkdir()
    twin.start(wait=False)
    deadline = time.monotonic() + 60
    while twin.is_running and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not twin.is_running and "held by another live session" in twin.output()
    same_directory = BrokerProcess(1, cluster.directory, cluster.zookeeper.hosts, "test", {})
    same_directory.log_file = cluster.directory / "second.log"
    same_directory.start(wait=False)
    while same_directory.is_running and time.monotonic() < deadline:
        time.sleep(0.05)
    assert "in use by another process" in same_directory.output()
    assert cluster[1].is_running


def test_a_clean_stop_answers_and_exits_0(broker_cluster: StartCluster) -> None:
    cluster = broker_cluster()
    with RawClient(cluster.bootstrap) as client:
        client.create_topic("t")
        client.produce("t", 0, batch(b"first"))
        client.send(b"".join(client.produce_frame("t", 0, batch(b"%d" % n)) for n in range(50)))
        codes = [client.read_produced().error_code]
        cluster[1].send_signal(signal.SIGTERM)
        try:
            while True:
                codes.append(client.read_produced().error_code)
        except EOFError:
            pass
    assert cluster[1].stop() == 0
    cluster[1].start()
    assert "cut" not in cluster[1].output()
    with RawClient(cluster.bootstrap) as client:
        assert len(list(hop(client.read_all("t", 0)))) >= 1 + len(codes)


def test_without_zookeeper_produce_and_fetch_continue(
    broker_cluster: StartCluster, private_zookeeper: ZooKeeperRoom
) -> None:
    config = {"zookeeper.session.timeout.ms": "1000"}
    cluster: BrokerCluster = broker_cluster(zookeeper=private_zookeeper, config=config)
    with RawClient(cluster.bootstrap) as client:
        client.create_topic("t")
        private_zookeeper.server.kill()
        for number in range(20):
            assert client.produce("t", 0, batch(b"%d" % number)).error_code == 0
            time.sleep(0.1)
        assert len(list(hop(client.read_all("t", 0)))) == 20
        with RawClient(cluster.bootstrap) as newcomer:
            assert newcomer.produce("t", 0, batch(b"new connection")).error_code == 0
        private_zookeeper.server.start()
        client.create_topic("u")
        assert client.produce("u", 0, batch(b"x")).error_code == 0
        assert client.produce("t", 0, batch(b"y")).error_code == 0


def test_a_full_disk_refuses_and_recovers(broker_cluster: StartCluster) -> None:
    cluster = broker_cluster()
    with RawClient(cluster.bootstrap) as client:
        client.create_topic("t")
        kept = 0
        # To the broker, a limit on file sizes looks like a full disk.
        resource.prlimit(cluster[1].pid, resource.RLIMIT_FSIZE, (50_000, resource.RLIM_INFINITY))
        codes = []
        for number in range(30):
            result = client.produce("t", 0, batch(b"%02d" % number + bytes(3_000)))
            codes.append(result.error_code)
            kept += result.error_code == 0
        assert set(codes) == {0, ErrorCode.KAFKA_STORAGE_ERROR} and codes[-1] != 0
        assert ErrorCode.KAFKA_STORAGE_ERROR.retriable
        assert len(list(hop(client.read_all("t", 0)))) == kept
        resource.prlimit(cluster[1].pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
        assert client.produce("t", 0, batch(b"room again")).error_code == 0
    cluster[1].kill()
    cluster[1].start()
    with RawClient(cluster.bootstrap) as client:
        assert len(list(hop(client.read_all("t", 0)))) == kept + 1


def test_retention_deletes_old_segments_of_a_running_broker(broker_cluster: StartCluster) -> None:
    cluster = broker_cluster(config={"log.retention.check.interval.ms": "100", "log.segment.bytes": "5000"})
    with RawClient(cluster.bootstrap) as client:
        client.create_topic("t", config={"retention.bytes": "10000"})
        for number in range(40):
            client.produce("t", 0, batch(b"%02d" % number + bytes(1_000)))
        deadline = time.monotonic() + 60
        while client.list_offset("t", 0, -2)[0] < 20_000:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert client.fetch("t", 0, 0).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
        # The start may move again between ListOffsets and the fetch.
        while client.fetch("t", 0, client.list_offset("t", 0, -2)[0]).error_code != 0:
            assert time.monotonic() < deadline


def test_no_log_is_deleted_when_zookeeper_lost_its_data(
    broker_cluster: StartCluster, private_zookeeper: ZooKeeperRoom
) -> None:
    config = {"zookeeper.session.timeout.ms": "1000"}
    cluster = broker_cluster(zookeeper=private_zookeeper, config=config)
    raw = batch(b"precious")
    with RawClient(cluster.bootstrap) as client:
        client.create_topic("t")
        assert client.produce("t", 0, raw).error_code == 0
    with private_zookeeper.session() as session:
        session.delete("/config", recursive=True)
        session.delete("/brokers/topics", recursive=True)
    deadline = time.monotonic() + 60
    while "ZooKeeper no longer lists any topic" not in cluster[1].output():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert (cluster[1].data_dir / "t-0" / f"{0:020d}.log").stat().st_size == len(raw)
    with RawClient(cluster.bootstrap) as client:
        assert client.produce("t", 0, raw).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        client.create_topic("t")
        assert client.produce("t", 0, raw).base_offset == len(raw) - 1
    (stray,) = cluster[1].data_dir.glob("t-0.*.stray")
    assert (stray / f"{0:020d}.log").stat().st_size == len(raw)


def test_no_log_is_deleted_when_an_empty_zookeeper_repeats_a_transaction_number(
    broker_cluster: StartCluster, private_zookeeper: ZooKeeperRoom
) -> None:
    """The first nodes of a new site have transactions 1, 2, 3, and so have those that are made after its disk
    was lost: the number alone does not tell one ZooKeeper from the other."""
    config = {"zookeeper.session.timeout.ms": "1000"}
    cluster = broker_cluster(zookeeper=private_zookeeper, config=config)
    raw = batch(b"precious")
    with RawClient(cluster.bootstrap) as client:
        client.create_topic("t")
        assert client.produce("t", 0, raw).error_code == 0
    path = f"{private_zookeeper.chroot}/brokers/topics"
    server = private_zookeeper.server
    with ZooKeeperSession(server.address) as session:
        created, last = session.exists(path), session.set("/", b"")
    assert created is not None
    server.kill()
    shutil.rmtree(server.directory / "data")
    server.start()
    with ZooKeeperSession(server.address) as session:
        session.ensure_path(path.removesuffix("/topics"))
        while session.set("/", b"").modified_zxid < created.created_zxid - 1:
            pass
        session.create(path, b"")
        found = session.exists(path)
        assert found is not None and found.created_zxid == created.created_zxid
        # Until then the broker's session is refused: it has seen a later transaction.
        while session.set("/", b"").modified_zxid < last.modified_zxid + 10:
            pass
        deadline = time.monotonic() + 60
        while not session.children_or_empty(path.replace("topics", "ids")):
            assert time.monotonic() < deadline
            time.sleep(0.05)
    with RawClient(cluster.bootstrap) as client:
        while client.produce("t", 0, raw).error_code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            assert time.monotonic() < deadline
            time.sleep(0.05)
    time.sleep(1)
    assert (cluster[1].data_dir / "t-0" / f"{0:020d}.log").stat().st_size >= len(raw)
