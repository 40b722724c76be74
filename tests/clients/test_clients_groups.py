"""Real clients' consumer groups, by Kafka's own group protocol: two share the partitions, one leaves inside a
batch, the other continues where it had committed: every record once, in order within its partition.

Every member commits right after each poll, so a record that is delivered twice is a defect.
"""

import contextlib
import subprocess
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

import confluent_kafka
import kafka
import pytest

from fix_clients import RealClients, got_of, parse_java_row, require_kcat
from fix_datacenter import Datacenter
from fix_java import JavaPeer
from fix_samples import Got, check_rows, make_samples

pytestmark = pytest.mark.real_client

PARTITIONS = 4
PER_PARTITION = 5_000
BITE = 700
"""Records per poll: fewer than a batch holds, so that commits fall inside batches."""
PHASE_WAIT_MAX_S = 60.0
POLL_S = 0.1
KAFKA_PYTHON_POLL_S = 2.0

SAMPLES = make_samples(PARTITIONS * PER_PARTITION)

Row = tuple[int, Got]


class Member(Protocol):
    """One consumer of a group. `poll` commits the records, then returns them."""

    def poll(self) -> list[Row]: ...

    def assigned(self) -> set[int]: ...

    def leave(self) -> None: ...


class ConfluentMember:
    def __init__(self, bootstrap: str, group: str, topic: str) -> None:
        self._consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": group,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "session.timeout.ms": 10_000,
                "heartbeat.interval.ms": 300,
            }
        )
        self._consumer.subscribe([topic])

    def poll(self) -> list[Row]:
        rows = []
        for message in self._consumer.consume(BITE, POLL_S):
            assert message.error() is None, message.error()
            partition = message.partition()
            assert partition is not None
            rows.append((partition, got_of(message)))
        if rows:
            self._consumer.commit(asynchronous=False)
        return rows

    def assigned(self) -> set[int]:
        return {each.partition for each in self._consumer.assignment()}

    def leave(self) -> None:
        self._consumer.close()


class KafkaPythonMember:
    def __init__(self, bootstrap: str, group: str, topic: str) -> None:
        self._consumer = kafka.KafkaConsumer(
            topic,
            bootstrap_servers=bootstrap,
            group_id=group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            session_timeout_ms=10_000,
            heartbeat_interval_ms=300,
        )

    def poll(self) -> list[Row]:
        # If a poll ends just before the group responds, the next one joins again: on a slow machine short
        # polls would do so forever.
        answer = self._consumer.poll(timeout_ms=int(KAFKA_PYTHON_POLL_S * 1000), max_records=BITE)
        rows = [
            (where.partition, Got(record.offset, record.timestamp, record.key, record.value))
            for where, records in answer.items()
            for record in records
        ]
        if rows:
            self._consumer.commit()
        return rows

    def assigned(self) -> set[int]:
        return {each.partition for each in self._consumer.assignment()}

    def leave(self) -> None:
        self._consumer.close(autocommit=False)


class JavaMember:
    def __init__(self, peer: JavaPeer, scratch: Path, bootstrap: str, group: str, topic: str) -> None:
        self._peer = peer
        self._name = uuid.uuid4().hex
        self._lines = scratch / f"{self._name}.out"
        self._assigned: set[int] = set()
        settings = {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": "false",
            "max.poll.records": BITE,
            "session.timeout.ms": 10_000,
            "heartbeat.interval.ms": 300,
        }
        peer("join", settings, member=self._name, topic=topic)

    def poll(self) -> list[Row]:
        answer = self._peer("poll", member=self._name, wait_ms=int(POLL_S * 1000), records=self._lines)
        self._assigned = {int(each) for each in answer["assigned"].split(",") if each}
        rows = []
        for line in self._lines.read_text().splitlines():
            partition, rest = line.split(" ", 1)
            rows.append((int(partition), parse_java_row(rest)))
        if rows:
            self._peer("commit", member=self._name)
        return rows

    def assigned(self) -> set[int]:
        return self._assigned

    def leave(self) -> None:
        self._peer("leave", member=self._name)


Join = Callable[[str, str], Member]
"""Makes a member of (kind of client, group)."""


@pytest.fixture(scope="module")
def shared_topic(datacenter: Datacenter, real_clients: RealClients) -> str:
    topic = "groups-shared"
    datacenter.create_topic(topic, PARTITIONS)
    for partition in range(PARTITIONS):
        piece = SAMPLES[partition * PER_PARTITION : (partition + 1) * PER_PARTITION]
        real_clients["confluent-kafka"].produce(
            datacenter.bootstrap, topic, piece, codec="lz4", partition=partition
        )
    return topic


@pytest.fixture
def join(
    datacenter: Datacenter, shared_topic: str, request: pytest.FixtureRequest, tmp_path: Path
) -> Iterator[Join]:
    members: list[Member] = []

    def make(kind: str, group: str) -> Member:
        member: Member
        match kind:
            case "confluent-kafka":
                member = ConfluentMember(datacenter.bootstrap, group, shared_topic)
            case "kafka-python":
                member = KafkaPythonMember(datacenter.bootstrap, group, shared_topic)
            case _:
                peer = request.getfixturevalue("java_peer")
                member = JavaMember(peer, tmp_path, datacenter.bootstrap, group, shared_topic)
        members.append(member)
        return member

    yield make
    for member in members:
        # Members of a test that failed half way; others have left already and raise.
        with contextlib.suppress(Exception):
            member.leave()


class Tally:
    """The records that a group's members got, in the order of each partition."""

    def __init__(self) -> None:
        self._rows: dict[int, list[Got]] = defaultdict(list)

    @property
    def count(self) -> int:
        return sum(map(len, self._rows.values()))

    def run(self, members: list[Member], until: Callable[[], bool], what: str) -> None:
        """Polls the members one after the other until the condition holds."""
        deadline = time.monotonic() + PHASE_WAIT_MAX_S
        while not until():
            assert time.monotonic() < deadline, (
                f"{what}: not within {PHASE_WAIT_MAX_S:g} s ({self.count} records)"
            )
            for member in members:
                for partition, row in member.poll():
                    self._rows[partition].append(row)

    def check_rows(self) -> None:
        for partition in range(PARTITIONS):
            check_rows(
                self._rows[partition], SAMPLES[partition * PER_PARTITION : (partition + 1) * PER_PARTITION]
            )


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("confluent-kafka", "confluent-kafka"),
        ("kafka-python", "kafka-python"),
        ("java", "java"),
        ("java", "confluent-kafka"),
        ("confluent-kafka", "kafka-python"),
    ],
)
def test_two_members_share_and_one_leaves(first: str, second: str, join: Join) -> None:
    group = f"group-{uuid.uuid4().hex[:8]}"
    tally = Tally()
    stays = join(first, group)
    tally.run([stays], lambda: len(stays.assigned()) == PARTITIONS, "the first gets every partition")
    goes = join(second, group)
    tally.run(
        [stays, goes],
        lambda: len(stays.assigned()) == len(goes.assigned()) == PARTITIONS // 2,
        "two share evenly",
    )
    assert not stays.assigned() & goes.assigned()
    before = tally.count
    tally.run([stays, goes], lambda: tally.count >= before + 2 * BITE, "both read")
    goes.leave()
    tally.run([stays], lambda: tally.count >= len(SAMPLES), "the one that stays reads the rest")
    assert stays.assigned() == set(range(PARTITIONS))
    stays.leave()
    tally.check_rows()


def test_a_member_that_dies_is_replaced(join: Join, datacenter: Datacenter, shared_topic: str) -> None:
    # kcat is a process of its own: after SIGKILL its session must expire.
    require_kcat()
    group = f"group-{uuid.uuid4().hex[:8]}"
    command = ["kcat", "-b", datacenter.bootstrap, "-G", group, "-q", "-u"]
    for setting in (
        "auto.offset.reset=earliest",
        "enable.auto.commit=false",
        "session.timeout.ms=2000",
        "heartbeat.interval.ms=300",
    ):
        command += ["-X", setting]
    tally = Tally()
    with subprocess.Popen(
        [*command, shared_topic], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as dies:
        try:
            assert dies.stdout is not None
            assert dies.stdout.readline(), "kcat read nothing"
            stays = join("confluent-kafka", group)
        finally:
            dies.kill()
    tally.run([stays], lambda: tally.count >= len(SAMPLES), "the one that stays reads everything")
    stays.leave()
    tally.check_rows()


def test_a_restarted_kcat_continues_at_its_committed_offset(
    datacenter: Datacenter, shared_topic: str
) -> None:
    require_kcat()
    group = f"group-{uuid.uuid4().hex[:8]}"
    seen: list[bytes] = []
    for count in (7_000, len(SAMPLES) - 7_000):
        command = ["kcat", "-b", datacenter.bootstrap, "-G", group, "-X", "auto.offset.reset=earliest"]
        command += ["-c", str(count), "-q", "-f", "%s\n", shared_topic]
        done = subprocess.run(command, capture_output=True, timeout=PHASE_WAIT_MAX_S, check=True)
        seen += done.stdout.splitlines()
    assert sorted(seen) == sorted(sample.value or b"" for sample in SAMPLES)
