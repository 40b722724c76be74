"""The pages of all processes: well-formed, escaped, bounded, cheap; `/` beside `/status`."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fix_pages import EVIL, PageReader
from headrace.agent.page import locked
from headrace.agent.page import page as agent_page
from headrace.agent.report import DataDisk, UnitReport
from headrace.audit.counting.page import page as auditor_page
from headrace.balancer.page import page as balancer_page
from headrace.broker.page import page as broker_page
from headrace.coordination.session import SessionState
from headrace.mirror.page import page as mirror_page
from headrace.process.neighbours import FILE_MAX_BYTES, PageAddress, file_text, neighbours
from headrace.process.page import (
    HEADERS,
    LINES_MAX,
    ROWS_MAX,
    TEXT_MAX,
    Lines,
    Link,
    Mark,
    Page,
    Table,
    Tone,
    duration,
    render,
    size,
    wants_page,
)
from headrace.process.status import StatusServer
from headrace.registry.page import page as registry_page
from headrace.registry.subjects import Subject, SubjectVersion

NOW_MS = 1_795_399_205_000
SHOWN = r"<script>alert(1)</script>\"'>&\x1b[2J\u202e</style>".replace('\\"', '"')


def mirror_status(name: str = EVIL, count: int = 3) -> dict[str, Any]:
    states = ("caught_up", "copying", "halted", name)
    partitions: list[dict[str, Any]] = [
        {
            "topic": name,
            "partition": number,
            "target_partition": number,
            "address": 7,
            "source_end": 9,
            "lag_bytes": 2,
            "bytes_copied": 1 << 30,
            "state": states[number % 4],
            "reason": name,
            "gap": None,
            "skipped": [],
            "skipped_bytes": 0,
        }
        for number in range(count)
    ]
    return {
        "source": "east",
        "target": "analysis",
        "trouble": name,
        "topic_troubles": {name: name},
        "lag_bytes": 2 * count,
        "partitions": partitions,
    }


def broker_status(name: str = EVIL) -> dict[str, Any]:
    return {
        "broker": 1,
        "datacenter": "east",
        "partitions": 12,
        "offline": {"count": 1, "partitions": [{"partition": name, "problem": name}]},
        "connections": {
            "open": 3,
            "max": 1000,
            "accepted": 12345,
            "refused": {name: 1},
            "closed_by_broker": {name: 2},
            "receiving_bytes": 0,
            "unsent_bytes": 4096,
        },
        "disk": {
            "directory": name,
            "free_bytes": None,
            "size_bytes": None,
            "reserve_bytes": 1 << 30,
            "refuses_appends": True,
        },
        "clock": {"ahead_ms": -90_500, "is_apart": True},
        "loop": {"late_ms": 12_500, "is_stuck": True},
        "under_replicated": 2,
        "leaderless": 1,
    }


def auditor_status(name: str = EVIL) -> dict[str, Any]:
    aside = {
        "topic": name,
        "partition": 0,
        "records": 1,
        "first_offset": 1,
        "last_offset": 1,
        "problem": name,
    }
    row = {"topic": name, "partition": 0, "datacenter": name, "counted_to": 5, "reason": name}
    store = {"store": name, "set_aside_store": name, "folded": 1, "refused": 0, "unreadable": 0}
    score = {"drills": 1, "found": 1, "plants": 2, "is_good": False, "slowest_ms": 41_000}
    return {
        "datacenter": "east",
        "trouble": name,
        "unsaid": 0,
        "corrupt": 1,
        "set_aside": [aside],
        "partitions": [row],
        "reports_of_counts": 3,
        "store": {**store, "set_aside": [aside], "drill": score, "trouble": name},
    }


def balancer_status(name: str = EVIL) -> dict[str, Any]:
    row = {"broker_id": 1, "address": name, "phase": name, "is_up": False, "check": name}
    gone = {"broker_id": 2, "address": name, "withdrawn_ms": NOW_MS, "condition": name, "check": name}
    return {
        "engine": "haproxy",
        "why": name,
        "listen": "127.1.0.3:9092",
        "problem": name,
        "backends": [row],
        "withdrawn": [gone],
    }


def unit_report(name: str = EVIL) -> UnitReport:
    fields: dict[str, Any] = {"name": name, "kind": name, "datacenter": name, "configuration": {}, "note": ""}
    fields |= {"state": "RUNNING", "problem": name, "notice": "", "drift": (), "pid": 7, "uptime_s": 99_000}
    fields |= {"version": "1", "definition": "", "requires": (), "listens": (name,), "log": name}
    return UnitReport(**fields, disk=DataDisk(name, 1, 100))


def hostile_pages() -> dict[str, Page]:
    about = {"host": EVIL, "home": EVIL, "version": EVIL, "started": EVIL}
    subject = Subject(EVIL, (SubjectVersion(1, 7),), 1)
    return {
        "mirror": mirror_page(mirror_status()),
        "broker": broker_page(broker_status()),
        "auditor": auditor_page(auditor_status()),
        "balancer": balancer_page(balancer_status(), EVIL),
        "registry": registry_page(SessionState.LOST, [subject]),
        "agent": agent_page(about, [unit_report()], {EVIL: "javascript:alert(1)"}, EVIL),
        "locked": locked(),
    }


@pytest.mark.parametrize("name", hostile_pages())
def test_pages_are_well_formed_and_show_hostile_names_as_text(name: str) -> None:
    html = render(hostile_pages()[name], NOW_MS, refreshes=True)
    read = PageReader(html.decode())
    if name != "locked":
        assert SHOWN in read.text
    assert "2026-11-23 02:00:05 UTC" in read.text
    assert not any(character in html.decode() for character in ("\x1b", "\u202e"))


def test_commands_in_a_text_are_shown_as_commands() -> None:
    """Whatever stands between the backticks stays text."""
    state = Mark("well", Tone.GOOD)
    text = f"Run `headrace audit report`, not `{EVIL}` or `"
    shown = render(Page("a", state, about=text, problems=(text,)), NOW_MS).decode()
    assert shown.count("Run <code>headrace audit report</code>, not <code>") == 2
    PageReader(shown)
    assert "<script>" not in shown and shown.count("<code>") == shown.count("</code>") == 4


def test_a_page_loads_and_runs_nothing() -> None:
    [style] = PageReader(render(locked(), NOW_MS).decode()).styles
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    assert HEADERS["Content-Security-Policy"] == (
        f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'"
    )
    assert "url(" not in style
    assert "@import" not in style


def test_only_long_words_are_broken() -> None:
    rows = [("a short text", "x" * 41, Lines([Mark("y" * 41, Tone.BAD)]), Link("z" * 40, "/"))]
    html = render(Page("t", Mark("s", Tone.GOOD), tables=[Table("T", ("a", "b", "c", "d"), rows)]), NOW_MS)
    assert html.count(b'<td class="long"') == 2


def test_pages_are_bounded() -> None:
    rows = [("x" * 5_000, Lines(["y"] * 500)) for _ in range(ROWS_MAX + 1_234)]
    html = render(Page("t", Mark("well", Tone.GOOD), tables=(Table("Rows", ("a", "b"), rows),)), NOW_MS)
    read = PageReader(html.decode())
    assert read.texts.count("x" * (TEXT_MAX - 1) + "…") == ROWS_MAX
    assert read.texts.count("y") == ROWS_MAX * LINES_MAX
    assert f"and {500 - LINES_MAX} more" in read.texts
    assert "1,234 more rows are not shown." in read.texts


def test_halted_copies_come_first() -> None:
    rows = mirror_page(mirror_status("t", 4_000)).tables[0].rows
    assert all(
        row[2] == Mark("halted", Tone.BAD) or row[2] == Mark("t", Tone.PLAIN) for row in rows[:ROWS_MAX]
    )


@pytest.mark.parametrize(
    "url", ["javascript:alert(1)", "//elsewhere", "data:text/html,x", " http://a", "JAVASCRIPT:x", ""]
)
def test_only_web_addresses_become_links(url: str) -> None:
    read = PageReader(render(Page("t", Mark("s", Tone.GOOD), links=[Link("go", url)]), NOW_MS).decode())
    assert url not in read.links


@pytest.mark.parametrize(
    ("accept", "expected"),
    [
        ("text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8", True),
        ("*/*", False),
        ("", False),
        ("application/json", False),
        ("application/json, text/html;q=0.5", False),
        ("text/html;q=0", False),
        ("text/html;q=x", False),
        ("TEXT/HTML; charset=utf-8", True),
        ("a/b," * 10_000 + "text/html", False),
    ],
)
def test_browsers_get_the_page_and_programs_what_they_got(accept: str, expected: bool) -> None:
    assert wants_page(accept) is expected


def test_numbers_have_units() -> None:
    assert [size(each).text for each in (0, 1023, 1024, 5 << 30, 5_000 << 40)] == [
        *("0 B", "1023 B", "1.0 KiB", "5.0 GiB", "5,000.0 TiB")
    ]
    assert [duration(each).text for each in (1, 99, 100, 5999, 6000, 172_800)] == [
        *("1 s", "99 s", "1 min", "99 min", "1 h 40 min", "2 d 0 h")
    ]


# --- neighbours ---


def test_a_page_links_the_other_pages_of_its_host(tmp_path: Path) -> None:
    path = tmp_path / "pages.json"
    path.write_text(
        file_text(
            [
                PageAddress("agent", "", "http://127.9.0.9:8084/"),
                PageAddress("east-broker-1", "east", "http://127.1.0.11:8085/"),
                PageAddress("east-auditor", "east", "javascript:alert(1)"),
            ]
        )
    )
    found = neighbours({"HEADRACE_PAGES": str(path), "HEADRACE_UNIT": "east-broker-1"})
    assert [(each.datacenter, each.name, each.is_here) for each in found] == [
        ("", "agent", False),
        ("east", "broker-1", True),
        ("east", "auditor", False),
    ]
    read = PageReader(render(locked(), NOW_MS, neighbours=found).decode())
    assert "http://127.9.0.9:8084/" in read.links
    assert "http://127.1.0.11:8085/" not in read.links, "it is this page"
    assert "auditor" in read.texts


@pytest.mark.parametrize(
    "text", ["", "{", "[1]", '[{"unit": 1, "datacenter": "", "url": ""}]', '[{"x": ""}]']
)
def test_a_damaged_file_of_pages_costs_only_the_links(tmp_path: Path, text: str) -> None:
    path = tmp_path / "pages.json"
    path.write_text(text)
    assert neighbours({"HEADRACE_PAGES": str(path)}) == []
    assert neighbours({"HEADRACE_PAGES": str(tmp_path / "none")}) == []
    assert neighbours({}) == []
    path.write_text(f"[{' ' * FILE_MAX_BYTES}]")
    assert neighbours({"HEADRACE_PAGES": str(path)}) == []


# --- served ---


class Counted:
    """A page, and how often it was made."""

    def __init__(self) -> None:
        self.made_count = 0
        self.entered = threading.Event()
        self.may_end = threading.Event()

    def page(self, status: dict[str, Any]) -> Page:
        self.made_count += 1
        self.entered.set()
        assert self.may_end.wait(60)
        return mirror_page(status)


@pytest.fixture
def counted() -> Counted:
    return Counted()


@pytest.fixture
def server(counted: Counted) -> Iterator[StatusServer]:
    running = StatusServer("127.0.0.1:0", mirror_status, counted.page)
    yield running
    running.close()


def get(server: StatusServer, path: str) -> tuple[bytes, Any]:
    with urllib.request.urlopen(f"http://{server.address}{path}", timeout=60) as response:
        return response.read(), response.headers


def test_the_page_stands_beside_the_status(server: StatusServer, counted: Counted) -> None:
    counted.may_end.set()
    body, headers = get(server, "/")
    assert headers["Content-Type"] == "text/html; charset=utf-8"
    assert {name: headers[name] for name in HEADERS} == dict(HEADERS)
    assert "every 5 s" in PageReader(body.decode()).texts
    assert b'http-equiv="refresh"' not in body
    assert b'http-equiv="refresh" content="5"' in get(server, "/?refresh=5")[0]
    assert b'http-equiv="refresh"' not in get(server, "/?refresh=0;url=http://elsewhere")[0]
    assert json.loads(get(server, "/status")[0]) == mirror_status()
    with pytest.raises(urllib.error.HTTPError, match="404"):
        get(server, "/nowhere")


def test_however_many_ask_a_page_is_made_once(server: StatusServer, counted: Counted) -> None:
    bodies: list[bytes] = []
    threads = [threading.Thread(target=lambda: bodies.append(get(server, "/")[0])) for _ in range(12)]
    for thread in threads:
        thread.start()
    assert counted.entered.wait(60)
    assert json.loads(get(server, "/status")[0]), "the status does not wait for the page"
    counted.may_end.set()
    for thread in threads:
        thread.join(60)
    assert len(bodies) == 12
    assert counted.made_count < 12
