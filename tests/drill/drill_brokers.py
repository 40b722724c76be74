"""Physical plants in a real installation: log files of stopped brokers, and services that die.

Every plant gets a topic of its own. All are planted at once while the brokers are down; then everything
starts again, and the report is asked until it has named all, or until `NAMED_WAIT_MAX_S` has passed.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Final

from drill.drill_site import DrillSite, StoredBatch, batches_of, drill_site, publish
from drill.drill_truth import Outcome, Score
from fix_audit_world import HOUR_A, resealed
from headrace.audit.evidence import MIRROR_HOP, Finding, Status, Verdict
from headrace.audit.intervals import covers, union
from headrace.client import Admin
from headrace.client.faults import DropPlan
from headrace.process.clock import now_ms
from headrace.wire.batch import readdress

ROUNDS: Final = 10
LATER: Final = 4
LATER_SERVICE: Final = "later"
SPARE_TOPIC: Final = "drill-spare"
CLOCK_OFF_MS: Final = 59 * 60_000
PAGE_BYTES: Final = 4096
STORE_PLANTS: Final = ("the store deleted", "the store damaged")
"""What happens to the audit store once all is named: a rebuilt store must name all of it again."""
NAMED_WAIT_MAX_S: Final = 75.0
SETTLE_S: Final = 30.0
"""What is false must show within this time, too."""
PROVEN: Final = (Status.LOST, Status.CORRUPT, Status.DUPLICATED, Status.ALTERED)

_DYING: Final = """
import os, signal, sys, time
from headrace.events import EventPublisher
from headrace.events.schemas import read_schema
topic, bootstrap, registry, state = sys.argv[1:5]
publisher = EventPublisher(datacenter="east", service=f"dies-{topic}", bootstrap=bootstrap,
    registry_url=registry, schemas={topic: read_schema("page-view.avsc")}, state_dir=state,
    report_interval_s=60, producer_options={"linger_ms": 60_000})
def hand_over(first, last):
    for at in range(first, last):
        event = {"remote_host": "10.0.0.1", "method": "GET", "path": f"/{at}", "status": 200}
        publisher.publish(topic, event, time_ms=int(sys.argv[5]) + at, partition=0)
hand_over(0, 30)
publisher.flush(60)
hand_over(30, 40)
os.kill(os.getpid(), signal.SIGKILL)
"""


@dataclass
class SitePlant:
    """One plant: its topic, and the sequence numbers that must be named, with the statuses that are right.

    `place`: the addresses of the victims; a batch that cannot be read is named by them alone. `is_silenced`:
    nothing is proven, but the hour must not be complete. `grows`: another service publishes afterwards.
    Without victims and unless silenced, the hour must be complete.
    """

    kind: str
    topic: str
    statuses: tuple[Status, ...] = ()
    victims: set[int] = field(default_factory=set)
    place: tuple[int, int] | None = None
    is_silenced: bool = False
    grows: bool = False
    named_s: float | None = None

    def judge(self, verdicts: list[Verdict]) -> tuple[Outcome, int]:
        """Returns the outcome so far, and how many events are called lost, doubled or corrupt falsely."""
        mine = [verdict for verdict in verdicts if verdict.topic == self.topic]
        findings = [each for verdict in mine for each in verdict.findings]
        if self.grows:  # the copy has what the log lost, so it halts: it truly lacks what came later
            findings = [each for each in findings if (each.hop, each.service) != (MIRROR_HOP, LATER_SERVICE)]
        named = {number for f in findings if f.status in PROVEN for number in numbers_of(f)}
        right = {n for f in findings if f.status in self.statuses for n in numbers_of(f)}
        if self.place is not None and covers(union(map(self._place_of, findings)), *self.place):
            right |= self.victims
        false = len(named - self.victims)
        if not self.victims and not self.is_silenced:
            return (Outcome.NAMED if mine and not findings else Outcome.UNKNOWN), false
        if mine and not findings:
            return Outcome.MISSED, false
        if self.victims - right:
            return (Outcome.WRONG_PLACE if named - self.victims else Outcome.UNKNOWN), false
        return Outcome.NAMED, false

    def _place_of(self, finding: Finding) -> tuple[int, int]:
        """Returns the addresses that a finding says cannot be read, or hold other bytes; none if (0, 0)."""
        is_place = finding.status in (Status.CORRUPT, Status.ALTERED) and finding.status in self.statuses
        if not is_place or finding.before_address is None:
            return 0, 0
        return finding.after_address or 0, finding.before_address


def numbers_of(finding: Finding) -> set[int]:
    if finding.sequences is None:
        return set()
    return set(range(finding.sequences[0], finding.sequences[1] + 1))


def _sequences(batches: list[StoredBatch]) -> set[int]:
    return {
        batch.header.base_sequence + index for batch in batches for index in range(batch.header.record_count)
    }


Kind = Callable[[DrillSite, SitePlant, random.Random], None]
"""Plants one failure while the brokers are down; it writes the truth into the plant first."""


def _in_batch(change: Callable[[StoredBatch], bytes], *statuses: Status, datacenter: str = "east") -> Kind:
    """One batch in the middle of a log file becomes something else of the same size."""

    def plant(site: DrillSite, plant: SitePlant, rng: random.Random) -> None:
        file = site.log_file(plant.topic, datacenter)
        batches = batches_of(file)
        victim = batches[rng.randrange(1, len(batches) - 1)]
        plant.victims, plant.statuses = _sequences([victim]), statuses
        plant.place = (victim.header.address, victim.header.address + victim.header.size_bytes)
        data, at = bytearray(file.read_bytes()), victim.header.address
        data[at : at + victim.header.size_bytes] = change(victim)
        file.write_bytes(data)

    return plant


def _zeroed(batch: StoredBatch) -> bytes:
    return bytes(len(batch.data))


def _flipped(batch: StoredBatch) -> bytes:
    return batch.data[:-3] + bytes([batch.data[-3] ^ 4]) + batch.data[-2:]


def _resealed(batch: StoredBatch) -> bytes:
    return resealed(batch.data)


def cut_out(site: DrillSite, plant: SitePlant, rng: random.Random) -> None:
    """A batch is cut out of the middle of the file: those behind it lie at wrong addresses."""
    file = site.log_file(plant.topic)
    batches = batches_of(file)
    at = rng.randrange(1, len(batches) - 2)
    plant.victims, plant.statuses = _sequences(batches[at:]), (Status.CORRUPT, Status.LOST)
    first, data = batches[at].header, file.read_bytes()
    plant.place = (first.address, len(data) - first.size_bytes)
    file.write_bytes(data[: first.address] + data[first.address + first.size_bytes :])


def tail_cut(site: DrillSite, plant: SitePlant, rng: random.Random) -> None:
    """The file ends some batches earlier."""
    file = site.log_file(plant.topic)
    batches = batches_of(file)
    kept = len(batches) - rng.randint(1, 4)
    plant.victims, plant.statuses = _sequences(batches[kept:]), (Status.LOST, Status.ALTERED)
    plant.place = (batches[kept].header.address, file.stat().st_size)
    os.truncate(file, batches[kept].header.address)


def of_another_topic(site: DrillSite, plant: SitePlant, _rng: random.Random) -> None:
    """The file is another topic's: of the same producer, with the same numbers."""
    file, other = site.log_file(plant.topic), site.log_file(SPARE_TOPIC)
    plant.victims = _sequences(batches_of(file))
    plant.statuses = (Status.ALTERED, Status.CORRUPT, Status.LOST)
    plant.place = (0, file.stat().st_size)
    file.write_bytes(other.read_bytes())


def made_again(_site: DrillSite, plant: SitePlant, _rng: random.Random) -> None:
    """Planted once the brokers have started again, by `plant_all`: nothing is lost, and not all is copied."""
    plant.is_silenced = True


def clock_off(_site: DrillSite, _plant: SitePlant, _rng: random.Random) -> None:
    """Planted before the brokers stop, by `plant_all`: nothing is lost."""


def _appended(which: Callable[[random.Random], int]) -> Kind:
    """A batch is appended once more behind the log's end, with the address of its place."""

    def plant(site: DrillSite, plant: SitePlant, rng: random.Random) -> None:
        file = site.log_file(plant.topic)
        victim = batches_of(file)[which(rng)]
        plant.victims, plant.statuses = _sequences([victim]), (Status.DUPLICATED,)
        copy = bytearray(victim.data)
        readdress(copy, 0, file.stat().st_size, leader_epoch=victim.header.partition_leader_epoch)
        with file.open("ab") as opened:
            opened.write(copy)

    return plant


def restored(site: DrillSite, plant: SitePlant, rng: random.Random) -> None:
    """The folder is replaced by an older copy of itself, which `plant_all` made."""
    file = site.log_file(plant.topic)
    older = site.directory / "older" / file.parent.name
    kept = len(batches_of(older / file.name))
    plant.victims, plant.statuses = _sequences(batches_of(file)[kept:]), (Status.LOST,)
    shutil.rmtree(file.parent)
    shutil.copytree(older, file.parent)


def restored_and_grown(site: DrillSite, plant: SitePlant, rng: random.Random) -> None:
    restored(site, plant, rng)
    plant.grows = True


def nothing(_site: DrillSite, _plant: SitePlant, _rng: random.Random) -> None:
    """The brokers, the mirror and the auditor only stop and start again."""


def killed(site: DrillSite, plant: SitePlant, _rng: random.Random) -> None:
    """Planted before the brokers stop, by `plant_all`."""
    plant.is_silenced = True


def dropped(site: DrillSite, plant: SitePlant, _rng: random.Random) -> None:
    """Planted before the brokers stop, by `plant_all`, which knows what was dropped."""


KINDS: Final[dict[str, Kind]] = {
    "log: a batch zeroed": _in_batch(_zeroed, Status.CORRUPT, Status.LOST),
    "log: a batch altered": _in_batch(_flipped, Status.CORRUPT, Status.LOST),
    "log: a batch altered, its CRC right": _in_batch(_resealed, Status.ALTERED),
    "log: a batch cut out": cut_out,
    "log: its tail cut": tail_cut,
    "log: another topic's in its place": of_another_topic,
    "log: its topic made again": made_again,
    "service's clock off": clock_off,
    "log: its last batch appended again": _appended(lambda _rng: -1),
    "log: an old batch appended again": _appended(lambda rng: rng.randrange(ROUNDS // 2)),
    "log: restored from an older copy": restored,
    "log: restored, and grown again": restored_and_grown,
    "copy: a batch zeroed": _in_batch(_zeroed, Status.CORRUPT, Status.LOST, datacenter="analysis"),
    "copy: a batch altered": _in_batch(_flipped, Status.CORRUPT, Status.LOST, datacenter="analysis"),
    "copy: a batch altered, its CRC right": _in_batch(_resealed, Status.ALTERED, datacenter="analysis"),
    "service killed with unsent events": killed,
    "client dropped events": dropped,
    "everything stopped and started": nothing,
}
KNOWN_MISSES: Final[dict[str, str]] = {}


def run_brokers(seed: int, copies: int, kinds: Collection[str] = ()) -> Score:
    """Plants each kind so often, in one installation."""
    plants = [
        SitePlant(kind, f"drill-{number}-{copy}")
        for number, kind in enumerate(KINDS)
        for copy in range(copies)
        if not kinds or kind in kinds
    ]
    rng = random.Random(seed)
    with drill_site() as site:
        planted_s = plant_all(site, plants, rng)
        watch(site, plants, planted_s)
        score = Score()
        note(score, plants, site.verdicts(), seed)
        for name in STORE_PLANTS:
            for plant in plants:
                plant.named_s = None
            watch(site, plants, _harm_store(site, name, rng))
            note(score, plants, site.verdicts(), seed, name)
    return score


def note(score: Score, plants: list[SitePlant], verdicts: list[Verdict], seed: int, store: str = "") -> None:
    """Adds what a report makes of all plants. `store`: what happened to the audit store before it."""
    for plant in plants:
        outcome, false = plant.judge(verdicts)
        found = score.of(store or plant.kind)
        found.outcomes[outcome] += 1
        found.false += false
        if plant.named_s is not None and plant.victims:
            found.seconds.append(plant.named_s)
        if outcome is not Outcome.NAMED:
            found.seeds.setdefault(outcome, set()).add(seed)


def _harm_store(site: DrillSite, name: str, rng: random.Random) -> float:
    """Deletes or damages the audit store beneath its auditor, which is killed; returns when it runs again."""
    auditor = site.auditors["analysis"]
    auditor.kill()
    for file in site.store_file.parent.glob("audit.db*"):  # a file, and what SQLite keeps beside it
        if name == STORE_PLANTS[0]:
            file.unlink()
            continue
        data = bytearray(file.read_bytes())
        for at in range(0, len(data), PAGE_BYTES):
            data[at + 64 : at + 128] = rng.randbytes(64)
        file.write_bytes(data)
    auditor.start()
    return time.monotonic()


def plant_all(site: DrillSite, plants: list[SitePlant], rng: random.Random) -> float:
    """Publishes, stops everything, plants, and starts everything; returns when (monotonic) it was planted."""
    topics = [plant.topic for plant in plants]
    special = {plant.topic for plant in plants if KINDS[plant.kind] in (killed, dropped, clock_off)}
    plain = [*(topic for topic in topics if topic not in special), SPARE_TOPIC]
    site.create([*topics, SPARE_TOPIC])
    with site.publisher("drill", plain) as publisher:
        publish(publisher, plain, range(ROUNDS // 2))
        site.wait_until_counted(plain)
        site.clusters["east"][1].stop()
        for topic in plain:
            folder = site.log_file(topic).parent
            shutil.copytree(folder, site.directory / "older" / folder.name)
        site.clusters["east"][1].start()
        publish(publisher, plain, range(ROUNDS // 2, ROUNDS))
    for plant in plants:
        if KINDS[plant.kind] is killed:
            _kill_a_service(site, plant.topic)
        elif KINDS[plant.kind] is dropped:
            _drop(site, plant, rng)
        elif KINDS[plant.kind] is clock_off:
            _publish_from_afar(site, plant, rng)
    site.wait_until_counted(topics)
    site.mirror.terminate()
    for cluster in site.clusters.values():
        cluster[1].stop()
    for plant in plants:
        KINDS[plant.kind](site, plant, rng)
    for cluster in site.clusters.values():
        cluster[1].start()
    planted_s = time.monotonic()
    _make_again(site, [plant.topic for plant in plants if KINDS[plant.kind] is made_again])
    if growing := [plant.topic for plant in plants if plant.grows]:
        with site.publisher(LATER_SERVICE, growing) as publisher:
            publish(publisher, growing, range(ROUNDS, ROUNDS + LATER))
    site.mirror.start()
    return planted_s


def _kill_a_service(site: DrillSite, topic: str) -> None:
    arguments = [topic, site.clusters["east"].bootstrap, site.registry_url, str(site.directory / topic)]
    command = [sys.executable, "-c", _DYING, *arguments, str(HOUR_A)]
    code = subprocess.run(command, timeout=120, check=False, env=dict(os.environ)).returncode
    assert code == -signal.SIGKILL, code


def _publish_from_afar(site: DrillSite, plant: SitePlant, rng: random.Random) -> None:
    off_ms = rng.choice((-CLOCK_OFF_MS, CLOCK_OFF_MS))
    service = f"afar-{plant.topic}"
    with site.publisher(service, [plant.topic], wall_ms=lambda: now_ms() + off_ms) as publisher:
        publish(publisher, [plant.topic], range(ROUNDS))


def _make_again(site: DrillSite, topics: list[str]) -> None:
    """Deletes topics in east, and makes them again, with events that nobody copies: the mirror halts."""
    if not topics:
        return
    with Admin(site.clusters["east"].bootstrap) as admin:
        for topic in topics:
            admin.delete_topic(topic)
            admin.create_topic(topic, 1)
    with site.publisher("anew", topics) as publisher:
        publish(publisher, topics, range(LATER))


def _drop(site: DrillSite, plant: SitePlant, rng: random.Random) -> None:
    plan = DropPlan(plant.topic, rng.randint(1, 7), after=rng.randrange(20))
    with site.publisher(f"drops-{plant.topic}", [plant.topic], producer_options={"interceptor": plan}) as one:
        publish(one, [plant.topic], range(ROUNDS))
    plant.statuses = (Status.LOST,)
    for batch in plan.dropped:
        plant.victims |= set(range(batch.base_sequence, batch.base_sequence + batch.record_count))


def watch(site: DrillSite, plants: list[SitePlant], planted_s: float) -> None:
    """Asks the report until all is named, and long enough for what is false to show."""
    while (now_s := time.monotonic()) < planted_s + NAMED_WAIT_MAX_S:
        verdicts = site.verdicts()
        for plant in plants:
            if plant.named_s is None and plant.judge(verdicts)[0] is Outcome.NAMED:
                plant.named_s = now_s - planted_s
        if all(plant.named_s is not None for plant in plants) and now_s > planted_s + SETTLE_S:
            return
        time.sleep(1.0)
