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

import pytest

from fix_clients import RealClients, require_kcat
from fix_datacenter import Datacenter
from fix_group_members import BITE, Member, Place, make_member
from fix_samples import Got, check_rows, make_samples

pytestmark = pytest.mark.real_client

PARTITIONS = 4
PER_PARTITION = 5_000
PHASE_WAIT_MAX_S = 60.0

SAMPLES = make_samples(PARTITIONS * PER_PARTITION)

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
        place = Place(datacenter.bootstrap, group, shared_topic)
        members.append(make_member(kind, place, request, tmp_path))
        return members[-1]

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
