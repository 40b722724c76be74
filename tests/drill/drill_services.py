"""What happens to services and their events while everything runs: each kind writes the truth down first.

A kind gets all its plants at once, so that a broker or the mirror stops once for all of them.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Final

import httpx

from drill.drill_plants import SitePlant, StoredBatch, numbers, numbers_sent
from drill.drill_site import DrillSite, batches_of, publish, wait_until
from fix_audit_world import BUCKET_MS, HOUR_A
from fix_contexts import run_command, save_context
from fix_forging_proxy import ForgingProxy
from headrace.audit.findings import Status
from headrace.client import Admin, Producer
from headrace.client.faults import DropPlan
from headrace.process.clock import now_ms
from headrace.wire.batch import read_header
from headrace.wire.produce import ProducePartition

ROUNDS: Final = 10
CLOCK_OFF_MS: Final = 59 * 60_000
DYING_MAX_S: Final = 120.0
WAIT_MAX_S: Final = 60.0
STORED_COUNT: Final = 20
GONE_MAX: Final = 9
OVERTAKEN_SEGMENT_BYTES: Final = 1024

Kind = Callable[[DrillSite, list[SitePlant], random.Random], None]

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


def killed(site: DrillSite, plants: list[SitePlant], _rng: random.Random) -> None:
    """A service dies by SIGKILL with events that it has not sent."""
    for plant in plants:
        plant.is_silenced = True
        arguments = [plant.topic, site.bootstrap, site.registry_url, str(site.directory / plant.topic)]
        command = [sys.executable, "-c", _DYING, *arguments, str(HOUR_A)]
        code = subprocess.run(command, timeout=DYING_MAX_S, check=False, env=dict(os.environ)).returncode
        assert code == -signal.SIGKILL, code


def dropped(site: DrillSite, plants: list[SitePlant], rng: random.Random) -> None:
    """The client drops events that it has numbered and counted."""
    for plant in plants:
        plan = DropPlan(plant.topic, rng.randint(1, 7), after=rng.randrange(20))
        plant.statuses = (Status.LOST,)
        service = f"drops-{plant.topic}"
        with site.publisher(service, [plant.topic], producer_options={"interceptor": plan}) as one:
            publish(one, [plant.topic], range(ROUNDS))
        plant.victims = {number for batch in plan.dropped for number in numbers_sent(batch)}


def clock_off(site: DrillSite, plants: list[SitePlant], rng: random.Random) -> None:
    """A service's clock is off: nothing is lost."""
    for plant in plants:
        clock = partial(_now_ms_by, rng.choice((-CLOCK_OFF_MS, CLOCK_OFF_MS)))
        with site.publisher(f"afar-{plant.topic}", [plant.topic], wall_ms=clock) as publisher:
            publish(publisher, [plant.topic], range(ROUNDS))


def _now_ms_by(off_ms: int) -> int:
    return now_ms() + off_ms


class Forgery:
    """Which batch of a plant's topic is dropped and acknowledged: the one with this number. Its events are
    written into the plant first.
    """

    def __init__(self, plant: SitePlant, number: int) -> None:
        self._plant = plant
        self._left = number

    def __call__(self, topic: str, part: ProducePartition) -> bool:
        if topic != self._plant.topic or part.records is None:
            return False
        self._left -= 1
        if self._left != -1:
            return False
        data = bytes(part.records)
        self._plant.victims = numbers([StoredBatch(read_header(data, 0), data)], part.partition)
        return True


def forged(site: DrillSite, plants: list[SitePlant], rng: random.Random) -> None:
    """A proxy before the broker drops one batch, anywhere, and says that it is stored."""
    for plant in plants:
        plant.statuses = (Status.LOST,)
        forgery, service = Forgery(plant, rng.randrange(ROUNDS)), f"forged-{plant.topic}"
        with (
            ForgingProxy(site.bootstrap, forgery) as proxy,
            site.publisher(service, [plant.topic], bootstrap=proxy.address) as publisher,
        ):
            publish(publisher, [plant.topic], range(ROUNDS))
        assert plant.victims, "the proxy has forged nothing"


def unacknowledged(site: DrillSite, plants: list[SitePlant], rng: random.Random) -> None:
    """Services of another make send with acks=0 to a broker that hangs, and is then killed: what they sent
    last is nowhere. They count their events, and report the counts by HTTP.
    """
    if not plants:
        return
    broker = site.clusters["east"][1]
    with ExitStack() as stack:
        producers = [
            stack.enter_context(Producer(site.bootstrap, acks=0, idempotent=False, client_id=each.topic))
            for each in plants
        ]
        for plant, producer in zip(plants, producers, strict=True):
            _send(producer, plant.topic, 0, STORED_COUNT)
            wait_until(partial(_has_stored, site, plant.topic), "acks=0 is stored", WAIT_MAX_S)
        broker.send_signal(signal.SIGSTOP)
        for plant, producer in zip(plants, producers, strict=True):
            plant.statuses, plant.unnumbered_count = (Status.LOST,), rng.randint(1, GONE_MAX)
            _send(producer, plant.topic, STORED_COUNT, plant.unnumbered_count)
        broker.send_signal(signal.SIGKILL)  # `kill` would wake it up first
        broker.kill()
    broker.start()
    for plant in plants:
        assert _has_stored(site, plant.topic), "the stopped broker has stored something"
        _report_counts(site, plant)


def _send(producer: Producer, topic: str, first: int, count: int) -> None:
    for at in range(first, first + count):
        producer.send(topic, b"event %d" % at, partition=0, timestamp_ms=HOUR_A + at)
    producer.flush(WAIT_MAX_S)


def _has_stored(site: DrillSite, topic: str) -> bool:
    held = sum(each.header.record_count for each in batches_of(*site.segments(topic)))
    return held == STORED_COUNT


def _report_counts(site: DrillSite, plant: SitePlant) -> None:
    """As docs/reporting.md says that a service of another make does it, until it is on disk."""
    said = now_ms()
    report = {
        "publisher": str(uuid.uuid4()),
        "service": f"counts-{plant.topic}",
        "server": "host-1",
        "started_ms": said - BUCKET_MS,
        "report_number": 1,
        "reported_until_ms": said,
        "closed": True,
        "tallies": [
            {
                "topic": plant.topic,
                "bucket_start_ms": HOUR_A,
                "handed_over_count": STORED_COUNT + plant.unnumbered_count,
                "final": True,
            }
        ],
    }
    url = site.auditors["east"].status_url.replace("/status", "/counts")

    def is_taken() -> bool:
        answer = httpx.post(url, json=report, timeout=WAIT_MAX_S, trust_env=False, verify=False)
        assert answer.status_code in (200, 503), answer.text
        return answer.status_code == 200

    wait_until(is_taken, "the auditor takes the counts", WAIT_MAX_S)


def overtaken(site: DrillSite, plants: list[SitePlant], rng: random.Random) -> None:
    """Retention in east deletes what the mirror, which is down, has not copied. Its copy halts, and goes on
    once the gap is accepted.
    """
    if not plants:
        return
    topics = [plant.topic for plant in plants]
    options = {"compression": "none"}
    with site.publisher("overtaken", topics, producer_options=options) as publisher:
        publish(publisher, topics, range(ROUNDS // 2))
        site.wait_until_counted(topics)
        site.mirror.terminate()
        publish(publisher, topics, range(ROUNDS // 2, ROUNDS))
    site.wait_until_counted(topics, ["east"])
    for plant in plants:
        _overtake(site, plant, rng)
    site.mirror.start()
    registries = dict.fromkeys(site.clusters, site.registry_url)
    home = site.directory / "home"
    store = f"sqlite:///{site.store_file}"
    save_context(home, site.clusters.values(), registries, [site.mirror], store)
    for topic in topics:
        wait_until(partial(_is_halted, site, topic), f"{topic} is halted", WAIT_MAX_S)
        done = run_command(home, "mirror", "accept-gap", topic, 0, "--source", "east", "--yes")
        assert done.returncode == 0, done.stderr


def _overtake(site: DrillSite, plant: SitePlant, rng: random.Random) -> None:
    """Deletes whole segments, as `retention.bytes` says: at least one batch that was not copied."""
    segments = site.segments(plant.topic)
    copied_to, end = site.end(plant.topic, datacenter="analysis"), site.end(plant.topic)
    starts = [int(each.stem) for each in segments[1:] if int(each.stem) > copied_to]
    start = rng.choice(starts)
    gone = [each for each in batches_of(*segments) if copied_to <= each.start < start]
    plant.statuses, plant.victims = (Status.LOST,), numbers(gone)
    with Admin(site.bootstrap) as admin:
        admin.alter_configs(plant.topic, {"retention.bytes": str(end - start)})
    is_deleted = partial(_begins_at, site, plant.topic, start)
    wait_until(is_deleted, f"retention deletes {plant.topic} up to {start}", WAIT_MAX_S)


def _begins_at(site: DrillSite, topic: str, address: int) -> bool:
    return int(site.segments(topic)[0].stem) == address


def _is_halted(site: DrillSite, topic: str) -> bool:
    found = site.mirror.partitions().get((topic, 0), {})
    return found.get("state") == "halted" and found.get("gap") is not None


KINDS: Final[dict[str, Kind]] = {
    "service killed with unsent events": killed,
    "service's clock off": clock_off,
    "client dropped events": dropped,
    "proxy forged an acknowledgement": forged,
    "acks=0 into a stopped broker": unacknowledged,
    "log: retention overtook its mirror": overtaken,
}
CONFIG: Final[dict[Kind, dict[str, str]]] = {
    overtaken: {"segment.bytes": str(OVERTAKEN_SEGMENT_BYTES)},
}
"""The settings of the topics of a kind."""
