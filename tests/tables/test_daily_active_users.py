"""The example of a program on sealed hours, as its DAG runs it."""

import json
import runpy
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Final

import pytest

from fix_warehouse import BASE_TIME_MS, ROOT, World, click, event_schema
from headrace.warehouse.seal import seal_hour

pytestmark = [pytest.mark.spark, pytest.mark.hdfs]

PROGRAM: Final = Path(__file__).parents[2] / "dags" / "programs" / "daily_active_users.py"
VIEW: Final = event_schema(
    {"name": "remote_host", "type": "string"}, {"name": "member_id", "type": ["null", "string"]}
)


def test_a_day_counts_what_is_sealed(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that came after the seal, of which no audit had judged, were in the result."""
    topic = world.topic("views", partitions=1)
    for first, count in ((0, 3), (3, 2)):
        hosts = [(number, f"192.0.2.{number % 2}") for number in range(first, first + count)]
        topic.publish(
            [click(number, BASE_TIME_MS, remote_host=host, member_id=None) for number, host in hosts], VIEW
        )
        topic.load()
        if first == 0:
            seal_hour(world.process.webhdfs_url, topic.name, BASE_TIME_MS, {}, root=ROOT)
    result = tmp_path / "result.json"
    named = {**world.addresses, "topic": topic.name, "day": "2023-11-14", "output": "/derived/users"}
    options = [word for name, value in named.items() for word in (f"--{name.replace('_', '-')}", value)]
    monkeypatch.setattr(sys, "argv", [str(PROGRAM), *options, "--result", str(result)])
    session = SimpleNamespace(read=world.spark.read, stop=lambda: None)
    monkeypatch.setattr("headrace.warehouse.session.spark_session", lambda _: session)
    runpy.run_path(str(PROGRAM), run_name="__main__")
    assert json.loads(result.read_text()) == [{"datacenter": "east", "users": 2, "views": 3, "hours": 1}]
