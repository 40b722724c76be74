"""The operator: things go wrong on purpose on the demo's site, and the commands say what, and what to do.

tests/kill kills each kind of unit while services publish; tests/fleet has what `up` and `down` do after a
kill.
"""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any, Final
from urllib.parse import urldefrag

import httpx
import pytest
from confluent_kafka import Consumer

from fix_chromium import Browser, Opened
from fix_days import Day, DemoSite, wait_until
from fix_small_disk import BROKER, RESERVE_BYTES, SIZE_BYTES, SmallDisk
from headrace.agent.home import AgentHome, AgentRecord
from headrace.agent.processes import is_alive, unit_processes
from headrace.agent.supervisor import Supervisor
from headrace.cli.errors import ExitCode

pytestmark = [pytest.mark.slow, pytest.mark.hdfs, pytest.mark.timeout(600)]

TOPIC: Final = "page-view"
GROUP: Final = "my\x1b[31mgroup"
"""A group's name may hold anything; this one would make a terminal write in red."""
WAIT_MAX_S: Final = 90.0
LISTED_MAX_S: Final = 5.0
READ_MAX_S: Final = 10.0
"""The records themselves, once it is known which brokers answer; or twice as long as before."""
LATE_MAX_S: Final = 2.5
TRIES_MAX: Final = 3
FREED_MIN_BYTES: Final = 20 << 20
FREED_WAIT_MAX_S: Final = 5.0


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
        output = ask(demo_site, "audit", "report", home=home, code=ExitCode.UNREACHABLE)
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


def test_a_hung_broker_hides_nothing_of_the_others(day: Day, demo_site: DemoSite) -> None:
    began_s = time.monotonic()
    ask(demo_site, "topics", "list")
    # Where the start of a command alone takes seconds, it asks for less long, but does not start faster.
    bound_s = max(LISTED_MAX_S, 2 * (time.monotonic() - began_s) + LATE_MAX_S)
    rows = json.loads(ask(demo_site, "status", "--json"))
    pid = next(row["pid"] for row in rows if row["unit"] == "east-broker-1")
    everything = ("consume", TOPIC, "--from", "beginning", "--to-end", "-o", "json")
    began_s = time.monotonic()
    count = len(demo_site.headrace(*everything).stdout.splitlines())
    records_s = max(READ_MAX_S, 2 * (time.monotonic() - began_s))
    silence = f"broker 1 at {demo_site.site.datacenter('east').brokers[1]} does not answer"
    os.kill(pid, signal.SIGSTOP)
    try:
        for words in (
            ("topics", "list"),
            ("topics", "describe", TOPIC),
            ("groups", "list"),
            everything,
        ):
            with day.step(f"beside a hung broker: headrace {' '.join(words[:2])}"):
                most_s = bound_s + (records_s if words[0] == "consume" else 0.0)
                took_s: list[float] = []
                # More than once only where other work took the processors for seconds.
                while not took_s or (took_s[-1] >= most_s and len(took_s) < TRIES_MAX):
                    began_s = time.monotonic()
                    done = demo_site.headrace(*words)
                    took_s.append(time.monotonic() - began_s)
                    if words[0] == "consume" and done.returncode == ExitCode.DONE:
                        assert len(done.stdout.splitlines()) == count, "another replica leads by then"
                    else:
                        assert (done.returncode, silence in done.stderr) == (ExitCode.UNREACHABLE, True), done
                assert took_s[-1] < most_s, (words, took_s)
    finally:
        os.kill(pid, signal.SIGCONT)
    wait_until(lambda: demo_site.headrace("topics", "list").returncode == 0, WAIT_MAX_S, "the broker is back")


# --- pages ---


def test_every_page_opens_in_a_browser_without_errors(
    day: Day, demo_site: DemoSite, browser: Browser
) -> None:
    site = demo_site.site
    east = site.datacenter("east")
    password = AgentHome(demo_site.home).read_token.read_text().strip()
    agent = f"http://{site.agent_address}/"
    pages = {
        "mirror": f"http://{site.mirror_status(site.mirrors[0])}/",
        "auditor": f"http://{site.analysis.auditor}/",
        "agent": agent,
        "broker": f"http://{east.broker_status(1)}/",
        "registry": f"http://{east.registry}/",
        "balancer": f"http://{east.balancer_status}/",
        "HDFS": f"{site.webhdfs_url}/",
    }
    links: set[str] = set()
    for name, url in pages.items():
        with day.step(f"the page of {name} in Chromium"):
            opened = browser.open(url, password=password if url == agent else None)
            check_page(opened, name)
            links |= {urldefrag(link).url for link in opened.links}
    with day.step(f"{len(links)} links of these pages"):
        assert set(pages.values()) <= links, "each page is reached from another one"
        for link in sorted(links):
            check_link(link, password if link.startswith(agent) else None)


def check_page(opened: Opened, name: str) -> None:
    assert opened.errors == [], (name, opened.errors)
    assert opened.title and len(opened.text) > 100, opened.text
    assert "not known" not in opened.text.splitlines()[0]
    assert opened.image.startswith(b"\x89PNG")


def check_link(link: str, password: str | None) -> None:
    answer = httpx.get(
        link,
        auth=None if password is None else ("operator", password),
        headers={"Accept": "text/html"},
        trust_env=False,
        follow_redirects=True,
        timeout=WAIT_MAX_S,
    )
    assert answer.status_code == 200, (link, answer.status_code)


# --- a full disk ---


def said(small: SmallDisk, *words: object, code: int = ExitCode.DONE, stdin: str = "") -> str:
    done = small.headrace(*words, stdin=stdin)
    output = done.stdout + done.stderr
    assert done.returncode == code, (words, output)
    assert "Traceback" not in output, output
    return output


def test_a_full_disk_locks_nobody_out(day: Day, small_disk_site: SmallDisk) -> None:
    small = small_disk_site
    brokers = ("-b", small.bootstrap)
    log = small.site.home / "logs" / f"{BROKER}.log"
    with day.step(f"terraform apply: a broker on a disk of {SIZE_BYTES >> 20} MiB"):
        small.apply()
    with day.step("30 MB of records; 85 %: status and the log warn"):
        for topic in ("fills", "stays"):
            said(small, "topics", "create", topic, *brokers)
        lines = f"{'x' * 900_000}\n" * 30
        said(small, "produce", "fills", *brokers, stdin=lines)
        small.fill(leave_bytes=SIZE_BYTES // 8)
        warned = said(small, "status")
        assert f"free: {small.site.home}/data/" in warned and "and 1 more folder;" in warned, warned
        wait_until(lambda: "bytes are free on the disk of" in log.read_text(), WAIT_MAX_S, "the log warns")
    with day.step("below the reserve: an append is refused"):
        small.fill(leave_bytes=RESERVE_BYTES // 2)
        wait_until(lambda: "appends are refused: the disk of" in log.read_text(), WAIT_MAX_S, "it refuses")
        assert (
            f"headrace.disk.free.min.bytes={RESERVE_BYTES}: free space, or delete topics" in log.read_text()
        )
        words = ("produce", "stays", *brokers, "--timeout", "3s")
        output = said(small, *words, code=ExitCode.NEGATIVE, stdin="refused\n")
        assert "1 of 1 records were not delivered: stays-" in output, output
        assert f"KAFKA_STORAGE_ERROR: the disk of {small.site.home}/data/{BROKER} has" in output
    with day.step("not one byte free: status, restart, plan; a message names its path"):
        small.fill(leave_bytes=0)
        assert "disk  100% used" in said(small, "status")
        assert "No changes." in small.workspace.plan(code=0)
        outputs = small.workspace.run("output", "-json")
        output = said(small, "context", "import", "full", code=ExitCode.NEGATIVE, stdin=outputs)
        assert str(small.site.home / "contexts") in output and "No space left on device" in output
        assert f"ready again  {BROKER}" in said(small, "restart", BROKER)
    with day.step("topics delete frees space at once"):
        before_bytes = small.free_bytes
        said(small, "topics", "delete", "fills", *brokers, "--yes")
        wait_until(
            lambda: small.free_bytes - before_bytes >= FREED_MIN_BYTES, FREED_WAIT_MAX_S, "the bytes are free"
        )
        wait_until(
            lambda: (
                small.headrace("produce", "stays", *brokers, "--timeout", "3s", stdin="taken\n").returncode
                == 0
            ),
            WAIT_MAX_S,
            "appends are accepted again",
        )
        assert "taken" in said(small, "consume", "stays", *brokers, "--from", "beginning", "--to-end")


# --- nobody supervises ---


def test_after_kill_9_of_agent_and_supervisord_status_is_right_and_down_ends_all(
    day: Day, small_disk_site: SmallDisk
) -> None:
    small = small_disk_site
    small.make_room()
    small.apply()
    home, units = small.site.home, small.pids()
    agent = AgentRecord.read(AgentHome(home).record)
    assert agent is not None
    # The agent first: it would start another supervisord at once.
    dead = (agent.pid, int(Supervisor(home).pid_path.read_text()))
    for pid in dead:
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not any(map(is_alive, dead)), WAIT_MAX_S, "both are dead")
    with day.step("kill -9 of agent and supervisord: headrace status"):
        rows = json.loads(small.headrace("status", "--json").stdout)
        assert {row["unit"]: row["pid"] for row in rows} == units
        assert {row["problem"] for row in rows} == {"running, supervised by nobody"}
        output = said(small, "status", code=ExitCode.NEGATIVE)
        assert "2 units run, but the agent and the supervisor that started them are gone" in output
    with day.step("make down, headrace down"):
        done = small.make_down()
        assert done.returncode == 0 and "the site is stopped; its data stays" in done.stdout, done
        assert not any(map(is_alive, units.values())) and not list(unit_processes(home))
        assert f"nothing was running in {home}" in said(small, "down")
