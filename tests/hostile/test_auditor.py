"""A real auditor over logs in which everything rots: it counts on, names what is corrupt, and reports it."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from fix_audit import AuditorProcess, StartAuditor, wait_for
from fix_audit_world import HOUR_A
from fix_broker import BrokerCluster, StartCluster
from fix_registry import StartRegistry
from headrace.audit.topic.records import AUDIT_TOPIC
from headrace.client import Admin, Producer
from headrace.registry.framing import prefix
from headrace.wire.batch import HEADER_SIZE_BYTES, BatchHeader, hop, readdress, seal

BATCHES = 12
VICTIM = 5


def flipped(data: bytearray, at: int, header: BatchHeader) -> None:
    data[at + header.size_bytes - 4] ^= 1


def zeroed(data: bytearray, at: int, header: BatchHeader) -> None:
    data[at : at + header.size_bytes] = bytes(header.size_bytes)


def of_absurd_length(data: bytearray, at: int, header: BatchHeader) -> None:
    struct.pack_into(">i", data, at + 8, 2**31 - 1)


def of_negative_count(data: bytearray, at: int, header: BatchHeader) -> None:
    struct.pack_into(">i", data, at + 57, -1)


def of_old_format(data: bytearray, at: int, header: BatchHeader) -> None:
    data[at + 16] = 1


def elsewhere(data: bytearray, at: int, header: BatchHeader) -> None:
    """No checksum covers the base offset."""
    struct.pack_into(">q", data, at, header.base_offset ^ 1 << 40)


def with_bad_records(data: bytearray, at: int, header: BatchHeader) -> None:
    _stored(data, at, header, bytes([3] * (header.size_bytes - HEADER_SIZE_BYTES)), HOUR_A)


def of_another_era(data: bytearray, at: int, header: BatchHeader) -> None:
    payload = bytes(data[at + HEADER_SIZE_BYTES : at + header.size_bytes])
    _stored(data, at, header, payload, 2**63 - 1)


def _stored(data: bytearray, at: int, header: BatchHeader, payload: bytes, time_ms: int) -> None:
    """Writes another batch of the same size and count there, with a right checksum."""
    count = header.record_count
    batch = bytearray(seal(payload, record_count=count, base_timestamp_ms=time_ms, max_timestamp_ms=time_ms))
    readdress(batch, 0, header.address, header.partition_leader_epoch)
    data[at : at + header.size_bytes] = batch


DAMAGES: dict[str, Callable[[bytearray, int, BatchHeader], None]] = {
    each.__name__.replace("_", "-"): each
    for each in (
        flipped, zeroed, of_absurd_length, of_negative_count, of_old_format, elsewhere, with_bad_records,
        of_another_era,
    )
}  # fmt: skip


def publish(cluster: BrokerCluster, topic: str, batches: int) -> None:
    with Producer(cluster.bootstrap) as producer:
        for number in range(batches):
            for index in range(3):
                producer.send(topic, b"event %d" % number * 9, partition=0, timestamp_ms=HOUR_A + index)
            producer.flush(60)


def damage(cluster: BrokerCluster) -> dict[str, tuple[int, int]]:
    """Damages one batch of each topic on disk; returns topic → its addresses."""
    places = {}
    for topic, change in DAMAGES.items():
        (segment,) = cluster[1].data_dir.rglob(f"{topic}-0/*.log")
        data = bytearray(segment.read_bytes())
        at, header = list(hop(data))[VICTIM]
        places[topic] = (header.address, header.next_offset)
        change(data, at, header)
        segment.write_bytes(data)
    return places


def segments(cluster: BrokerCluster, topics: Iterable[str]) -> dict[Path, bytes]:
    """The one segment of each topic, as it is."""
    found = (next(cluster[1].data_dir.rglob(f"{topic}-0/*.log")) for topic in topics)
    return {path: path.read_bytes() for path in found}


def ends(cluster: BrokerCluster, topics: list[str]) -> dict[str, int]:
    with Admin(cluster.bootstrap) as admin:
        return {topic: admin.list_offsets(topic)[0].offset for topic in topics}


def counted(auditor: AuditorProcess) -> dict[str, int]:
    return {topic: found["counted_to"] for (topic, _), found in auditor.partitions().items()}


def audit_report(store: str, *extra: str) -> tuple[int, str]:
    command = [sys.executable, "-m", "headrace.cli", "audit", "report", "--store", store, *extra]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "COLUMNS": "300"},
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def findings(data: Any, topic: str, status: str) -> list[Any]:
    return [
        finding
        for verdict in data["verdicts"]
        for finding in verdict["findings"]
        if (verdict["topic"], finding["status"]) == (topic, status)
    ]


def test_the_auditor_counts_past_whatever_is_stored(
    broker_cluster: StartCluster, start_registry: StartRegistry, start_auditor: StartAuditor, tmp_path: Path
) -> None:
    east = broker_cluster(datacenter="east")
    registry = start_registry(hosts=east.zookeeper.hosts)
    topics = [*DAMAGES, "sound"]
    with Admin(east.bootstrap) as admin:
        for topic in topics:
            admin.create_topic(topic, 1)
    for topic in topics:
        publish(east, topic, BATCHES)
    east[1].stop()
    sound = segments(east, DAMAGES)
    places = damage(east)
    east[1].start()
    store = f"sqlite:///{tmp_path}/audit.db"
    auditor = start_auditor(east, registry.url, "--store", store)
    wait_for(lambda: counted(auditor).items() >= ends(east, topics).items(), auditor.output)

    # Anybody may write to `_audit`.
    with Producer(east.bootstrap) as stranger:
        for value in (b"", b"garbage", prefix(12345) + b"x" * 50, b"\x00" * 400):
            stranger.send(AUDIT_TOPIC, value, partition=0).result(60)
        stranger.send(AUDIT_TOPIC, None, partition=0).result(60)
    publish(east, "sound", BATCHES)
    wait_for(lambda: counted(auditor)["sound"] == ends(east, ["sound"])["sound"], auditor.output)
    wait_for(lambda: auditor.status()["store"]["unreadable"] == 5, auditor.status)
    wait_for(lambda: [each["records"] for each in auditor.status()["set_aside"]] == [5], auditor.status)
    wait_for(lambda: auditor.status()["store"]["set_aside"] == auditor.status()["set_aside"], auditor.status)
    assert auditor.is_running and "Traceback" not in auditor.output()

    def are_reported() -> bool:
        reported = json.loads(audit_report(store, "--json")[1])
        return all(findings(reported, topic, "corrupt") for topic in DAMAGES if topic != "of-another-era")

    wait_for(are_reported, auditor.output)
    code, text = audit_report(store, "--json")
    data = json.loads(text)
    assert code == 1 and [each["records"] for each in data["set_aside"]] == [5]
    for topic in DAMAGES.keys() - {"of-another-era"}:
        named = findings(data, topic, "corrupt")
        ((start, end),) = {(each["after_address"], each["before_address"]) for each in named}
        # Behind zeros nobody can say where the next batch begins: all that was there is set aside.
        assert start == places[topic][0] and (end == places[topic][1] or topic == "zeroed"), topic
    assert findings(data, "flipped", "corrupt")[0]["record_count"] == 3
    assert findings(data, "with-bad-records", "corrupt")[0]["record_count"] in (3, None)
    assert findings(data, "sound", "corrupt") == []
    hours = {verdict["hour"] for verdict in data["verdicts"] if verdict["topic"] == "of-another-era"}
    assert "time outside of year 1 to 9999" in hours
    code, text = audit_report(store)
    assert code == 1 and "corrupt: 3 events of flipped, east" in text and "set aside" in text

    # A restarted auditor resumes behind the damage.
    auditor.terminate()
    auditor.start()
    wait_for(lambda: counted(auditor).items() >= ends(east, topics).items(), auditor.output)
    assert auditor.status()["corrupt"] == 0

    # Somebody restores the bytes: what was set aside is counted without being asked for.
    east[1].stop()
    for segment, data_before in sound.items():
        segment.write_bytes(data_before)
    east[1].start()
    mended = DAMAGES.keys() - {"of-another-era", "with-bad-records"}  # these two had right checksums

    def still_corrupt() -> list[str]:
        reported = json.loads(audit_report(store, "--json")[1])
        return [topic for topic in mended if findings(reported, topic, "corrupt")]

    wait_for(lambda: not still_corrupt(), auditor.output)
