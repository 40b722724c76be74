"""The metrics of all processes: the text format's own rules, hostile names, bounds; where they are served."""

from __future__ import annotations

import re
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

import pytest

from fix_pages import EVIL
from headrace.audit.counting.metrics import metrics as auditor_metrics
from headrace.audit.findings import MIRROR_HOP, PRODUCER_HOP
from headrace.audit.report.drill_scores import DrillScore
from headrace.audit.report.naming import DetectionTime
from headrace.balancer.metrics import metrics as balancer_metrics
from headrace.broker.metrics import metrics as broker_metrics
from headrace.mirror.metrics import metrics as mirror_metrics
from headrace.process import metrics as exposition
from headrace.process.metrics import KIND, LABEL_MAX_CHARS, LEFT_OUT, Metric, Sample, metric, text_of
from headrace.process.status import StatusServer

PAGE: Final = Path(__file__).parents[2] / "docs" / "metrics.md"
SAMPLE = re.compile(
    r'(?P<name>[a-z0-9_]+)(\{(?P<labels>([a-z_]+="([^"\\\n]|\\[\\"n])*",?)+)\})? '
    r"(?P<value>-?[0-9][0-9.e+-]*|NaN|[+-]Inf)"
)


def mirror_status(name: str = EVIL, count: int = 2) -> dict[str, Any]:
    row = {"topic": name, "target_partition": 1, "address": 7, "source_end": 9, "lag_bytes": 2}
    row |= {"bytes_copied": 1 << 30, "state": "halted", "reason": name, "gap": None, "skipped": []}
    return {
        "source": "east",
        "target": "analysis",
        "trouble": name,
        "topic_troubles": {name: name},
        "lag_bytes": 4,
        "partitions": [{**row, "partition": number, "skipped_bytes": 0} for number in range(count)],
    }


def broker_status(name: str = EVIL) -> dict[str, Any]:
    connections: dict[str, Any] = {"open": 3, "max": 1000, "accepted": 12345, "refused": {name: 1}}
    connections |= {"accept_failures": 0, "creation_rate_pauses": 1, "closed_by_broker": {name: 2, "idle": 3}}
    connections |= {"receiving_bytes": 0, "passed_on_bytes": 0, "receiving_max_bytes": 1 << 26}
    connections |= {"partial_requests": 0, "waiting_for_room": 0, "unsent_bytes": 9, "unsent_max_bytes": 99}
    disk = {
        "directory": name,
        "free_bytes": None,
        "size_bytes": None,
        "reserve_bytes": 1,
        "refuses_appends": True,
    }
    offline = {"count": 1, "partitions": [{"partition": name, "problem": name}]}
    return {
        "broker": 1,
        "datacenter": "east",
        "partitions": 12,
        "followed": 3,
        "offline": offline,
        "connections": connections,
        "disk": disk,
        "clock": {"ahead_ms": 90_500, "is_apart": True},
        "loop": {"late_ms": 12_500, "is_stuck": True},
        "under_replicated": 2,
        "leaderless": 1,
    }


def balancer_status(name: str = EVIL) -> dict[str, Any]:
    figures = {"connections": 1, "connections_total": 2, "connect_errors": 3, "bytes_in": 4, "bytes_out": 5}
    known = {"broker_id": 1, "address": name, "phase": name, "is_up": True, **figures, "check": name}
    new = {"broker_id": 2, "address": name, "phase": name, "is_up": False}
    return {"engine": "haproxy", "problem": name, "backends": [known, new], "withdrawn": [{"broker_id": 3}]}


def auditor_status(name: str = EVIL) -> dict[str, Any]:
    aside = {
        "topic": name,
        "partition": 0,
        "records": 4,
        "first_offset": 1,
        "last_offset": 1,
        "problem": name,
    }
    row = {"topic": name, "partition": 0, "datacenter": name, "counted_to": 1 << 60, "reason": name}
    times = [DetectionTime(PRODUCER_HOP, 7, 1_500, 9_000, 12_345), DetectionTime(MIRROR_HOP, 1, 2, 2, 2)]
    score = DrillScore(1, 18, 17, 1, 0, 0, 0, 2, 5_000, 41_000, 1_795_399_205_000, name)
    store = {"store": name, "set_aside_store": name, "folded": 10, "refused": 2, "unreadable": 3}
    return {
        "datacenter": "east",
        "trouble": name,
        "unsaid": 0,
        "corrupt": 1,
        "set_aside": [aside],
        "partitions": [row],
        "reports_of_counts": 3,
        "store": {
            **store,
            "set_aside": [aside, aside],
            "detection": [each._asdict() for each in times],
            "drill": score.to_json(),
            "looked_ms": 1_795_399_205_000,
            "trouble": "",
        },
    }


ALL: Final[dict[str, Callable[[], Iterable[Metric]]]] = {
    "auditor": lambda: auditor_metrics(auditor_status()),
    "balancer": lambda: balancer_metrics(balancer_status()),
    "broker": lambda: broker_metrics(broker_status()),
    "mirror": lambda: mirror_metrics(mirror_status()),
}


def lines(metrics: Iterable[Metric]) -> list[str]:
    return text_of(metrics).decode().splitlines()


@pytest.mark.parametrize("process", ALL)
def test_each_line_is_one_of_the_format_and_each_series_is_there_once(process: str) -> None:
    """As Prometheus reads it: HELP and TYPE before the samples of a metric, which stand together."""
    text = text_of(ALL[process]()).decode()
    assert text.endswith("\n") and "\r" not in text
    named, kinds = "", {}
    series: Counter[str] = Counter()
    for line in text.split("\n")[:-1]:
        if line.startswith("# HELP "):
            named = line.split(" ")[2]
            assert named not in kinds and len(line.split(" ", 3)[3]) > 3
        elif line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            assert name == named
            kinds[name] = kind
        else:
            found = SAMPLE.fullmatch(line)
            assert found is not None and found["name"] == named, line
            series[line.rpartition(" ")[0]] += 1
    assert series and set(series.values()) == {1}
    assert all((kind == "counter") == name.endswith("_total") for name, kind in kinds.items())
    assert all(name.startswith("headrace_") for name in kinds)


def test_hostile_names_stay_within_their_label() -> None:
    evil = 'a"b\\c\nd\ud800{}' + "é" * LABEL_MAX_CHARS
    found = lines([metric("headrace_x", "What\nit \\ means", 1, topic=evil, partition=3)])
    assert found[0] == r"# HELP headrace_x What\nit \\ means"
    assert found[2].startswith(r'headrace_x{topic="a\"b\\c\nd?{}ééé') and found[2].endswith(
        '…",partition="3"} 1'
    )


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (True, "1"),
        (False, "0"),
        (0, "0"),
        (1 << 63, "9223372036854775808"),
        (0.1, "0.1"),
        (1e300, "1e+300"),
        (float("inf"), "+Inf"),
        (float("-inf"), "-Inf"),
        (float("nan"), "NaN"),
    ],
)
def test_numbers_are_written_as_go_reads_them(value: float, written: str) -> None:
    assert lines([metric("headrace_x", "what", value)])[2] == f"headrace_x {written}"


def test_what_is_not_known_is_left_out() -> None:
    unknown = Metric("headrace_x", "what", (Sample(None),))
    assert lines([unknown]) == lines([])


def test_of_two_samples_with_the_same_labels_one_is_there() -> None:
    twice = Metric("headrace_x", "what", (Sample(1, {"topic": "a"}), Sample(2, {"topic": "a"})))
    assert [line for line in lines([twice]) if line.startswith("headrace_x")] == ['headrace_x{topic="a"} 1']


def test_samples_are_bounded_and_those_left_out_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exposition, "SAMPLES_MAX", 100)
    found = lines([*mirror_metrics(mirror_status("t", 60)), metric("headrace_last", "what", 1)])
    samples = [line for line in found if not line.startswith(("#", LEFT_OUT))]
    assert len(samples) == 100 and "headrace_last" not in "".join(samples)
    assert found[-1] == f"{LEFT_OUT} {6 + 3 * 60 + 1 - 100}"


@pytest.mark.parametrize(
    ("name", "label"), [("headrace_X", "topic"), ("up", "topic"), ("headrace_x", "to-pic")]
)
def test_names_that_prometheus_would_refuse_are_refused(name: str, label: str) -> None:
    with pytest.raises(ValueError, match="is no name of a"):
        text_of([Metric(name, "what", (Sample(1, {label: "a"}),))])


def test_an_auditor_tells_how_fast_losses_are_named_and_how_well_drills_went() -> None:
    found = {
        line for line in lines(auditor_metrics(auditor_status())) if "detection" in line or "drill" in line
    }
    assert found >= {
        'headrace_audit_detection_findings{hop="producer to datacenter"} 7',
        'headrace_audit_detection_p50_seconds{hop="producer to datacenter"} 1.5',
        'headrace_audit_detection_p99_seconds{hop="producer to datacenter"} 9.0',
        'headrace_audit_detection_slowest_seconds{hop="producer to datacenter"} 12.345',
        'headrace_audit_detection_p50_seconds{hop="datacenter to analysis"} 0.002',
        "headrace_audit_drill_good 0",
        "headrace_audit_drill_plants 18",
        "headrace_audit_drill_found 17",
        "headrace_audit_drill_missed 1",
        "headrace_audit_drill_false 2",
        "headrace_audit_drill_slowest_seconds 41.0",
        "headrace_audit_drill_last_timestamp_seconds 1795399205.0",
        "# TYPE headrace_audit_detection_p99_seconds gauge",
    }


@pytest.mark.parametrize(("looked_ms", "expected"), [(1_795_399_205_000, ["0.0"]), (None, [])])
def test_an_auditor_that_knows_of_no_drill_says_so(looked_ms: int | None, expected: list[str]) -> None:
    """Else the alert would end once the last drill is forgotten, and never come where none ever ran."""
    status = auditor_status()
    status["store"] |= {"drill": None, "looked_ms": looked_ms}
    name = "headrace_audit_drill_last_timestamp_seconds "
    found = lines(auditor_metrics(status))
    assert [line.removeprefix(name) for line in found if line.startswith(name)] == expected


def test_an_auditor_without_a_store_has_neither() -> None:
    status = auditor_status()
    del status["store"]
    text = text_of(auditor_metrics(status)).decode()
    assert "headrace_audit_partitions 1\n" in text
    assert not any(word in text for word in ("_store_", "_detection_", "_drill_"))


def test_the_page_of_metrics_lists_every_one() -> None:
    named = {each.name for make in ALL.values() for each in make()} | {LEFT_OUT}
    listed = set(re.findall(r"`(headrace_\w+)`", PAGE.read_text()))
    assert listed == named, f"docs/metrics.md: missing {named - listed}, not in the code {listed - named}"


def test_metrics_are_served_beside_the_status() -> None:
    server = StatusServer("127.0.0.1:0", mirror_status, metrics=mirror_metrics)
    try:
        with urllib.request.urlopen(f"http://{server.address}/metrics", timeout=60) as response:
            assert response.headers["Content-Type"] == KIND
            assert response.read() == text_of(mirror_metrics(mirror_status()))
        with pytest.raises(urllib.error.HTTPError, match="see /status and /metrics"):
            urllib.request.urlopen(f"http://{server.address}/other", timeout=60)
    finally:
        server.close()
