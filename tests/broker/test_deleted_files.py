"""A deleted topic frees its disk: no descriptor and no memory map of a deleted file stays, whoever reads."""

from __future__ import annotations

import os
import time
from pathlib import Path

from fix_broker import BrokerProcess, RawClient, StartCluster
from headrace.client.admin import Admin
from headrace.wire import fetch
from headrace.wire.primitives import NO_UUID
from headrace.wire.records import Record, encode_batch

WAIT_MAX_S = 60.0
BATCH_BYTES = 900_000
BATCHES = 20  # together more than sockets buffer
SEGMENT_BYTES = "4000000"  # so that there are sealed segments, with indexes


def deleted_but_open(broker: BrokerProcess) -> dict[str, int]:
    """The deleted files of the data directory that the process has open or mapped, with their sizes."""
    found = {}
    process = Path(f"/proc/{broker.pid}")
    for link in (process / "fd").iterdir():
        try:
            target = str(link.readlink())
            if target.startswith(str(broker.data_dir)) and ".deleted" in target:
                found[target] = link.stat().st_blocks * 512
        except OSError:
            continue
    for line in (process / "maps").read_text().splitlines():
        if str(broker.data_dir) in line:
            found[line] = 1
    return found


def eventually_frees(broker: BrokerProcess) -> None:
    deadline = time.monotonic() + WAIT_MAX_S
    while any(deleted_but_open(broker).values()) or list(broker.data_dir.glob("*.deleted")):
        assert time.monotonic() < deadline, (deleted_but_open(broker), broker.output()[-3000:])
        time.sleep(0.1)


def fill(broker: BrokerProcess, topic: str) -> None:
    with RawClient(broker.address) as client:
        client.create_topic(topic, config={"segment.bytes": SEGMENT_BYTES})
        for number in range(BATCHES):
            batch = encode_batch([Record(0, 1_000 + number, None, os.urandom(BATCH_BYTES))])
            assert client.produce(topic, 0, batch).error_code == 0


def test_nothing_keeps_the_files_of_a_deleted_topic(broker_cluster: StartCluster) -> None:
    cluster = broker_cluster()
    broker = cluster[1]
    fill(broker, "gone")
    with RawClient(broker.address) as reader:
        assert len(reader.read_all("gone", 0)) > BATCHES * BATCH_BYTES
        # The connection stays: its fast path knows the topic.
        with Admin(cluster.bootstrap) as admin:
            admin.delete_topic("gone")
        eventually_frees(broker)
        assert not deleted_but_open(broker), "no client holds a response of it"
        assert reader.fetch("gone", 0, 0).error_code != 0


def test_a_client_that_does_not_read_its_response_keeps_nothing(broker_cluster: StartCluster) -> None:
    cluster = broker_cluster()
    broker = cluster[1]
    fill(broker, "gone")
    with RawClient(broker.address) as waiting, RawClient(broker.address) as slow:
        wanted = [fetch.FetchTopic("gone", NO_UUID, [fetch.FetchPartition(0, 0, 1 << 30)])]
        request = fetch.FetchRequest(0, 1, 1 << 30, wanted)
        slow.send(fetch.encode_request(request, version=12, correlation_id=1, client_id="slow"))
        assert slow.socket.recv(1), "its response has begun"
        end = waiting.list_offset("gone", 0, -1)[0]
        tail = [fetch.FetchTopic("gone", NO_UUID, [fetch.FetchPartition(0, end, 1 << 20)])]
        patient = fetch.FetchRequest(60_000, 1, 1 << 20, tail)
        waiting.send(fetch.encode_request(patient, version=12, correlation_id=1, client_id="waiting"))
        with Admin(cluster.bootstrap) as admin:
            admin.delete_topic("gone")
        eventually_frees(broker)
        # Others are served as before.
        fill(broker, "other")
        assert len(waiting.receive())
