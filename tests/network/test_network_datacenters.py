"""Three datacenters on hosts of their own; one is cut off for a minute while its services continue."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from fix_network import enter
from fix_network_terraform import AGENT_PORT, PLAN, SERVICES, ProvisionedSite
from headrace.audit.findings import MIRROR_HOP, PRODUCER_HOP, Policy, Status, Verdict
from headrace.audit.report.report import Report, report, wait_until_resolved
from headrace.audit.store.store import AuditStore
from headrace.audit.times import HOUR_MS
from headrace.client import Admin, Consumer, Producer

pytestmark = [pytest.mark.network, pytest.mark.slow]

CUT_S = 60.0
NOTICE_MAX_S = 45.0
"""Until a mirror reports that its source is cut off, and the audit that it receives nothing."""
RESTORED_MAX_S = 30.0
"""Until everything continues: a client connects within seconds, the rest is for a busy machine."""
LOCAL_MAX_S = 20.0
RESOLVE_MAX_S = 90.0
CLOSE_MAX_S = 60.0
PER_SECOND = 40
TOPIC = "page-view"
FAR_TOPIC = "far"
PARTITIONS = 2
FAR_PAUSE_S = 0.1
POLICY = Policy(hops=(PRODUCER_HOP, MIRROR_HOP))
FRONTEND = Path(__file__).with_name("frontend.py")


class Frontend:
    """`frontend.py` in a host; `stop` returns how many events it handed over."""

    def __init__(self, site: ProvisionedSite, datacenter: str) -> None:
        there = site.outputs[datacenter]
        self.log = site.home / f"frontend-{datacenter}.log"
        words = [sys.executable, str(FRONTEND), datacenter, there["balancer"], there["registry_url"]]
        self.process: subprocess.Popen[bytes] = site.network.popen(
            SERVICES[datacenter], [*words, TOPIC, str(PER_SECOND)], self.log
        )

    def stop(self) -> int:
        self.process.terminate()
        assert self.process.wait(CLOSE_MAX_S) == 0, self.log.read_text()
        return int(re.findall(r"published (\d+)", self.log.read_text())[-1])


class Reader:
    """Reads a topic from its start, in a thread inside `host`, once all partitions exist; counts keys."""

    def __init__(
        self, site: ProvisionedSite, host: str, datacenter: str, topic: str, partitions: int = PARTITIONS
    ) -> None:
        self.keys: Counter[bytes] = Counter()
        self._bootstrap = site.bootstrap(datacenter)
        self._topic = topic
        self._partitions = partitions
        self._namespace = site.network.namespace(host)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        enter(self._namespace)
        with Admin(self._bootstrap) as admin:
            while not self._stopping.wait(0.2):
                found = admin.topics().get(self._topic)
                if found is not None and len(found.partitions) == self._partitions:
                    break
        with Consumer(self._bootstrap, auto_offset_reset="earliest") as consumer:
            consumer.assign([(self._topic, partition) for partition in range(self._partitions)])
            while not self._stopping.is_set():
                self.keys.update(record.key or b"" for record in consumer.poll(0.5))

    @property
    def count(self) -> int:
        return sum(list(self.keys.values()))

    def close(self) -> None:
        self._stopping.set()
        self._thread.join()


class Writer:
    """Writes to a topic in another datacenter, steadily, in a thread inside `host`."""

    def __init__(self, site: ProvisionedSite, host: str, datacenter: str, topic: str) -> None:
        self.sent = 0
        self.acknowledged = 0
        self._bootstrap = site.bootstrap(datacenter)
        self._topic = topic
        self._namespace = site.network.namespace(host)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        enter(self._namespace)
        with Producer(self._bootstrap) as producer:
            while not self._stopping.wait(FAR_PAUSE_S):
                future = producer.send(self._topic, b"x", key=str(self.sent).encode())
                future.add_done_callback(self._on_done)
                self.sent += 1
            producer.flush(CLOSE_MAX_S)

    def _on_done(self, future: Any) -> None:
        self.acknowledged += future.exception() is None

    def close(self) -> None:
        self._stopping.set()
        self._thread.join()


@contextmanager
def readers_and_writer(site: ProvisionedSite) -> Iterator[tuple[Reader, Reader, Writer]]:
    """A consumer inside east; a consumer in analysis and a producer in west that use east over the WAN."""
    near = Reader(site, "east-3", "east", TOPIC)
    far = Reader(site, "analysis-3", "east", TOPIC)
    writer = Writer(site, "west-2", "east", FAR_TOPIC)
    try:
        yield near, far, writer
    finally:
        for each in (near, far, writer):
            each.close()


def wait_until(condition: Any, wait_max_s: float, what: str, explain: Any = lambda: "") -> float:
    """Waits for `condition`; returns after how many seconds it held."""
    start = time.monotonic()
    while not condition():
        assert time.monotonic() < start + wait_max_s, f"not within {wait_max_s:g} s: {what} {explain()}"
        time.sleep(0.2)
    return time.monotonic() - start


def mirror_status(site: ProvisionedSite, source: str) -> dict[str, Any]:
    url = site.outputs["analysis"]["mirrors"][source]
    status = site.call("analysis", lambda: httpx.get(url, timeout=10, trust_env=False).json())
    assert isinstance(status, dict)
    return status


def newest(found: Report, datacenter: str) -> Verdict | None:
    """The verdict on the latest hour in the report."""
    verdicts = [verdict for verdict in found.verdicts if verdict.datacenter == datacenter]
    return max(verdicts, key=lambda verdict: verdict.hour_ms, default=None)


def is_known_now(found: Report, datacenter: str) -> bool:
    verdict = newest(found, datacenter)
    return verdict is not None and verdict.hour_ms == found.judged_ms - found.judged_ms % HOUR_MS


def test_terraform_creates_them_over_the_wan_and_then_plans_no_change(
    provisioned_site: ProvisionedSite,
) -> None:
    site = provisioned_site
    brokers = {dc: {each["host"] for each in site.outputs[dc]["brokers"].values()} for dc in PLAN}
    assert brokers == {
        "east": {"east-1", "east-2"},
        "west": {"west-1"},
        "analysis": {"analysis-1", "analysis-2"},
    }
    assert "No changes." in site.terraform("plan", "-detailed-exitcode")


def test_units_connect_across_the_wan_from_analysis_alone(provisioned_site: ProvisionedSite) -> None:
    """As docs/operations/network.md says, for whoever writes the firewalls' rules."""
    site = provisioned_site
    served = {
        address
        for datacenter in ("east", "west")
        for address in (
            *(each["listen"] for each in site.outputs[datacenter]["brokers"].values()),
            site.outputs[datacenter]["registry_url"].removeprefix("http://"),
        )
    }

    def begun() -> set[tuple[str, str]]:
        """By units; the hosts of services have none, and Terraform runs on one of these."""
        found = site.network.begun()
        return {(host, f"{to}:{port}") for host, to, port in found if host not in SERVICES.values()}

    wait_until(lambda: {to for _, to in begun()} >= served, RESTORED_MAX_S, "all are used", begun)
    assert {to for _, to in begun()} == served
    assert {host for host, _ in begun()} <= {"analysis-1", "analysis-2"}


def test_a_datacenter_that_is_cut_off_for_a_minute_loses_nothing(provisioned_site: ProvisionedSite) -> None:
    site = provisioned_site
    store = AuditStore(site.audit_store_url)
    frontends = {datacenter: Frontend(site, datacenter) for datacenter in ("east", "west")}
    mirrored = Reader(site, "analysis-3", "analysis", TOPIC, len(frontends) * PARTITIONS)
    try:
        with readers_and_writer(site) as (near, far, writer):
            wait_until(
                lambda: (
                    {key[:4] for key in list(mirrored.keys)} == {b"east", b"west"}
                    and far.count
                    and writer.acknowledged
                ),
                LOCAL_MAX_S + RESTORED_MAX_S,
                "events of both datacenters in the analysis cluster, and use of east over the WAN",
            )
            wait_until(
                lambda: all(is_known_now(report(store, TOPIC, policy=POLICY), dc) for dc in frontends),
                RESOLVE_MAX_S,
                "the audit knows of both, and of this hour",
            )
            cut_off(site, store, near, mirrored)
            site.network.restore("east")
            seen, read, acknowledged = near.count, far.count, writer.acknowledged
            wait_until(
                lambda: sum(mirrored.keys[key] for key in list(near.keys)) >= seen,
                RESTORED_MAX_S,
                "the mirror continues, and copies what it had missed",
                lambda: mirror_status(site, "east"),
            )
            wait_until(lambda: far.count > max(read, seen - 1), RESTORED_MAX_S, "the far consumer continues")
            wait_until(
                lambda: writer.acknowledged > acknowledged + 1, RESTORED_MAX_S, "the far producer continues"
            )
            published = {datacenter: frontend.stop() for datacenter, frontend in frontends.items()}
            wait_until(lambda: near.count >= published["east"], LOCAL_MAX_S, "east's consumer reads all")
            wait_until(lambda: far.count >= published["east"], LOCAL_MAX_S, "the far consumer reads all")
        found = wait_until_resolved(lambda: report(store, TOPIC, policy=POLICY), RESOLVE_MAX_S)
        assert found.status is Status.COMPLETE, found.to_json()
        for datacenter, count in published.items():
            counts = [v.counts[:3] for v in found.verdicts if v.datacenter == datacenter]
            assert [sum(tier) for tier in zip(*counts, strict=True)] == [count] * 3
        wait_until(lambda: mirrored.count >= sum(published.values()), LOCAL_MAX_S, "all events are mirrored")
    finally:
        mirrored.close()
        store.close()
    every = {f"{dc}/{number}".encode(): 1 for dc, count in published.items() for number in range(count)}
    assert mirrored.keys == every, "each event of both is in the analysis cluster once"
    assert near.keys == far.keys == {key: 1 for key in every if key.startswith(b"east/")}
    assert writer.acknowledged == writer.sent
    written = Reader(site, "east-3", "east", FAR_TOPIC)
    try:
        wait_until(lambda: written.count >= writer.sent, LOCAL_MAX_S, "records of the far producer")
    finally:
        written.close()
    assert written.keys == {str(number).encode(): 1 for number in range(writer.sent)}


def cut_off(site: ProvisionedSite, store: AuditStore, near: Reader, mirrored: Reader) -> None:
    """A minute without east: services inside and west continue, and the audit does not report complete.

    A plan names the host that it cannot reach.
    """
    site.network.cut("east")
    until = time.monotonic() + CUT_S
    with ThreadPoolExecutor(1) as pool:
        planning = pool.submit(site.terraform, "plan", code=0)
        watch_the_cut(site, store, near, mirrored, until)
        printed = planning.result()
    assert f"the agent at https://{site.network.address('east-1')}:{AGENT_PORT} does not answer" in printed, (
        printed
    )


def watch_the_cut(
    site: ProvisionedSite, store: AuditStore, near: Reader, mirrored: Reader, until: float
) -> None:
    start = time.monotonic()
    wait_until(lambda: mirror_status(site, "east")["trouble"], NOTICE_MAX_S, "the mirror reports the problem")
    noticed_s = time.monotonic() - start
    seen: list[Status] = []
    while time.monotonic() < until:
        verdict = newest(report(store, TOPIC, policy=POLICY), "east")
        assert verdict is not None
        assert verdict.status not in (Status.LOST, Status.DUPLICATED), verdict.findings
        if time.monotonic() > start + NOTICE_MAX_S:
            seen.append(verdict.status)
        before, west = near.count, sum(key.startswith(b"west") for key in list(mirrored.keys))
        wait_until(lambda before=before: near.count > before, LOCAL_MAX_S, "east's own consumer continues")
        wait_until(
            lambda west=west: sum(key.startswith(b"west") for key in list(mirrored.keys)) > west,
            LOCAL_MAX_S,
            "west is still mirrored",
        )
        time.sleep(1.0)
    print(f"the mirror noticed after {noticed_s:.0f} s; the audit reported {seen}")
    assert seen and set(seen) <= {Status.PENDING, Status.UNKNOWN}
    assert near.count - sum(key.startswith(b"east") for key in list(mirrored.keys)) > PER_SECOND * CUT_S / 4
