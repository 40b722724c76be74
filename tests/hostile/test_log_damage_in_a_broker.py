"""A broker whose files rot: one damaged log is offline by name and the others serve; one bad batch refuses
only the fetch of that batch; a fetch into a cold segment delays nobody.
"""

from __future__ import annotations

import json
import time
from pathlib import Path

from kio.schema.metadata.v12.request import MetadataRequest, MetadataRequestTopic
from kio.schema.types import TopicName
from kio.static.primitive import i32
from typer.testing import CliRunner

from fix_broker import BrokerCluster, RawClient, StartCluster
from headrace.broker.cold_reads import ColdReads
from headrace.cli.main import app
from headrace.log import checkpoint, flushed
from headrace.log.config import LogConfig
from headrace.log.errors import LogDamagedError, LogError
from headrace.log.partition import PartitionLog
from headrace.log.segment import COLD_SCAN_MAX_BYTES, ColdSegmentError
from headrace.wire.batch import hop, read_header, readdress
from headrace.wire.errors import ErrorCode
from headrace.wire.records import Record, encode_batch

WAIT_MAX_S = 60.0


def batch(value: bytes = b"v") -> bytes:
    return encode_batch([Record(0, 1_000, None, value)])


def segments(cluster: BrokerCluster, partition: str) -> list[Path]:
    return sorted((cluster[1].data_dir / partition).glob("*.log"))


def partition_of(client: RawClient, topic: str) -> tuple[int, int, tuple[int, ...]]:
    """The error, the leader and the offline replicas that Metadata gives."""
    request = MetadataRequest(
        topics=(MetadataRequestTopic(topic_id=None, name=TopicName(topic)),),
        allow_auto_topic_creation=False,
        include_topic_authorized_operations=False,
    )
    part = client.call(request).topics[0].partitions[0]
    return int(part.error_code), part.leader_id, part.offline_replicas


def addresses(records: object) -> list[int]:
    """Where the batches of a response begin."""
    assert isinstance(records, memoryview)
    return [header.address for _, header in hop(records)]


def flip(path: Path, at: int) -> None:
    raw = bytearray(path.read_bytes())
    raw[at] ^= 1
    path.write_bytes(raw)


def test_a_damaged_log_is_offline_and_the_others_serve(broker_cluster: StartCluster) -> None:
    cluster = broker_cluster(config={"log.scrub.bytes.per.second": "0"})
    broker = cluster[1]
    with RawClient(broker.address) as client:
        for topic in ("rot", "good"):
            client.create_topic(topic)
            for number in range(10):
                assert client.produce(topic, 0, batch(b"%d" % number)).error_code == 0
    broker.stop()
    (victim,) = segments(cluster, "rot-0")
    whole = victim.read_bytes()
    victim.write_bytes(whole[:-1])
    broker.start()
    with RawClient(broker.address) as client:
        assert client.produce("good", 0, batch()).error_code == 0
        assert client.fetch("good", 0, 0).error_code == 0
        refused = client.produce("rot", 0, batch())
        assert refused.error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert client.fetch("rot", 0, 0).error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert partition_of(client, "rot") == (ErrorCode.LEADER_NOT_AVAILABLE, -1, (i32(1),))
        assert partition_of(client, "good") == (ErrorCode.NONE, 1, ())
    line = next(line for line in broker.output().splitlines() if "rot-0 cannot be opened" in line)
    assert str(victim) in line and "headrace log check" in line and "headrace log set-aside" in line
    assert victim.read_bytes() == whole[:-1]
    assert CliRunner().invoke(app, ["log", "check", str(broker.data_dir)]).exit_code == 1
    broker.stop()
    assert CliRunner().invoke(app, ["log", "set-aside", str(broker.data_dir)]).exit_code == 0
    broker.start()
    with RawClient(broker.address) as client:
        assert client.list_offset("rot", 0, -1)[0] == len(whole), "no address is given away twice"
        appended = client.produce("rot", 0, batch(b"new"))
        assert (appended.error_code, appended.base_offset >= len(whole)) == (0, True)
        assert client.fetch("rot", 0, 0).error_code == 0
        assert client.fetch("rot", 0, len(whole) - 1).error_code == 0


def test_what_rots_since_the_last_checkpoint_of_a_killed_broker_is_not_cut_off(
    broker_cluster: StartCluster,
) -> None:
    """Nothing but the note beside the log says that it was flushed."""
    cluster = broker_cluster(config={"log.flush.offset.checkpoint.interval.ms": "600000"})
    broker = cluster[1]
    time.sleep(1)  # what is there in the first half of a second has a checkpoint then
    with RawClient(broker.address) as client:
        client.create_topic("rot")
        for number in range(10):
            assert client.produce("rot", 0, batch(b"%d" % number), acks=-1).error_code == 0
    (victim,) = segments(cluster, "rot-0")
    whole = victim.read_bytes()
    saved = checkpoint.load(victim.parent)
    assert saved is not None and saved.recovery_point == 0
    deadline_s = time.monotonic() + WAIT_MAX_S
    while flushed.load(victim.parent, saved.lineage) < len(whole):
        assert time.monotonic() < deadline_s, "it is noted within a second"
        time.sleep(0.05)
    broker.kill()
    flip(victim, len(whole) // 2)
    rotten = victim.read_bytes()
    broker.start()
    with RawClient(broker.address) as client:
        assert client.produce("rot", 0, batch()).error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert victim.read_bytes() == rotten and not list(victim.parent.glob("*.cut"))
        victim.write_bytes(whole)  # from a replica, or a backup
        while (appended := client.produce("rot", 0, batch())).error_code:
            assert time.monotonic() < deadline_s, "it is opened again within seconds"
            time.sleep(0.1)
        assert appended.base_offset >= len(whole)


def test_a_bad_batch_refuses_its_readers_only(broker_cluster: StartCluster) -> None:
    """And the scrub says where it is."""
    cluster = broker_cluster()
    broker = cluster[1]
    with RawClient(broker.address) as client:
        client.create_topic("rot")
        size_bytes = len(batch())
        for _ in range(10):
            assert client.produce("rot", 0, batch()).error_code == 0
    broker.stop()
    (victim,) = segments(cluster, "rot-0")
    flip(victim, 5 * size_bytes + 10)  # the length of a batch below the recovery point
    (broker.data_dir / "scrub.json").unlink(missing_ok=True)
    broker.start()
    with RawClient(broker.address) as client:
        # The header of the sixth batch must be read to find the one that holds an offset behind it.
        inside = 6 * size_bytes + 1
        assert client.fetch("rot", 0, inside).error_code == ErrorCode.CORRUPT_MESSAGE
        # Whoever names a batch's own address, as copies do, gets it.
        found = client.fetch("rot", 0, 6 * size_bytes)
        assert (found.error_code, addresses(found.records)) == (0, [n * size_bytes for n in range(6, 10)])
        # What lies before is served, without the damage if that is more than was asked for.
        found = client.fetch("rot", 0, 0, max_bytes=9 * size_bytes)
        assert (found.error_code, addresses(found.records)) == (0, [n * size_bytes for n in range(5)])
        for _ in range(2):
            assert client.produce("rot", 0, batch(b"goes on")).error_code == 0
        assert client.fetch("rot", 0, 10 * size_bytes).error_code == 0
        # What was appended since the start is found by any of its offsets.
        assert client.fetch("rot", 0, 10 * size_bytes + 1).error_code == 0
        assert client.fetch("rot", 0, 0).error_code == 0
        deadline_s = time.monotonic() + WAIT_MAX_S
        state = broker.data_dir / "scrub.json"
        while not (state.exists() and (found := json.loads(state.read_text())["findings"])):
            assert time.monotonic() < deadline_s, broker.output()[-2000:]
            time.sleep(0.05)
        assert (found[0]["partition"], found[0]["start"]) == ("rot-0", 5 * size_bytes)
    assert "are damaged" in broker.output()


# --- cold segments ---

CONFIG = LogConfig(segment_bytes=4 * COLD_SCAN_MAX_BYTES)


class Threads:
    """Workers that run a job when told."""

    def __init__(self) -> None:
        self.jobs: list[tuple[object, object]] = []

    def submit(self, job: object, done: object) -> None:
        self.jobs.append((job, done))

    def run(self) -> None:
        for job, done in [self.jobs.pop(0) for _ in list(self.jobs)]:
            assert callable(job) and callable(done)
            done(job(), None)


def cold_log(folder: Path) -> PartitionLog:
    log = PartitionLog(folder, CONFIG)
    while len(list(folder.glob("*.log"))) < 3:
        log.append(batch(bytes(70)) * 100)
    log.close()
    return PartitionLog(folder, CONFIG)


def learn(log: PartitionLog, cold: ColdSegmentError) -> LogError | None:
    threads = Threads()
    outcomes: list[LogError | None] = []
    reads = ColdReads(threads)  # type: ignore[arg-type]
    for _ in range(3):
        reads.learn(log, cold.segment).then(outcomes.append)
    assert len(threads.jobs) == 1, "fetches of one segment share the job"
    threads.run()
    assert len(outcomes) == 3
    return outcomes[0]


def first_fetch(log: PartitionLog, offset: int) -> ColdSegmentError:
    try:
        log.slices(offset, 1 << 20)
    except ColdSegmentError as cold:
        return cold
    raise AssertionError("the lookup scanned the segment on the caller's thread")


def test_a_cold_segment_is_learned_from_its_index(tmp_path: Path) -> None:
    log = cold_log(tmp_path / "t-0")
    size_bytes = len(batch(bytes(70)))
    offset = 3 * COLD_SCAN_MAX_BYTES
    assert learn(log, first_fetch(log, offset)) is None
    assert log.position(offset) == offset // size_bytes * size_bytes
    assert log.slices(offset, 1 << 20)
    log.close()


def test_an_index_that_is_missing_or_damaged_is_made_again(tmp_path: Path) -> None:
    folder = tmp_path / "t-0"
    cold_log(folder).close()
    indexes = sorted(folder.glob("*.index"))
    whole = indexes[0].read_bytes()
    for damage in (None, b"", b"\0" * len(whole), whole[:-1], whole[:40] + b"!" + whole[41:]):
        indexes[0].unlink()
        if damage is not None:
            indexes[0].write_bytes(damage)
        log = PartitionLog(folder, CONFIG)
        assert learn(log, first_fetch(log, 3 * COLD_SCAN_MAX_BYTES)) is None
        assert indexes[0].read_bytes() == whole
        assert log.slices(3 * COLD_SCAN_MAX_BYTES, 1 << 20)
        log.close()


def test_a_damaged_cold_segment_is_an_error_for_its_readers(tmp_path: Path) -> None:
    folder = tmp_path / "t-0"
    cold_log(folder).close()
    first = sorted(folder.glob("*.log"))[0]
    sorted(folder.glob("*.index"))[0].unlink()
    flip(first, 10 * len(batch(bytes(70))) + 8)
    log = PartitionLog(folder, CONFIG)
    problem = learn(log, first_fetch(log, 3 * COLD_SCAN_MAX_BYTES))
    assert isinstance(problem, LogDamagedError) and str(first) in str(problem)
    assert log.slices(0, 1000)
    size_bytes = len(batch(bytes(70)))
    behind = 2 * COLD_SCAN_MAX_BYTES // size_bytes * size_bytes
    found = log.slices(behind, 1 << 20)
    assert found[0].position_bytes == behind, "a whole batch begins at that address"
    assert sum(piece.length_bytes for piece in found) <= COLD_SCAN_MAX_BYTES, "not scanned for long"
    assert sum(piece.length_bytes for piece in found) % size_bytes == 0
    try:
        log.slices(behind + 1, 1 << 20)
    except ColdSegmentError:
        pass
    else:
        raise AssertionError("nothing says which batch that offset lies in")
    end = log.end_address
    log.append(batch() * 2)
    log.flush()
    assert log.position(end + len(batch()) + 1) == end + len(batch())
    log.close()


def test_a_damaged_active_segment_is_read_up_to_the_damage_and_behind_it(tmp_path: Path) -> None:
    folder = tmp_path / "t-0"
    log = PartitionLog(folder, CONFIG)
    log.append(batch() * 20)
    log.close()
    (path,) = folder.glob("*.log")
    size_bytes = len(batch())
    whole = path.read_bytes()
    path.write_bytes(whole[: 4 * size_bytes] + bytes(size_bytes) + whole[5 * size_bytes :])
    log = PartitionLog(folder, CONFIG)
    for number in (19, 5, 12):
        assert log.position(number * size_bytes) == number * size_bytes
        (piece,) = log.slices(number * size_bytes, 3 * size_bytes)
        assert piece.position_bytes == number * size_bytes
        assert piece.length_bytes == min(3, 20 - number) * size_bytes
    (piece,) = log.slices(0, 10 * size_bytes)
    assert (piece.position_bytes, piece.length_bytes) == (0, 4 * size_bytes)
    for inside in (4 * size_bytes + 1, 5 * size_bytes + 1, 20 * size_bytes - 1):
        try:
            log.position(inside)
        except LogDamagedError as error:
            assert f"address {4 * size_bytes}" in str(error)
        else:
            raise AssertionError(f"nothing says which batch offset {inside} lies in")
    end = log.append(batch() * 3).end_address
    assert [log.position(end - n) for n in (1, size_bytes)] == [end - size_bytes] * 2
    log.close()


def test_a_forged_batch_in_a_record_is_not_taken_for_one(tmp_path: Path) -> None:
    """Its producer knows at which address it will lie, and its checksum is right."""
    log = PartitionLog(tmp_path / "t-0", CONFIG)
    base = log.append(batch()).end_address
    inner = bytearray(batch(b"forged"))
    at = batch(bytes(inner)).index(inner)
    readdress(inner, 0, base + at, 0)
    log.append(batch(bytes(inner)))
    log.flush()
    assert read_header(inner).is_stored_at(base + at)
    assert log.position(base + at) == base
    log.close()
