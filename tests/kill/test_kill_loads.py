"""SIGKILL of the Spark job at each step of its commit, then of HDFS during a load: the next load finishes the
interrupted one, and every acknowledged event is in HDFS exactly once.

All crashes are of one topic. Before each, more events are published, labelled with the step, so that the next
job finds both an interrupted load and new events. The last load adds the missing events.
"""

import signal
from collections import Counter
from dataclasses import dataclass, field

import pytest

from fix_site import LOAD_WAIT_MAX_S, RunningSite, Service, output_of, wait_for
from headrace.audit.findings import Status
from headrace.warehouse.crash import STEPS
from headrace.warehouse.hdfs.client import HdfsClient
from headrace.warehouse.layout import TopicPaths

pytestmark = [pytest.mark.kill, pytest.mark.slow, pytest.mark.spark, pytest.mark.timeout(900)]

TOPIC = "crashed-loads"
EVENTS = 150
STEP_MS = 60_000
"""Two and a half hours, so that a load has several files to move."""
LOADS_MAX = 4
HDFS = "hdfs-killed"


@dataclass
class Crash:
    """What was published before a crash, and how the job ended."""

    published: set[str]
    exit_code: int = 0
    output: str = ""


@dataclass
class Aftermath:
    crashes: dict[str, Crash] = field(default_factory=dict)
    rows: Counter[str] = field(default_factory=Counter)


def publish(site: RunningSite, label: str) -> set[str]:
    """Publishes in both datacenters and waits until all is mirrored; returns the names of the events."""
    services = [
        Service(datacenter, TOPIC, label=label, count_max=EVENTS, step_ms=STEP_MS)
        for datacenter in site.site.sources
    ]
    for service in services:
        service.start()
    names: set[str] = set()
    for service in services:
        service.finish(at_once=False)
        names |= service.acknowledged
    assert len(names) == EVENTS * len(services)
    site.wait_mirrored([TOPIC])
    return names


def load_while_hdfs_dies(site: RunningSite) -> Crash:
    crash = Crash(publish(site, HDFS))
    staging = TopicPaths("/data", TOPIC).staging
    with HdfsClient(site.site.webhdfs_url) as hdfs, site.start_load([TOPIC]) as job:
        before = {entry.name for entry in hdfs.entries(staging)}
        wait_for(
            lambda: None if {entry.name for entry in hdfs.entries(staging)} - before else "nothing is staged",
            LOAD_WAIT_MAX_S,
            "the job writes",
        )
        killed = site.kill("analysis-hdfs")
        crash.output = output_of(job)
    crash.exit_code = job.returncode
    site.wait_restarted("analysis-hdfs", killed)
    return crash


@pytest.fixture(scope="module")
def aftermath(running_site: RunningSite) -> Aftermath:
    found = Aftermath()
    for step in STEPS:
        crash = found.crashes[step] = Crash(publish(running_site, step))
        crash.exit_code, crash.output = running_site.load([TOPIC], {"HEADRACE_CRASH_AT": step})
    found.crashes[HDFS] = load_while_hdfs_dies(running_site)
    for _ in range(LOADS_MAX):
        code, output = running_site.load([TOPIC])
        if code == 0:
            break
    assert code == 0, output[-4000:]
    found.rows = running_site.rows(TOPIC)
    return found


@pytest.mark.parametrize("step", STEPS)
def test_spark_killed_at(step: str, aftermath: Aftermath) -> None:
    crash = aftermath.crashes[step]
    assert crash.exit_code == -signal.SIGKILL, f"the job did not die at {step}: {crash.output[-3000:]}"
    expect_once(crash.published, aftermath.rows)


def test_hdfs_killed_under_a_load(aftermath: Aftermath) -> None:
    # The job may have survived or failed; either way no event may be lost or duplicated.
    expect_once(aftermath.crashes[HDFS].published, aftermath.rows)


def expect_once(names: set[str], rows: Counter[str]) -> None:
    counts = Counter(rows[name] for name in names)
    assert counts == {1: len(names)}, f"times that events are there, and how many: {dict(counts)}"


def test_the_audit_reports_complete(aftermath: Aftermath, running_site: RunningSite) -> None:
    published = set().union(*(crash.published for crash in aftermath.crashes.values()))
    assert set(aftermath.rows) == published
    report = running_site.settled_report(TOPIC)
    assert report.status is Status.COMPLETE, report.to_json()
