"""Physical plants in a real installation: log files of stopped brokers, services that die or are deceived,
and a mirror that retention overtakes.

Every plant gets a topic of its own. All are planted in one installation, the files while the brokers are
down; then everything starts again, and the report is asked until it has named all, or until
`NAMED_WAIT_MAX_S` has passed.
"""

from __future__ import annotations

import random
import shutil
import time
from collections.abc import Collection, Iterable
from typing import Final

from drill import drill_log_kinds, drill_services
from drill.drill_log_kinds import FIRST_ROUNDS, SEGMENT_BYTES, SEGMENTED, SPARE_TOPIC
from drill.drill_plants import LATER_SERVICE, SitePlant
from drill.drill_services import ROUNDS
from drill.drill_site import DrillSite, drill_site, publish
from drill.drill_truth import Outcome, Score
from headrace.audit.findings import Verdict
from headrace.client import Admin

LATER: Final = 4
PAGE_BYTES: Final = 4096
STORE_PLANTS: Final = ("the store deleted", "the store damaged")
"""What happens to the audit store once all is named: a rebuilt store must name all of it again."""
NAMED_WAIT_MAX_S: Final = 75.0
SETTLE_S: Final = 30.0
"""What is false must show within this time, too."""
KINDS: Final[dict[str, object]] = {**drill_log_kinds.KINDS, **drill_services.KINDS}
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
        whose = f"{plant.kind}, {store}: " if store else ""
        found.add(outcome, false, seed, f"{whose}{plant.place}", plant.sentences(verdicts))
        if plant.named_s is not None and not plant.is_harmless:
            found.seconds.append(plant.named_s)


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
    of_logs = [plant for plant in plants if plant.kind in drill_log_kinds.KINDS]
    _publish_logs(site, of_logs)
    for name, kind in drill_services.KINDS.items():
        mine = [plant for plant in plants if plant.kind == name]
        site.create((plant.topic for plant in mine), config=drill_services.CONFIG.get(kind))
        kind(site, mine, rng)
    topics = [plant.topic for plant in plants]
    site.wait_until_counted(topics)
    site.mirror.terminate()
    for cluster in site.clusters.values():
        cluster[1].stop()
    for plant in of_logs:
        drill_log_kinds.KINDS[plant.kind](site, plant, rng)
    for cluster in site.clusters.values():
        cluster[1].start()
    planted_s = time.monotonic()
    made_again = drill_log_kinds.made_again
    _make_again(site, [each.topic for each in of_logs if drill_log_kinds.KINDS[each.kind] is made_again])
    if growing := [plant.topic for plant in plants if plant.grows]:
        with site.publisher(LATER_SERVICE, growing) as publisher:
            publish(publisher, growing, range(ROUNDS, ROUNDS + LATER))
    site.mirror.start()
    return planted_s


def _publish_logs(site: DrillSite, plants: Iterable[SitePlant]) -> None:
    """Fills the logs of these plants; of each whose log is one file, an older copy is made half way."""
    plain, segmented = [SPARE_TOPIC], dict[str, int]()
    for plant in plants:
        partitions = SEGMENTED.get(drill_log_kinds.KINDS[plant.kind])
        if partitions is None:
            plain.append(plant.topic)
        else:
            segmented[plant.topic] = partitions
    site.create(plain)
    for topic, partitions in segmented.items():
        site.create([topic], partitions, {"segment.bytes": str(SEGMENT_BYTES)})
        with site.publisher("segments", [topic], producer_options={"compression": "none"}) as publisher:
            publish(publisher, [topic], range(ROUNDS), partitions)
    with site.publisher("drill", plain) as publisher:
        publish(publisher, plain, range(FIRST_ROUNDS))
        site.wait_until_counted(plain)
        site.clusters["east"][1].stop()
        for topic in plain:
            folder = site.log_file(topic).parent
            shutil.copytree(folder, site.directory / "older" / folder.name)
        site.clusters["east"][1].start()
        publish(publisher, plain, range(FIRST_ROUNDS, ROUNDS))


def _make_again(site: DrillSite, topics: list[str]) -> None:
    """Deletes topics in east, and makes them again, with events that nobody copies: the mirror halts."""
    if not topics:
        return
    with Admin(site.bootstrap) as admin:
        for topic in topics:
            admin.delete_topic(topic)
            admin.create_topic(topic, 1)
    with site.publisher("anew", topics) as publisher:
        publish(publisher, topics, range(LATER))


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
