"""docs/first-topic.md on the demo's site: a new topic, a service, a load, a sealed hour."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fix_airflow import LOAD_WAIT_S, SEAL_WAIT_S, AirflowSite
from fix_days import DemoSite
from headrace.warehouse.layout import HOUR_MS

pytestmark = [pytest.mark.slow, pytest.mark.hdfs, pytest.mark.spark, pytest.mark.timeout(600)]

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples" / "first-topic"
TOPIC = "order-placed"
COUNT = 200


def test_a_new_topic_reaches_a_sealed_hour(
    demo_site: DemoSite, airflow_site: AirflowSite, tmp_path: Path
) -> None:
    for name in ("order-placed.avsc", "checkout.py"):
        shutil.copy(EXAMPLES / name, tmp_path)
    # Its DAG has no slot during the test.
    words = ("topics", "new", TOPIC, tmp_path / "order-placed.avsc", "--load", "schedule=null", "--json")
    done = demo_site.headrace(*words)
    assert done.returncode == 0, done.stderr
    made = json.loads(done.stdout)
    assert made["complete"]
    outcomes = {(step["what"], step["where"]): step["outcome"] for step in made["steps"]}
    assert outcomes["load", "Airflow"] == outcomes["DAGs", "Airflow"] == "made"
    client = airflow_site.client
    assert {client.is_paused(f"{kind}-{TOPIC}") for kind in ("load", "seal")} == {False}
    again = json.loads(demo_site.headrace(*words).stdout)
    assert {step["outcome"] for step in again["steps"]} == {"there already"}

    east = airflow_site.site.sources[0]
    addresses = (east.name, east.producer_bootstrap, east.registry_url, str(COUNT))
    before_ms = time.time_ns() // 1_000_000
    subprocess.run([sys.executable, tmp_path / "checkout.py", *addresses], check=True, timeout=LOAD_WAIT_S)
    airflow_site.wait_mirrored(TOPIC)
    load = client.wait(airflow_site.load(TOPIC), timeout_s=LOAD_WAIT_S)
    client.wait(airflow_site.seal_after(load, TOPIC), timeout_s=SEAL_WAIT_S)
    sealed = airflow_site.sealed(TOPIC)
    assert sum(sealed.values()) == COUNT
    assert min(sealed) >= (before_ms - 2 * HOUR_MS) // HOUR_MS * HOUR_MS
