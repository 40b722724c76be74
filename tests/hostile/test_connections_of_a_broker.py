"""A real broker whose clients stop half way, vanish or pipeline, and what its status says of connections."""

from __future__ import annotations

import json
import socket
import struct
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from kio.schema.api_versions.v4.request import ApiVersionsRequest

from fix_broker import RawClient, StartCluster, batches_of
from fix_ports import free_port
from fix_transport import framed
from headrace.wire import fetch
from headrace.wire.primitives import NO_UUID
from headrace.wire.records import Record, encode_batch

MEBIBYTE = 1 << 20
API_VERSIONS = framed(struct.pack(">hhih", 18, 0, 7, -1))


def test_a_broker_lives_through_all_of_it(broker_cluster: StartCluster) -> None:
    """620 clients that stop half way, clients that vanish with waiting fetches, and a pipelining one."""
    cluster = broker_cluster(
        config={"max.connections.per.ip": "2000", "queued.max.request.bytes": str(64 * MEBIBYTE)}
    )
    with RawClient(cluster.bootstrap, timeout_s=300.0) as honest:
        honest.create_topic("t")
        host, port = cluster[1].host, cluster[1].port
        batch = encode_batch([Record(0, 1_000, None, bytes(500_000))])
        half = honest.produce_frame("t", 0, batch)[:250_000]
        stuck = [socket.create_connection((host, port)) for _ in range(620)]
        for client in stuck:
            client.setblocking(False)
            client.send(half)
        wait = fetch.encode_request(
            fetch.FetchRequest(
                300_000,
                1 << 20,
                1 << 30,
                [fetch.FetchTopic("t", NO_UUID, [fetch.FetchPartition(0, 0, 1000)])],
            ),
            version=12,
            correlation_id=1,
            client_id="w",
        )
        for _ in range(50):
            with socket.create_connection((host, port)) as client:
                client.sendall(wait * 300)
        greedy = socket.create_connection((host, port))
        greedy.sendall(API_VERSIONS * 2_000)
        for _ in range(5):
            result = honest.produce("t", 0, batch)
            assert result.error_code == 0
        assert bytes(batches_of(honest.fetch("t", 0, 0)))[57 : len(batch)] == batch[57:]
        assert honest.call(ApiVersionsRequest(client_software_name="x", client_software_version="1")).api_keys
        for client in (*stuck, greedy):
            client.close()
        deadline_s = time.monotonic() + 60
        while len(list(Path(f"/proc/{cluster[1].pid}/fd").iterdir())) > 100:
            assert time.monotonic() < deadline_s, "connections of clients that are gone stay open"
            time.sleep(0.1)
    assert cluster[1].is_running
    assert "Traceback" not in cluster[1].output()


def test_the_status_page_counts_connections(broker_cluster: StartCluster) -> None:
    port = free_port("127.0.0.1")
    cluster = broker_cluster(
        config={"max.connections": "1"}, arguments=lambda _: ["--status", f"127.0.0.1:{port}"]
    )

    def read(path: str) -> bytes:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/{path}", timeout=30) as response:
            content: bytes = response.read()
            return content

    def status() -> dict[str, Any]:
        found: dict[str, Any] = json.loads(read("status"))["connections"]
        return found

    deadline_s = time.monotonic() + 60
    while status()["open"]:
        assert time.monotonic() < deadline_s
        time.sleep(0.05)
    with RawClient(cluster.bootstrap) as client:
        client.create_topic("t")
        with RawClient(cluster.bootstrap) as refused, pytest.raises((EOFError, ConnectionError)):
            refused.create_topic("u")
        client.send((100_000).to_bytes(4, "big") + bytes(5))
        while not (found := status())["partial_requests"]:
            assert time.monotonic() < deadline_s
            time.sleep(0.05)
    assert found["open"] == 1 and found["refused"]["max.connections"] >= 1  # the fixture's last one, too
    assert 0 < found["receiving_bytes"] < 100_000 < found["receiving_max_bytes"]
    assert b'\nheadrace_broker_connections_refused_total{setting="max.connections"} ' in read("metrics")
