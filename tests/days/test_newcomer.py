"""The newcomer: from a clone to the demo, an access log with a planted loss, a first event of one's own.

The pages' own commands, and the first topic of one's own, are in test_reader.py.
"""

from __future__ import annotations

import re
import select
import shutil
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from fix_days import DEMO_MAX_S, ROOT, Day, DemoSite
from headrace.agent.local import find_agent
from headrace.audit.findings import PRODUCER_HOP, Status, Verdict
from headrace.audit.report.report import report
from headrace.audit.store.store import AuditStore
from headrace.demo.plan import TOPIC
from headrace.demo.recount import RunStart, count_rows
from headrace.fleet import terraform
from headrace.warehouse.hdfs.client import HdfsClient
from headrace.warehouse.layout import TopicPaths
from headrace.warehouse.seal import seals
from shown_commands import blocks
from shown_runs import difference

pytestmark = [pytest.mark.slow, pytest.mark.hdfs, pytest.mark.spark, pytest.mark.timeout(900)]

SMALL_LOG = ROOT / "tests" / "demo" / "access_log_small.txt"
REAL_LOG = ROOT.parent / "shared" / "data" / "access_log"
LOST_EVENTS = 7
MAKE_FAILED = 2
LOGS_END_MS = 1_577_836_800_000
"""The lines of both logs are older than 2020, and what the demo generates is not."""
LINE_WAIT_S = 10.0
TRIES_MAX = 12
# Prints the hour, as `2015-05-17 10`, of each line that has a time.
AWK = r"""
match($0, /\[[0-9][0-9]\/[A-Z][a-z][a-z]\/[0-9]+:[0-9][0-9]:[0-9:]+ \+0000\]/) {
    split(substr($0, RSTART + 1), part, /[\/:]/)
    month = (index("JanFebMarAprMayJunJulAugSepOctNovDec", part[2]) + 2) / 3
    printf "%s-%02d-%s %s\n", part[3], month, part[1], part[4]
}
"""


def block_with(page: Path, text: str) -> tuple[str, ...]:
    """The lines of the page's code block in which this text is."""
    return next(each.lines for each in blocks(page.read_text()) if any(text in line for line in each.lines))


def test_a_checkout_with_a_space_in_its_path_says_so_at_once(day: Day, tmp_path: Path) -> None:
    folder = tmp_path / "my code"
    folder.mkdir()
    shutil.copy(ROOT / "Makefile", folder)
    with day.step("make demo in a path with a space"):
        done = subprocess.run(["make", "demo"], cwd=folder, capture_output=True, text=True, timeout=60)
    assert done.returncode == MAKE_FAILED
    assert "the path of this checkout has a space, with which HDFS, Spark and HAProxy do not" in done.stderr
    assert f'move it away from "{folder}"' in done.stderr
    assert len(list(folder.iterdir())) == 1, "nothing was set up"


def test_from_a_clone_to_the_demo(day: Day, demo_site: DemoSite) -> None:
    for what, seconds in demo_site.made:
        day.add(what, seconds)
    output = demo_site.demo.output
    assert demo_site.demo.code == 0, output
    assert "complete: 20,000 events published, 20,000 in HDFS, none lost, no duplicates" in output
    assert terraform.missing(demo_site.site) is not None or re.search(r"Terraform: \d+ added\n", output)
    assert "half way: reader 2 leaves" in output
    assert not difference(block_with(demo_site.checkout / "README.md", "audit: what each tier"), output), (
        output
    )
    # The password is told, and how to see it again.
    assert re.search(r"Airflow: user admin, password \S+\s+\(`headrace status` shows it, too\)", output)


def test_an_access_log_seven_lost_events_and_a_killed_broker(day: Day, demo_site: DemoSite) -> None:
    """A broker dies for good in the middle, and the audit still names exactly what was planted."""
    log = REAL_LOG if REAL_LOG.exists() else SMALL_LOG
    with (
        day.step("make demo ACCESS_LOG=… DROP=7 KILL=1"),
        demo_site.shell(demo_site.checkout, HEADRACE_DAGS=str(demo_site.checkout / "dags")) as shell,
    ):
        ran = shell.run(f"make demo ACCESS_LOG={log} DROP={LOST_EVENTS} KILL=1", timeout_s=DEMO_MAX_S)
    assert ran.code == MAKE_FAILED, ran.output
    assert terraform.missing(demo_site.site) is not None or "Terraform: no changes" in ran.output
    store = AuditStore(demo_site.site.audit_store_url)
    try:
        verdicts = [each for each in report(store, TOPIC).verdicts if each.hour_ms < LOGS_END_MS]
    finally:
        store.close()
    check_findings(verdicts, ran.output)
    check_rows(demo_site, verdicts, log)
    check_seals(demo_site, verdicts, ran.output)
    check_takeover(day, demo_site, ran.output)


def check_takeover(day: Day, demo_site: DemoSite, output: str) -> None:
    """Others took over what the killed broker led, and nobody started it again; here that is done at last."""
    output = " ".join(output.split())
    (number,) = re.findall(
        r"killed for good: broker (\d) of east \(SIGKILL, process \d+\) led .*page-view-0", output
    )
    # On a fast machine everything was published before the new leader was asked: then nothing was written.
    (leader,) = re.findall(r"page-view-0: broker (\d) took over after [\d.]+ s", output)
    assert leader != number
    unit = f"east-broker-{number}"
    agent = find_agent(demo_site.home)
    assert agent is not None
    with agent, day.step("the killed broker is started again"):
        assert agent.units([unit])[0].state == "STOPPED"
        assert agent.restart(unit, wait_s=60.0).is_ready


def lost_by_hour(verdicts: list[Verdict]) -> Counter[int]:
    found: Counter[int] = Counter()
    for verdict in verdicts:
        for finding in verdict.findings:
            first, last = finding.sequences or (0, -1)
            found[verdict.hour_ms] += last - first + 1
    return found


def check_findings(verdicts: list[Verdict], output: str) -> None:
    """The audit names exactly the events that were planted; all other hours are complete."""
    assert {verdict.status for verdict in verdicts} == {Status.COMPLETE, Status.LOST}
    findings = [finding for verdict in verdicts for finding in verdict.findings]
    assert {finding.hop for finding in findings} == {PRODUCER_HOP}
    assert {verdict.datacenter for verdict in verdicts if verdict.findings} == {"west"}
    assert lost_by_hour(verdicts).total() == LOST_EVENTS
    planted = re.findall(r"planted: (\d+) events .* sequences (\d+) to (\d+)", output)
    assert sum(int(count) for count, _, _ in planted) == LOST_EVENTS
    assert re.search(rf"not complete: .* events published, {LOST_EVENTS} lost, \d+ finding", output)


def check_rows(demo_site: DemoSite, verdicts: list[Verdict], log: Path) -> None:
    """HDFS holds, hour by hour, what `awk` counts in the file, but for the lost events."""
    done = subprocess.run(["awk", AWK, str(log)], capture_output=True, text=True, check=True)
    hours_ms = sorted({verdict.hour_ms for verdict in verdicts})
    rows = count_rows(demo_site.site.webhdfs_url, TOPIC, hours_ms, RunStart({}, 0))
    assert all(count == distinct for count, distinct in rows.values()), "a row is there twice"
    lost = lost_by_hour(verdicts)
    stored = Counter({hour(hour_ms): count + lost[hour_ms] for hour_ms, (count, _) in rows.items()})
    assert stored == Counter(done.stdout.splitlines())


def check_seals(demo_site: DemoSite, verdicts: list[Verdict], output: str) -> None:
    """The hours with a loss stay unsealed, and Airflow's run fails with the audit's finding."""
    hours_ms = {verdict.hour_ms for verdict in verdicts}
    lost_ms = set(lost_by_hour(verdicts))
    assert f"{len(hours_ms - lost_ms)} of {len(hours_ms)} hours sealed" in output
    (problem,) = re.findall(rf"the run failed, in the audit's words: {TOPIC}: (\d+ hours? .*)", output)
    for hour_ms in lost_ms:
        assert f"{TOPIC}, west, {hour(hour_ms)}:00, handed over by producer" in problem
    with HdfsClient(demo_site.site.webhdfs_url) as hdfs:
        sealed = seals(hdfs, TopicPaths("/data", TOPIC)).keys()
    assert hours_ms - lost_ms <= sealed and not lost_ms & sealed


def hour(hour_ms: int) -> str:
    command = ["date", "-u", "-d", f"@{hour_ms // 1000}", "+%Y-%m-%d %H"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def test_the_programs_that_README_shows(day: Day, demo_site: DemoSite) -> None:
    programs = [
        "\n".join(each.raw)
        for each in blocks(demo_site.localised((ROOT / "README.md").read_text()))
        if each.language == "python"
    ]
    publisher, reader = (demo_site.folder / name for name in ("publish.py", "read.py"))
    for path, text in zip((publisher, reader), programs[:2], strict=True):
        path.write_text(text)
    python = demo_site.checkout / ".venv" / "bin" / "python"
    with (
        day.step("publish and read by README's two programs"),
        subprocess.Popen([python, "-u", reader], stdout=subprocess.PIPE, text=True) as reading,
    ):
        try:
            assert reading.stdout is not None
            for _ in range(TRIES_MAX):
                subprocess.run([python, publisher], check=True, timeout=120)
                if select.select([reading.stdout], [], [], LINE_WAIT_S)[0]:
                    break
            assert re.fullmatch(r"\d+ \d+ b.*192\.0\.2\.7.*\n", reading.stdout.readline())
        finally:
            reading.terminate()
