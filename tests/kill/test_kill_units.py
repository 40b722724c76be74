"""SIGKILL of one unit while services publish: supervisord starts it again, and in the end every acknowledged
event is in HDFS exactly once and the audit reports complete.

All units are killed first, one after another; then one load reads all events. The events published around a
kill have the unit's name and a day of their own, so that each test checks its own, in HDFS and in the audit.
"""

import time
from collections import Counter
from dataclasses import dataclass, field

import pytest

from fix_site import FIRST_EVENT_MS, RunningSite, Service
from headrace.audit.findings import Status

pytestmark = [pytest.mark.kill, pytest.mark.slow, pytest.mark.spark, pytest.mark.timeout(900)]

TOPIC = "killed-units"
DAY_MS = 24 * 3_600_000
BEFORE_KILL_S = 1.0
AFTER_RESTART_S = 0.7

UNITS = (
    "east-broker-1",
    "analysis-broker-2",
    "east-zookeeper",
    "analysis-zookeeper",
    "analysis-mirror-east",
    "east-auditor",
    "analysis-auditor",
    "east-registry",
    "east-balancer",
    "analysis-hdfs",
)


@dataclass
class Kill:
    """What happened while one unit was killed."""

    unit: str
    from_ms: int
    acknowledged: set[str] = field(default_factory=set)
    failed: dict[str, BaseException] = field(default_factory=dict)
    error: BaseException | None = None


@dataclass
class Aftermath:
    kills: dict[str, Kill]
    rows: Counter[str]


def kill_while_publishing(site: RunningSite, kill: Kill) -> None:
    services = [
        Service(datacenter, TOPIC, label=kill.unit, from_ms=kill.from_ms) for datacenter in site.site.sources
    ]
    for service in services:
        service.start()
    try:
        time.sleep(BEFORE_KILL_S)
        killed = site.kill(kill.unit)
        site.wait_restarted(kill.unit, killed)
        time.sleep(AFTER_RESTART_S)
    finally:
        for service in services:
            service.finish()
            kill.acknowledged |= service.acknowledged
            kill.failed |= service.failed


@pytest.fixture(scope="module")
def aftermath(running_site: RunningSite) -> Aftermath:
    kills = [Kill(unit, FIRST_EVENT_MS + number * DAY_MS) for number, unit in enumerate(UNITS)]
    for kill in kills:
        try:
            kill_while_publishing(running_site, kill)
        except Exception as error:
            kill.error = error
    running_site.wait_mirrored([TOPIC])
    code, output = running_site.load([TOPIC])
    assert code == 0, output[-4000:]
    return Aftermath({kill.unit: kill for kill in kills}, running_site.rows(TOPIC))


@pytest.mark.parametrize("unit", UNITS)
def test_nothing_is_lost_or_duplicated(unit: str, aftermath: Aftermath, running_site: RunningSite) -> None:
    kill = aftermath.kills[unit]
    if kill.error is not None:
        raise kill.error
    assert kill.acknowledged
    assert not kill.failed, f"{len(kill.failed)} events failed: {next(iter(kill.failed.values()))}"
    rows = Counter({name: n for name, n in aftermath.rows.items() if name.startswith(f"/{unit}/")})
    assert set(rows) == kill.acknowledged
    assert rows.total() == len(kill.acknowledged), "some event is there more than once"

    report = running_site.settled_report(TOPIC, kill.from_ms, kill.from_ms + DAY_MS)
    assert report.status is Status.COMPLETE, report.to_json()
    assert {verdict.datacenter for verdict in report.verdicts} == {"east", "west"}
    for counts in (verdict.counts for verdict in report.verdicts):
        assert counts.producer == counts.datacenter == counts.analysis == counts.warehouse
    assert sum(verdict.counts.producer for verdict in report.verdicts) == len(kill.acknowledged)
