"""SIGKILL of any one unit in the middle of publishing: its supervisor starts it again, and in the end every
acknowledged event is in HDFS exactly once and the audit says complete.

All units are killed first, one after another; then one load takes everything. The events of a story carry the
unit's name and lie on a day of their own, so that every test judges its own, in HDFS and in the audit.
"""

import time
from collections import Counter
from dataclasses import dataclass, field

import pytest

from fix_site import FIRST_EVENT_MS, RunningSite, Service
from headrace.audit.evidence import Status

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
class Story:
    """What happened while one unit was killed."""

    unit: str
    from_ms: int
    acknowledged: set[str] = field(default_factory=set)
    failed: dict[str, BaseException] = field(default_factory=dict)
    error: BaseException | None = None


@dataclass
class Aftermath:
    stories: dict[str, Story]
    rows: Counter[str]


def kill_while_publishing(site: RunningSite, story: Story) -> None:
    services = [
        Service(datacenter, TOPIC, label=story.unit, from_ms=story.from_ms)
        for datacenter in site.site.sources
    ]
    for service in services:
        service.start()
    try:
        time.sleep(BEFORE_KILL_S)
        killed = site.kill(story.unit)
        site.wait_restarted(story.unit, killed)
        time.sleep(AFTER_RESTART_S)
    finally:
        for service in services:
            service.finish()
            story.acknowledged |= service.acknowledged
            story.failed |= service.failed


@pytest.fixture(scope="module")
def aftermath(running_site: RunningSite) -> Aftermath:
    running_site.without_airflow()
    stories = [Story(unit, FIRST_EVENT_MS + number * DAY_MS) for number, unit in enumerate(UNITS)]
    for story in stories:
        try:
            kill_while_publishing(running_site, story)
        except Exception as error:
            story.error = error
    running_site.wait_mirrored([TOPIC])
    code, output = running_site.load([TOPIC])
    assert code == 0, output[-4000:]
    return Aftermath({story.unit: story for story in stories}, running_site.rows(TOPIC))


@pytest.mark.parametrize("unit", UNITS)
def test_nothing_is_lost_or_doubled(unit: str, aftermath: Aftermath, running_site: RunningSite) -> None:
    story = aftermath.stories[unit]
    if story.error is not None:
        raise story.error
    assert story.acknowledged
    assert not story.failed, f"{len(story.failed)} events failed: {next(iter(story.failed.values()))}"
    rows = Counter({name: n for name, n in aftermath.rows.items() if name.startswith(f"/{unit}/")})
    assert set(rows) == story.acknowledged
    assert rows.total() == len(story.acknowledged), "some event lies there more than once"

    report = running_site.settled_report(TOPIC, story.from_ms, story.from_ms + DAY_MS)
    assert report.status is Status.COMPLETE, report.to_json()
    assert {each.datacenter for each in report.verdicts} == {"east", "west"}
    for counts in (verdict.counts for verdict in report.verdicts):
        assert counts.producer == counts.datacenter == counts.analysis == counts.warehouse
    assert sum(each.counts.producer for each in report.verdicts) == len(story.acknowledged)
