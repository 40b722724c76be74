"""`headrace audit drill` on a running site: the audit names what is planted, and its report has the score."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fix_cli import Headrace
from fix_site import RunningSite, wait_for
from headrace.audit.topic.drills import CANARY_TOPIC
from headrace.coordination import znodes
from headrace.coordination.session import ZooKeeperSession
from headrace.drill.file_kinds import FILE_KINDS
from headrace.drill.kinds import KINDS, RESENT_KIND
from headrace.warehouse.hdfs.client import HdfsClient

pytestmark = [pytest.mark.slow, pytest.mark.hdfs, pytest.mark.spark, pytest.mark.timeout(900)]

HARM_WAIT_MAX_S = 180.0
DATACENTERS = ("east", "west")
ALL = len(DATACENTERS) * len(KINDS) + len(FILE_KINDS)


def test_the_audit_names_what_a_drill_plants(headrace: Headrace, running_site: RunningSite) -> None:
    """All kinds in both datacenters, and in files: none is missed, misplaced, or named by mistake."""
    ended = headrace("audit", "drill", "--timeout", "150s", "--json")
    found = ended.json
    assert ended.exit_code == 0, json.dumps(found, indent=1)
    assert (found["plants"], found["named"], found["false"]) == (ALL, ALL, 0)
    assert found["without_warehouse"] is None and set(found["copied_s"]) == set(DATACENTERS)
    assert all(each["slowest_s"] is None or each["slowest_s"] > 0 for each in found["kinds"].values())
    # What it leaves behind is the truth, and nothing of its publishers.
    truth = Path(found["truth"])
    assert {each["service"] for each in json.loads(truth.read_text())["plants"]} == {
        each["service"] for each in found["each"]
    }
    assert [each.name for each in truth.parent.iterdir()] == ["truth.json"]
    # The site's own report has the score, and nothing of the canary's hours; nor has its warehouse the table.
    report = headrace("audit", "report", "--json").json
    score = report["drill"]
    assert score["is_good"] and (score["found"], score["plants"]) == (ALL, ALL)
    assert (score["files_found"], score["file_plants"]) == (len(FILE_KINDS), len(FILE_KINDS))
    assert score["copied_ms"] == round(max(found["copied_s"].values()) * 1_000) > 0
    assert CANARY_TOPIC not in {each["topic"] for each in report["verdicts"]}
    assert CANARY_TOPIC not in {each["topic"] for each in report["verified"]}
    assert not {CANARY_TOPIC, "_drills"} & {
        each["topic"] for each in headrace("warehouse", "ls", "--json").json
    }
    asked = headrace("audit", "report", "--topic", CANARY_TOPIC)
    assert asked.exit_code == 1 and "drill-" in asked.out
    assert f"the audit found {ALL} of {ALL} planted failures in the last 24 hours" in asked.out


def test_the_next_drill_is_not_disturbed_by_what_the_last_one_harmed(
    headrace: Headrace, running_site: RunningSite
) -> None:
    """In the same table, and mostly the same hours, whose harmed files stay; both stay in the score. Between
    them one is killed with its harm done, of which no score is ever told.
    """
    kinds = (RESENT_KIND, *FILE_KINDS)
    before = score_of(headrace)
    chosen = [word for kind in kinds for word in ("--kind", kind)]
    killed_once_it_has_harmed("audit", "drill", "-d", "east", *chosen)
    ended = headrace("audit", "drill", "-d", "east", *chosen, "--json")
    found = ended.json
    assert ended.exit_code == 0, json.dumps(found, indent=1)
    assert (found["plants"], found["named"], found["false"]) == (len(kinds), len(kinds), 0)
    (resent,) = [each for each in found["each"] if each["kind"] == RESENT_KIND]
    assert resent["statuses"] == ["duplicated"] and resent["outcome"] == "named"
    score = score_of(headrace)
    assert score.pop("is_good") and not score["doubted"]
    assert {name: count - before[name] for name, count in score.items()} == {
        "drills": 1,
        "found": len(kinds),
        "files_found": len(FILE_KINDS),
        "doubted": 0,
    }
    with HdfsClient(running_site.site.webhdfs_url) as hdfs:
        assert [each.name for each in hdfs.entries("/data/_drills")] == ["1"]


def score_of(headrace: Headrace) -> dict[str, int]:
    """Of all drills of this site by now: other tests hold some."""
    names = ("is_good", "drills", "found", "files_found", "doubted")
    score = headrace("audit", "report", "--json").json["drill"]
    return {name: score[name] if score else 0 for name in names}


def killed_once_it_has_harmed(*words: str) -> None:
    """Runs a drill in a process, and kills it, and all that it started, once a file is harmed."""
    folder = Path(os.environ["HEADRACE_STATE_DIR"]) / "drills"
    before = set(folder.glob("*/truth.json"))

    def has_harmed() -> str | None:
        for truth in set(folder.glob("*/truth.json")) - before:
            if any(plant["path"] for plant in json.loads(truth.read_text())["plants"]):
                return None
        return "no file is harmed yet" if process.poll() is None else "it has ended"

    command = [sys.executable, "-m", "headrace.cli", *words]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, start_new_session=True) as process:
        try:
            wait_for(has_harmed, HARM_WAIT_MAX_S, "the drill harms a file")
        finally:
            os.killpg(process.pid, signal.SIGKILL)


def test_without_the_warehouse_it_drills_the_rest_and_says_so(
    headrace: Headrace, running_site: RunningSite
) -> None:
    words = ("audit", "drill", "-d", "east", "--kind", "nothing planted")
    ended = headrace(*words, "--no-warehouse")
    assert ended.exit_code == 0
    assert "the warehouse is not drilled: --no-warehouse" in ended.out
    assert "the copy had the events of east within" in ended.out
    # While another drill has the table, from whatever host, this one leaves it alone.
    with ZooKeeperSession(str(running_site.site.analysis.zookeeper)) as session:
        held = session.hold_ephemeral(znodes.DRILL, b"another-drill")
        ended = headrace("audit", "drill", "-d", "east", "--kind", "file cut in HDFS")
        held.release()
    assert ended.exit_code == 3
    assert "drill another-drill works on its table; repeat once it has ended" in ended.err


def test_wrong_words_are_refused(headrace: Headrace) -> None:
    assert headrace("audit", "drill", "--kind", "fire").exit_code == 2
    assert headrace("audit", "drill", "--timeout", "5s").exit_code == 2
    assert headrace("audit", "drill", "--datacenter", "analysis").exit_code == 2
    assert headrace("audit", "drill", "--datacenter", "nowhere").exit_code != 0
