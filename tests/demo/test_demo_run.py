"""The demo on a real site: every line of an access log is in HDFS, and seven lost events are named."""

from __future__ import annotations

import re
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from fix_airflow import AirflowSite
from headrace.audit.evidence import PRODUCER_HOP, Status
from headrace.audit.report import report
from headrace.audit.store import AuditStore
from headrace.demo.main import run_demo
from headrace.demo.outcome import MUCH_UNPARSABLE
from headrace.demo.plan import TOPIC
from headrace.demo.recount import RunStart, count_rows
from headrace.fleet import terraform

pytestmark = [pytest.mark.slow, pytest.mark.hdfs, pytest.mark.spark, pytest.mark.timeout(900)]

SMALL_LOG = Path(__file__).parent / "access_log_small.txt"
REAL_LOG = Path(__file__).parents[3] / "shared" / "data" / "access_log"
# Prints the hour, as `2015-05-17 10`, of each line that has a time.
AWK = r"""
match($0, /\[[0-9][0-9]\/[A-Z][a-z][a-z]\/[0-9]+:[0-9][0-9]:[0-9:]+ \+0000\]/) {
    split(substr($0, RSTART + 1), part, /[\/:]/)
    month = (index("JanFebMarAprMayJunJulAugSepOctNovDec", part[2]) + 2) / 3
    printf "%s-%02d-%s %s\n", part[3], month, part[1], part[4]
}
"""


def awk_counts(path: Path) -> Counter[str]:
    done = subprocess.run(["awk", AWK, str(path)], capture_output=True, text=True, check=True)
    return Counter(done.stdout.splitlines())


def hdfs_counts(site: AirflowSite, hours_ms: list[int]) -> dict[str, int]:
    rows = count_rows(site.site.webhdfs_url, TOPIC, hours_ms, RunStart({}, 0))
    assert all(count == distinct for count, distinct in rows.values()), "a row is there twice"
    return {_hour(hour_ms): count for hour_ms, (count, _) in rows.items()}


def _hour(hour_ms: int) -> str:
    done = subprocess.run(
        ["date", "-u", "-d", f"@{hour_ms // 1000}", "+%Y-%m-%d %H"],
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


def test_every_line_of_an_access_log_is_in_hdfs_and_seven_lost_events_are_found(
    airflow_site: AirflowSite, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("headrace.site.site.Site.load", lambda: airflow_site.site)
    log = REAL_LOG if REAL_LOG.exists() else SMALL_LOG
    # Three of the small log's 119 lines do not parse, on purpose.
    code = 0 if log == REAL_LOG else MUCH_UNPARSABLE
    assert run_demo(access_log=log, publishing_s=4.0) == code, capsys.readouterr().out
    output = capsys.readouterr().out
    counted = awk_counts(log)
    store = AuditStore(airflow_site.site.audit_store_url)
    try:
        verdicts = report(store, TOPIC).verdicts
    finally:
        store.close()
    assert {verdict.status for verdict in verdicts} == {Status.COMPLETE}
    hours_ms = sorted({verdict.hour_ms for verdict in verdicts})
    assert hdfs_counts(airflow_site, hours_ms) == dict(counted)
    # Terraform's state is new, so it adds every unit, though all of them run already.
    assert terraform.missing(airflow_site.site) is not None or re.search(r"Terraform: \d+ added\n", output)
    assert "half way: reader 2 leaves" in output
    assert "published and stored counts agree in every hour; no duplicate rows" in output
    assert f"{len(hours_ms)} of {len(hours_ms)} hours sealed" in output
    assert set(airflow_site.sealed(TOPIC)) == set(hours_ms)

    assert run_demo(drop=7, event_count=600, publishing_s=4.0) == 1
    output = capsys.readouterr().out
    assert terraform.missing(airflow_site.site) is not None or "Terraform: no changes" in output
    store = AuditStore(airflow_site.site.audit_store_url)
    try:
        lost = [each for each in report(store, TOPIC).verdicts if each.status is Status.LOST]
    finally:
        store.close()
    findings = [finding for verdict in lost for finding in verdict.findings]
    assert {(verdict.topic, verdict.datacenter) for verdict in lost} == {(TOPIC, "west")}
    assert {(finding.hop, finding.service) for finding in findings} == {(PRODUCER_HOP, "frontend-3")}
    missing = sum(last - first + 1 for first, last in (finding.sequences or (0, -1) for finding in findings))
    assert missing == 7
    planted = re.findall(r"planted: (\d+) events .* sequences (\d+) to (\d+)", output)
    assert sum(int(count) for count, _, _ in planted) == 7
    for _, first, last in planted:
        assert re.search(rf"lost .*sequences? {first}( to {last})? of partition 0", output)
    # The hour stays unsealed, and Airflow's run fails with the audit's finding; the other hours are sealed.
    lost_hours_ms = {verdict.hour_ms for verdict in lost}
    assert f"{3 - len(lost_hours_ms)} of 3 hours sealed" in output
    (problem,) = re.findall(rf"the run failed, in the audit's words: {TOPIC}: (\d hours? .*)", output)
    for hour_ms in lost_hours_ms:
        assert f"{TOPIC}, west, {_hour(hour_ms)}:00, handed over by producer" in problem
    assert not lost_hours_ms & airflow_site.sealed(TOPIC).keys()
