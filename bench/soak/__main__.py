"""`make soak`: what comes and goes leaves nothing behind in the processes that stay.

A site of two datacenters runs for MINUTES (default 60), and visitors of many kinds come and go meanwhile
(`soak.visits`): some ten thousand an hour. What each unit holds is measured every few seconds: memory that
is its own, file descriptors, threads. The visitors' own processes are measured, too: they are headrace's
client library (and librdkafka).

JSON=path keeps all samples. Exit code: 0 if nothing grew beyond its bound (`soak.growth`) and each visit
succeeded, 1 if not, 2 if it cannot run.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import shutil
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.table import Table
from soak.growth import SAMPLES_MIN, Growth, Held, growths, held
from soak.visitors import FAILURES_MAX, Visitor, start
from soak.visits import PARTITIONS, TOPIC, Place, wait_for_copy

from headrace.agent.home import AgentHome, AgentRecord
from headrace.agent.unit import Unit
from headrace.client import Admin
from headrace.fleet.operate import down, up
from headrace.fleet.status import unit_reports
from headrace.fleet.units import units_of
from headrace.site.site import Datacenter, MirrorRoute, Site
from headrace.warehouse.jars import ensure_jars, headrace_home

MINUTES_DEFAULT: Final = 60.0
MINUTES_MAX: Final = 10_000.0
SAMPLES: Final = 120
SAMPLE_MIN_S: Final = 2.0
END_MAX_S: Final = 60.0
SHORT_LOGS: Final = {"segment.bytes": "65536", "retention.bytes": "262144"}
FORGETFUL: Final = {"producer.id.expiration.ms": "120000", "log.retention.check.interval.ms": "5000"}
"""A broker's memory of producers, by default for a day, is full after two minutes."""
LIBRDKAFKA: Final = ("librdkafka producers", "groups")
"""Kinds whose process is not judged: most of it is another project's code."""


def soaked_site(home: Path) -> Site:
    return Site(
        home=home,
        datacenters=(
            Datacenter(name="east", network="127.107.1", broker_count=2, broker_settings=FORGETFUL),
            Datacenter(name="analysis", network="127.107.9", broker_count=1, broker_settings=FORGETFUL),
        ),
        mirrors=(MirrorRoute(source="east", target="analysis"),),
        warehouse="analysis",
        airflow=False,
    )


@contextmanager
def running_site() -> Iterator[Site]:
    """Runs all units but HDFS; deletes everything afterwards."""
    ensure_jars(("zookeeper",), home=headrace_home())
    home = headrace_home() / "soak"
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir(parents=True)
    (home / "jars").symlink_to(headrace_home() / "jars")
    site = soaked_site(home)
    try:
        up(site, units=_units(site))
        _create_topic(site)
        yield site
    finally:
        down(site)
        shutil.rmtree(home, ignore_errors=True)


def _create_topic(site: Site) -> None:
    """Creates the topic of all visitors, with logs that soon grow no more; its copy in analysis is made by
    the mirror.
    """
    place = place_of(site)
    with Admin(place.bootstrap) as east, Admin(place.analysis_bootstrap) as analysis:
        east.create_topic(TOPIC, PARTITIONS, config=SHORT_LOGS)
        wait_for_copy(analysis, TOPIC)
        analysis.alter_configs(TOPIC, SHORT_LOGS)


def _units(site: Site) -> list[Unit]:
    return [unit for unit in units_of(site) if unit.kind != "hdfs"]


def place_of(site: Site) -> Place:
    urls = [unit.page_url for unit in _units(site) if unit.page_url]
    east = site.datacenter("east")
    return Place(east.bootstrap, site.analysis.bootstrap, str(east.zookeeper), east.registry_url, tuple(urls))


def processes_of(site: Site) -> dict[str, int]:
    """Returns the top process of each unit, and of the agent."""
    found = {report.name: report.pid for report in unit_reports(site, _units(site)) if report.pid}
    record = AgentRecord.read(AgentHome(site.home).record)
    return found if record is None else {**found, "agent": record.pid}


def watch(pids: dict[str, int], minutes: float) -> dict[str, list[Held]]:
    """Takes about `SAMPLES` samples within this time."""
    samples: defaultdict[str, list[Held]] = defaultdict(list)
    end_s = time.monotonic() + 60 * minutes
    pause_s = max(SAMPLE_MIN_S, 60 * minutes / SAMPLES)
    while time.monotonic() < end_s:
        time.sleep(pause_s)
        for unit, pid in pids.items():
            if (now := held([pid])) is not None:
                samples[unit].append(now)
    return samples


def show(found: list[Growth], visitors: dict[str, Visitor]) -> None:
    table = Table("process", "memory MB", "descriptors", "threads", "grown beyond its bound", box=None)
    for growth in found:
        figures = [
            f"{early:,.1f} → {late:,.1f}" if name == "memory_mb" else f"{early:,.0f} → {late:,.0f}"
            for name, early, late in zip(Held._fields, growth.early, growth.late, strict=True)
        ]
        table.add_row(growth.unit, *figures, ", ".join(growth.beyond()) or "–")
    Console().print(table)
    counted = ", ".join(f"{kind} {visitor.visits.value:,}" for kind, visitor in visitors.items())
    print(f"visits: {counted}")
    for kind, visitor in visitors.items():
        if visitor.failures.value:
            print(f"{kind}: {visitor.failures.value} visits failed:")
            for _ in range(min(FAILURES_MAX, visitor.failures.value)):
                print(f"  {visitor.errors.get(timeout=END_MAX_S)}")


def judged(samples: dict[str, list[Held]]) -> list[Growth]:
    mature = {unit: taken for unit, taken in samples.items() if unit not in LIBRDKAFKA}
    return growths(mature)


def soak(minutes: float) -> int:
    ended = multiprocessing.get_context("spawn").Event()
    with running_site() as site:
        units = processes_of(site)
        visitors = start(place_of(site), ended)
        try:
            pids = units | {kind: visitor.process.pid or 0 for kind, visitor in visitors.items()}
            print(f"{len(units)} processes of a site, {len(visitors)} visitors, {minutes:g} minutes")
            samples = watch(pids, minutes)
            restarted = [name for name, pid in processes_of(site).items() if units.get(name) != pid]
        finally:
            ended.set()
        for visitor in visitors.values():
            visitor.process.join(END_MAX_S)
        found = judged(samples)
        show(found, visitors)
    if path := os.environ.get("JSON"):
        Path(path).write_text(json.dumps(samples, indent=1) + "\n")
    for name in restarted:
        print(f"{name} has ended, and was started again")
    failed = any(visitor.failures.value or not visitor.visits.value for visitor in visitors.values())
    return 1 if failed or restarted or any(growth.beyond() for growth in found) else 0


def asked_minutes(given: str) -> float:
    """Raises `ValueError`."""
    least = SAMPLES_MIN * SAMPLE_MIN_S / 60
    if not re.fullmatch(r"\d+(\.\d+)?", given) or not 2 * least <= float(given) <= MINUTES_MAX:
        raise ValueError(f"MINUTES={given}: give a number from {2 * least:.1f} to {MINUTES_MAX:.0f}")
    return float(given)


def main() -> int:
    try:
        minutes = asked_minutes(os.environ.get("MINUTES") or f"{MINUTES_DEFAULT:g}")
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    return soak(minutes)


if __name__ == "__main__":
    sys.exit(main())
