"""Physical plants in replicas: a follower's file is harmed beside a sound leader, named, and fetched again.

Two brokers hold each topic. The leader's files are left alone, so the audit must name the follower's broker,
and `headrace brokers refetch` must bring the bytes back from the leader: then the report is complete.
"""

from __future__ import annotations

import random
import shutil
import tempfile
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final, NamedTuple

from drill.drill_plants import SitePlant, StoredBatch, numbers, place_of
from drill.drill_site import POLICY, batches_of, publish, verdicts_in, wait_until
from drill.drill_truth import Outcome, Score
from fix_audit import AuditorProcess
from fix_audit_world import resealed
from fix_broker import BrokerCluster
from fix_registry import launch
from fix_zookeeper import room_on, running_zookeeper
from headrace.audit.findings import PRODUCER_HOP, Status, Verdict
from headrace.client import Admin
from headrace.client.replica_admin import ReplicaAdmin
from headrace.events.publisher import EventPublisher
from headrace.events.schemas import read_schema
from headrace.reassignment.refetching import refetch

LEADER: Final = 1
FOLLOWER: Final = 2
ROUNDS: Final = 10
NAMED_WAIT_MAX_S: Final = 120.0
COUNTED_WAIT_MAX_S: Final = 120.0
REFETCH_MAX_S: Final = 60.0
REPAIRED: Final = "replica: fetched again from its leader"
SOUND: Final = "replica: nothing planted"

Change = Callable[[bytes, StoredBatch], bytes]
"""What a follower's file becomes: its bytes, and the batch that is harmed."""


class Kind(NamedTuple):
    """What happens to one batch of a follower, and what the audit may call it."""

    change: Change
    statuses: tuple[Status, ...]
    reaches_end: bool = False


def _altered(data: bytes, victim: StoredBatch) -> bytes:
    return data[: victim.start] + resealed(victim.data) + data[victim.end :]


def _zeroed(data: bytes, victim: StoredBatch) -> bytes:
    return data[: victim.start] + bytes(len(victim.data)) + data[victim.end :]


def _cut_out(data: bytes, victim: StoredBatch) -> bytes:
    return data[: victim.start] + data[victim.end :]


HARMS: Final[dict[str, Kind]] = {
    "replica: a follower's batch altered, its CRC right": Kind(_altered, (Status.ALTERED,)),
    "replica: a follower's batch zeroed": Kind(_zeroed, (Status.CORRUPT, Status.ALTERED)),
    "replica: a batch cut out of a follower": Kind(_cut_out, (Status.CORRUPT, Status.ALTERED), True),
}
KINDS: Final[dict[str, object]] = {**HARMS, SOUND: None, REPAIRED: None}


class ReplicaSite(NamedTuple):
    """A datacenter of two brokers, whose auditor folds its own store."""

    cluster: BrokerCluster
    registry_url: str
    auditor: AuditorProcess
    store_file: Path
    directory: Path

    def verdicts(self) -> list[Verdict]:
        return verdicts_in(self.store_file, replace(POLICY, hops=(PRODUCER_HOP,)))

    def file(self, topic: str, broker_id: int) -> Path:
        (file,) = (self.cluster[broker_id].data_dir / f"{topic}-0").glob("*.log")
        return file


def run_replicas(seed: int, copies: int, kinds: Collection[str] = ()) -> Score:
    """Plants each kind so often, in one datacenter; then repairs what was planted."""
    rng, score = random.Random(seed), Score()
    wanted = [name for name in HARMS if not kinds or name in kinds or REPAIRED in kinds]
    with replica_site() as site:
        plants = _published(site, wanted, copies)
        planted_s = _harm(site, plants, rng)
        watch(site, plants, planted_s, NAMED_WAIT_MAX_S)
        verdicts = site.verdicts()
        for plant in plants:
            outcome, false = judged(plant, verdicts)
            _note(score, plant, plant.kind, (outcome, false), seed, verdicts)
        _repair(site, plants, score, seed)
    return score


def judged(plant: SitePlant, verdicts: list[Verdict]) -> tuple[Outcome, int]:
    """As `SitePlant.judge`; what is not said of the follower's broker is said of a wrong place."""
    outcome, false = plant.judge(verdicts)
    if outcome is Outcome.NAMED and not plant.is_harmless:
        texts = [each.text for v in verdicts if v.topic == plant.topic for each in v.findings]
        if not all(f"of broker {FOLLOWER}" in text for text in texts):
            outcome = Outcome.WRONG_PLACE
    return outcome, false


def watch(site: ReplicaSite, plants: list[SitePlant], since_s: float, wait_max_s: float) -> None:
    """Asks the report until all is named, or the time has passed."""
    while (now_s := time.monotonic()) < since_s + wait_max_s:
        verdicts = site.verdicts()
        for plant in plants:
            if plant.named_s is None and judged(plant, verdicts)[0] is Outcome.NAMED:
                plant.named_s = now_s - since_s
        if all(plant.named_s is not None for plant in plants):
            return
        time.sleep(1.0)


def _published(site: ReplicaSite, wanted: list[str], copies: int) -> list[SitePlant]:
    """Publishes to topics of two replicas; returns the plants to be: harms where the first broker leads."""
    needed = len(wanted) * copies
    topics = [f"replicated-{number}" for number in range(4 * needed + 8)]  # about half of them are led there
    with Admin(site.cluster.bootstrap) as admin:
        for topic in topics:
            admin.create_topic(topic, 1, 2)
    with EventPublisher(
        datacenter="east",
        service="replicates",
        bootstrap=site.cluster.bootstrap,
        registry_url=site.registry_url,
        schemas=dict.fromkeys(topics, read_schema("page-view.avsc")),
        report_interval_s=1.0,
        state_dir=site.directory / "state",
    ) as publisher:
        publish(publisher, topics, range(ROUNDS))
    ends = {topic: site.file(topic, LEADER).stat().st_size for topic in topics}

    def are_counted() -> bool:
        found = {row["topic"]: row["counted_to"] for row in site.auditor.status()["partitions"]}
        return all(found.get(topic) == end for topic, end in ends.items())

    wait_until(are_counted, "the auditor has counted all", COUNTED_WAIT_MAX_S)
    with Admin(site.cluster.bootstrap) as admin:
        led = [topic for topic in topics if admin.topic(topic).partitions[0].leader == LEADER]
    assert len(led) >= needed, f"broker {LEADER} leads {len(led)} of {len(topics)} topics"
    plants = [SitePlant(kind, led.pop()) for kind in wanted for _ in range(copies)]
    others = [topic for topic in topics if topic not in {plant.topic for plant in plants}]
    return [*plants, *(SitePlant(SOUND, topic) for topic in others[:copies])]


def _harm(site: ReplicaSite, plants: list[SitePlant], rng: random.Random) -> float:
    """Harms the followers' files while their broker is down; returns when (monotonic) it runs again."""
    site.cluster[FOLLOWER].stop()
    for plant in plants:
        if plant.kind == SOUND:
            continue
        kind, file = HARMS[plant.kind], site.file(plant.topic, FOLLOWER)
        batches = batches_of(file)
        at = rng.randrange(1, len(batches) - 2)
        victims = batches[at:] if kind.reaches_end else [batches[at]]
        plant.victims, plant.statuses = numbers(victims), kind.statuses
        data = file.read_bytes()
        changed = kind.change(data, batches[at])
        place = place_of(victims)
        plant.places = (place._replace(end=min(place.end, len(changed))),)
        file.write_bytes(changed)
    site.cluster[FOLLOWER].start()
    return time.monotonic()


def _repair(site: ReplicaSite, plants: list[SitePlant], score: Score, seed: int) -> None:
    """Has each harmed replica fetched again: its bytes must be the leader's, and the report complete."""
    repaired = [SitePlant(REPAIRED, plant.topic) for plant in plants if plant.kind != SOUND]
    with ReplicaAdmin(site.cluster.bootstrap) as admin:
        for plant in repaired:
            refetch(admin, (plant.topic, 0), FOLLOWER, timeout_s=REFETCH_MAX_S)
    watch(site, repaired, time.monotonic(), NAMED_WAIT_MAX_S)
    verdicts = site.verdicts()
    for plant in repaired:
        outcome, false = judged(plant, verdicts)
        files = [site.file(plant.topic, number).read_bytes() for number in (LEADER, FOLLOWER)]
        if outcome is Outcome.NAMED and files[0] != files[1]:
            outcome = Outcome.MISSED
        _note(score, plant, REPAIRED, (outcome, false), seed, verdicts)


def _note(
    score: Score,
    plant: SitePlant,
    kind: str,
    found: tuple[Outcome, int],
    seed: int,
    verdicts: list[Verdict],
) -> None:
    score.of(kind).add(*found, seed, plant.place, plant.sentences(verdicts))
    if plant.named_s is not None and plant.kind != SOUND:
        score.of(kind).seconds.append(plant.named_s)


@contextmanager
def replica_site() -> Iterator[ReplicaSite]:
    """Starts everything; ends all that it started."""
    directory = Path(tempfile.mkdtemp(prefix="headrace-drill-"))
    settings = {"log.flush.offset.checkpoint.interval.ms": "1000", "log.scrub.interval.ms": "2000"}
    with running_zookeeper() as zookeeper:
        cluster = BrokerCluster(room_on(zookeeper), directory, 2, "east", settings)
        registry = auditor = None
        try:
            cluster.start()
            registry = launch(cluster.zookeeper.hosts)
            store_file = directory / "audit.db"
            auditor = AuditorProcess(cluster, registry.url, directory, "--store", f"sqlite:///{store_file}")
            auditor.start()
            yield ReplicaSite(cluster, registry.url, auditor, store_file, directory)
        finally:
            if auditor is not None:
                auditor.kill()
            if registry is not None:
                registry.kill()
            cluster.close()
            shutil.rmtree(directory, ignore_errors=True)
