"""`headrace audit drill` on a running site: the audit names what is planted, and its report has the score."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fix_cli import Headrace
from fix_site import RunningSite
from headrace.audit.topic.drills import CANARY_TOPIC
from headrace.drill.kinds import KINDS

pytestmark = [pytest.mark.slow, pytest.mark.hdfs, pytest.mark.timeout(900)]


def test_the_audit_names_what_a_drill_plants(headrace: Headrace, running_site: RunningSite) -> None:
    """All kinds in one datacenter: none is missed, none misplaced, nothing named by mistake."""
    ended = headrace("audit", "drill", "--datacenter", "east", "--timeout", "150s", "--json")
    found = ended.json
    assert ended.exit_code == 0, json.dumps(found, indent=1)
    assert (found["plants"], found["named"], found["false"]) == (len(KINDS), len(KINDS), 0)
    assert all(each["slowest_s"] is None or each["slowest_s"] > 0 for each in found["kinds"].values())
    # What it leaves behind is the truth, and nothing of its publishers.
    truth = Path(found["truth"])
    assert {each["service"] for each in json.loads(truth.read_text())["plants"]} == {
        each["service"] for each in found["each"]
    }
    assert [each.name for each in truth.parent.iterdir()] == ["truth.json"]
    # The site's own report has the score, and nothing of the canary's hours.
    report = headrace("audit", "report", "--json").json
    score = report["drill"]
    assert score["is_good"] and (score["found"], score["plants"]) == (len(KINDS), len(KINDS))
    assert CANARY_TOPIC not in {each["topic"] for each in report["verdicts"]}
    asked = headrace("audit", "report", "--topic", CANARY_TOPIC)
    assert asked.exit_code == 1 and "drill-" in asked.out
    assert f"the audit found {len(KINDS)} of {len(KINDS)} planted failures in the last 24 hours" in asked.out


def test_wrong_words_are_refused(headrace: Headrace) -> None:
    assert headrace("audit", "drill", "--kind", "fire").exit_code == 2
    assert headrace("audit", "drill", "--timeout", "5s").exit_code == 2
    assert headrace("audit", "drill", "--datacenter", "analysis").exit_code == 2
    assert headrace("audit", "drill", "--datacenter", "nowhere").exit_code != 0
