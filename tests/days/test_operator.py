"""The operator: things go wrong on purpose on the demo's site, and the commands say what, and what to do.

tests/kill kills each kind of unit while services publish; tests/fleet has what `up` and `down` do after a
kill.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import pytest
from confluent_kafka import Consumer

from fix_days import Day, DemoSite, wait_until
from headrace.cli.errors import ExitCode

pytestmark = [pytest.mark.slow, pytest.mark.hdfs, pytest.mark.timeout(600)]

TOPIC: Final = "page-view"
GROUP: Final = "my\x1b[31mgroup"
"""A group's name may hold anything; this one would make a terminal write in red."""
WAIT_MAX_S: Final = 90.0


def ask(demo_site: DemoSite, *words: object, code: int = ExitCode.DONE, **options: Any) -> str:
    """Runs a command that must end with this code; returns what it printed."""
    done = demo_site.headrace(*words, **options)
    output = done.stdout + done.stderr
    assert done.returncode == code, (words, output)
    assert "Traceback" not in output and "\x1b" not in output, output
    return output


def test_a_group_that_lives_is_not_reset(day: Day, demo_site: DemoSite) -> None:
    site = demo_site.site.datacenter("east")
    with day.step("a group with a member joins"):
        consumer = Consumer(
            {"bootstrap.servers": site.bootstrap, "group.id": GROUP, "auto.offset.reset": "earliest"}
        )
        consumer.subscribe([TOPIC])
        wait_until(lambda: consumer.poll(1.0) is not None, WAIT_MAX_S, "the group reads")
        consumer.commit(asynchronous=False)
    reset = ("groups", "reset", GROUP, "--topic", TOPIC, "--to", "latest")
    try:
        with day.step("groups list and describe; a reset is refused"):
            assert "my\\x1b[31mgroup" in ask(demo_site, "groups", "list")
            described = ask(demo_site, "groups", "describe", GROUP)
            assert "kind kafka" in described and "members 1" in described
            refused = ask(demo_site, *reset, code=ExitCode.NEGATIVE)
            assert "has 1 live member" in refused
    finally:
        consumer.close()
    with day.step("without members: a dry run, a reset, a deletion"):
        wait_until(
            lambda: demo_site.headrace(*reset, "--dry-run").returncode == 0, WAIT_MAX_S, "the member has left"
        )
        rows = json.loads(demo_site.headrace("groups", "describe", GROUP, "--json").stdout)["partitions"]
        assert any(row["lag_bytes"] for row in rows), "the dry run changed nothing"
        ask(demo_site, *reset)
        rows = json.loads(demo_site.headrace("groups", "describe", GROUP, "--json").stdout)["partitions"]
        assert [row["lag_bytes"] for row in rows] == [0] * len(rows)
        ask(demo_site, "groups", "delete", GROUP, "--yes")
        assert GROUP not in json.loads(demo_site.headrace("groups", "list", "--json").stdout)


def test_wrong_words_and_wrong_places(day: Day, demo_site: DemoSite, tmp_path: Path) -> None:
    with day.step("a time in seconds instead of milliseconds"):
        line = json.dumps(
            {
                "header": {"time": 1_700_000_000},
                "remote_host": "192.0.2.7",
                "method": "GET",
                "path": "/",
                "status": 200,
            }
        )
        output = ask(demo_site, "produce", TOPIC, "--avro", code=ExitCode.USAGE, stdin=f"{line}\n")
        assert "line 1" in output and "seconds" in output
    with day.step("a wrong datacenter, a wrong context, a wrong address"):
        output = ask(demo_site, "topics", "list", "-d", "north", code=ExitCode.NEGATIVE)
        assert "'north'" in output and "east, west, analysis" in output
        output = ask(demo_site, "topics", "list", "--context", "prod", code=ExitCode.NEGATIVE)
        assert "prod" in output
        ask(demo_site, "topics", "list", "-b", "127.106.2.1:1", code=ExitCode.UNREACHABLE)
    with day.step("an audit report in a wrong home"):
        home = tmp_path / "elsewhere"
        output = ask(demo_site, "audit", "report", home=home, code=ExitCode.NEGATIVE)
        assert f"there is no audit store at {home}/data/analysis/audit.db" in output
        assert not home.exists()
    with day.step("a wrong site.yaml"):
        wrong = tmp_path / "wrong"
        wrong.mkdir()
        (wrong / "site.yaml").write_text(
            "datacenters:\n  east:\n    network: 127.1.0\n    broker_count: 99\n"
        )
        output = demo_site.headrace("status", home=wrong).stderr
        assert "line 4: datacenters.east.broker_count" in output
