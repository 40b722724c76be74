"""Records what real clients send and what the broker answers, into frames.json. Not a test: run by hand.

    .venv/bin/pytest tests/golden/record_frames.py

Each client produces, reads by offset and by time, and commits in a group; the admin clients of librdkafka
and kafka-python create, change, describe and delete topics and groups. All of it goes through a relay that
keeps the first exchange of each (client, API, version). Entries that frames.json already holds are kept:
bytes that were once recorded are read for ever.
"""

from __future__ import annotations

import json
import socket
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import confluent_kafka
import confluent_kafka.admin
import kafka
import kafka.admin
import pytest

from fix_broker import BrokerProcess, RawClient
from fix_clients import RealClients
from fix_java import JavaPeer
from fix_ports import free_port
from fix_samples import CODECS, Read, make_samples
from fix_zookeeper import ZooKeeperRoom
from headrace.wire.apis import ApiKey

FRAMES: Final = Path(__file__).with_name("frames.json")
VERSIONS: Final = {
    "confluent-kafka": f"librdkafka {confluent_kafka.libversion()[0]}",
    "kcat": "librdkafka 2.0.2 (kcat 1.7.1)",
    "kafka-python": f"kafka-python {kafka.__version__}",
    "java": "Java 4.3.1",
}
NUMBERING: Final = (
    2  # of the batches in Fetch responses; without it, baseOffset = address (docs/decisions/0001)
)
FRAME_MAX_BYTES: Final = 4096
READ_MAX_BYTES: Final = 1 << 16


class RecordingRelay:
    """Listens in a broker's place, passes every byte on, and keeps frames that belong together."""

    def __init__(self) -> None:
        self.port = free_port()
        self.client = ""
        self.broker_port = 0
        self.exchanges: dict[tuple[str, int, int, str], dict[str, Any]] = {}
        self._listening = socket.create_server(("127.0.0.1", self.port))
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                accepted, _ = self._listening.accept()
            except OSError:
                return
            upstream = socket.create_connection(("127.0.0.1", self.broker_port))
            waiting: dict[int, tuple[int, int, bytes]] = {}
            for source, target, is_request in ((accepted, upstream, True), (upstream, accepted, False)):
                arguments = (source, target, waiting, is_request, self.client)
                threading.Thread(target=self._pass_on, args=arguments, daemon=True).start()

    def _pass_on(
        self,
        source: socket.socket,
        target: socket.socket,
        waiting: dict[int, tuple[int, int, bytes]],
        is_request: bool,
        client: str,
    ) -> None:
        buffer = b""
        while True:  # until either side ends
            try:
                data = source.recv(READ_MAX_BYTES)
            except OSError:
                data = b""
            if data:
                buffer += data
                while len(buffer) >= 4 and len(buffer) >= 4 + (size := int.from_bytes(buffer[:4], "big")):
                    self._note(buffer[4 : 4 + size], waiting, is_request, client)
                    buffer = buffer[4 + size :]
            try:
                if not data:
                    target.shutdown(socket.SHUT_WR)
                    source.close()
                    return
                target.sendall(data)
            except OSError:
                source.close()
                return

    def _note(
        self, frame: bytes, waiting: dict[int, tuple[int, int, bytes]], is_request: bool, client: str
    ) -> None:
        if is_request:
            api_key, version, correlation_id = struct.unpack_from(">hhi", frame)
            waiting[correlation_id] = (api_key, version, frame)
            return
        (correlation_id,) = struct.unpack_from(">i", frame)
        api_key, version, request = waiting.pop(correlation_id, (-1, -1, b""))
        if api_key < 0 or len(request) > FRAME_MAX_BYTES or len(frame) > FRAME_MAX_BYTES:
            return
        codec = codec_of(request) if api_key == ApiKey.PRODUCE else ""
        if api_key == ApiKey.FETCH and b"member" not in frame:
            return  # without records
        self.exchanges.setdefault(
            (client, api_key, version, codec),
            {
                "client": VERSIONS[client],
                "api": ApiKey(api_key).name,
                "version": version,
                **({"codec": codec} if codec else {}),
                **({"numbering": NUMBERING} if api_key == ApiKey.FETCH else {}),
                "request": request.hex(),
                "response": frame.hex(),
            },
        )


def codec_of(request: bytes) -> str:
    """The codec of the batch in a Produce request: the low bits of the attributes, after magic and CRC."""
    at = request.find(b"\x00\x00\x00\x00\x00\x00\x00\x00", 8)
    while at >= 0 and request[at + 16 : at + 17] != b"\x02":
        at = request.find(b"\x00\x00\x00\x00\x00\x00\x00\x00", at + 1)
    return CODECS[request[at + 22] & 7]


@pytest.fixture
def relay() -> Iterator[RecordingRelay]:
    relay = RecordingRelay()
    yield relay
    relay._listening.close()


def test_record(
    relay: RecordingRelay,
    zookeeper: ZooKeeperRoom,
    real_clients: RealClients,
    java_peer: JavaPeer,
    tmp_path: Path,
) -> None:
    broker = start_behind(relay, zookeeper, tmp_path)
    bootstrap = f"127.0.0.1:{relay.port}"
    samples = make_samples(3)
    for name in VERSIONS:
        relay.client = name
        for codec in CODECS:
            real_clients[name].produce(bootstrap, f"{name}-{codec}", samples, codec=codec)
        topic = f"{name}-none"
        assert len(real_clients[name].read(bootstrap, Read(topic, 3))) == 3
        if name != "kcat":
            assert real_clients[name].read(bootstrap, Read(topic, 1, timestamp_ms=samples[2].timestamp_ms))
        join_a_group(name, bootstrap, topic, java_peer, tmp_path)
    broker.kill()
    keep(relay)


def test_record_administration(relay: RecordingRelay, zookeeper: ZooKeeperRoom, tmp_path: Path) -> None:
    broker = start_behind(relay, zookeeper, tmp_path)
    bootstrap = f"127.0.0.1:{relay.port}"
    relay.client = "confluent-kafka"
    with RawClient(broker.address) as client:
        client.create_topic("old")
    clients = {"confluent-kafka": by_librdkafka, "kafka-python": by_kafka_python}
    for name in clients:
        member = confluent_kafka.Consumer({"bootstrap.servers": bootstrap, "group.id": f"{name}-group"})
        member.commit(offsets=[confluent_kafka.TopicPartition("old", 0, 1)], asynchronous=False)
        member.close()
    for name, administer in clients.items():
        relay.client = name
        administer(bootstrap, f"{name}-admin", f"{name}-group")
    broker.kill()
    keep(relay)


def by_librdkafka(bootstrap: str, topic: str, group: str) -> None:
    kinds: Any = confluent_kafka.admin  # it exports them without saying so
    admin = kinds.AdminClient({"bootstrap.servers": bootstrap})

    def done(futures: dict[Any, Any]) -> None:
        for future in futures.values():
            future.result(60)

    done(admin.create_topics([kinds.NewTopic(topic, 2, 1, config={"retention.ms": "3600000"})]))
    done(admin.create_partitions([kinds.NewPartitions(topic, 3)]))
    kind = kinds.ConfigResource.Type.TOPIC
    done(admin.describe_configs([kinds.ConfigResource(kind, topic)]))
    whole = kinds.ConfigResource(kind, topic, set_config={"retention.ms": "7200000"})
    done(admin.alter_configs([whole]))
    operation = kinds.AlterConfigOpType.SET
    entry = kinds.ConfigEntry("retention.ms", "1800000", incremental_operation=operation)
    one = kinds.ConfigResource(kind, topic, incremental_configs=[entry])
    done(admin.incremental_alter_configs([one]))
    admin.list_consumer_groups().result(60)
    done(admin.describe_consumer_groups([group]))
    admin.describe_cluster().result(60)
    done(admin.delete_consumer_groups([group]))
    done(admin.delete_topics([topic]))


def by_kafka_python(bootstrap: str, topic: str, group: str) -> None:
    admin = kafka.admin.KafkaAdminClient(bootstrap_servers=bootstrap)
    admin.create_topics({topic: {"num_partitions": 2, "replication_factor": 1}})
    admin.create_partitions({topic: 3})

    def changed(retention_ms: str) -> list[kafka.admin.ConfigResource]:
        return [kafka.admin.ConfigResource("topic", topic, {"retention.ms": retention_ms})]

    admin.describe_configs(changed(""))
    admin.alter_configs(changed("7200000"), incremental=False)
    admin.alter_configs(changed("1800000"), incremental=True)
    admin.list_groups()
    admin.describe_groups([group])
    admin.describe_cluster()
    admin.delete_group_offsets(group, [kafka.TopicPartition("old", 0)])
    admin.delete_groups([group])
    admin.delete_topics([topic])
    admin.close()


def start_behind(relay: RecordingRelay, zookeeper: ZooKeeperRoom, directory: Path) -> BrokerProcess:
    """A broker that clients reach through the relay alone."""
    broker = BrokerProcess(1, directory, zookeeper.hosts, "golden", {})
    broker.extra_arguments = ["--advertise", f"127.0.0.1:{relay.port}"]
    broker.start(wait=False)
    relay.broker_port = broker.port
    while "ready on" not in broker.output():
        time.sleep(0.05)
    return broker


def keep(relay: RecordingRelay) -> None:
    """Adds to frames.json what it does not hold yet."""
    known = json.loads(FRAMES.read_text()) if FRAMES.exists() else []
    keys = {key_of(each) for each in known}
    known += [each for each in relay.exchanges.values() if key_of(each) not in keys]
    FRAMES.write_text(json.dumps(known, indent=1) + "\n")


def key_of(exchange: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(exchange.get(name) for name in ("client", "api", "version", "codec", "numbering"))


def join_a_group(name: str, bootstrap: str, topic: str, java_peer: JavaPeer, scratch: Path) -> None:
    """A member that reads, commits and leaves."""
    group = f"{name}-group"
    if name == "confluent-kafka":
        member = confluent_kafka.Consumer(
            {"bootstrap.servers": bootstrap, "group.id": group, "auto.offset.reset": "earliest"}
        )
        member.subscribe([topic])
        assert member.poll(30) is not None
        member.commit(asynchronous=False)
        member.close()
    elif name == "kafka-python":
        reader = kafka.KafkaConsumer(
            topic, bootstrap_servers=bootstrap, group_id=group, auto_offset_reset="earliest"
        )
        assert reader.poll(timeout_ms=30_000)
        reader.commit()
        reader.close()
    elif name == "java":
        settings = {"bootstrap.servers": bootstrap, "group.id": group, "auto.offset.reset": "earliest"}
        java_peer("join", settings, member=group, topic=topic)
        rows = scratch / "rows"
        while not (rows.exists() and rows.read_text()):
            java_peer("poll", member=group, wait_ms=100, records=rows)
        java_peer("commit", member=group)
        java_peer("leave", member=group)
