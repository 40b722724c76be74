"""What is told of a mirror that does not copy: by `headrace mirror status`, its page and its figures."""

from __future__ import annotations

import urllib.request

import pytest

from fix_audit import MirrorProcess, StartMirror, wait_for
from fix_broker import StartCluster
from fix_cli import Headrace, Result, command_runner
from fix_copies import send
from headrace.cli import mirror as cli_mirror
from headrace.cli.errors import ExitCode
from headrace.client import Admin
from headrace.site.context import Context, ContextMirror


@pytest.fixture
def headrace(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Headrace:
    return command_runner(monkeypatch, capsys)


def mirror_status(headrace: Headrace, mirror: MirrorProcess, monkeypatch: pytest.MonkeyPatch) -> Result:
    told = ContextMirror(source="east", target="analysis", status_url=mirror.status_url)
    here = Context(name="test", origin="test", datacenters=(), mirrors=(told,))
    monkeypatch.setattr(cli_mirror, "context", lambda: here)
    return headrace("mirror", "status")


def of_page(mirror: MirrorProcess, path: str) -> str:
    with urllib.request.urlopen(mirror.status_url.replace("/status", path), timeout=10) as response:
        return str(response.read().decode())


def test_a_mirror_whose_source_is_dead_is_not_called_caught_up(
    broker_cluster: StartCluster,
    start_mirror: StartMirror,
    headrace: Headrace,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It was, with a lag of 0 B and exit code 0, for as long as the source was dead."""
    east, analysis = broker_cluster(datacenter="east", count=2), broker_cluster(datacenter="analysis")
    with Admin(east.bootstrap) as admin:
        admin.create_topic("t", 2, 1)
        leader = admin.topics()["t"].partitions[0].leader
    send(east, "t", 100, partitions=2)
    mirror = start_mirror(east, analysis)
    wait_for(
        lambda: [row["state"] for row in mirror.partitions().values()] == ["caught_up"] * 2, mirror.output
    )
    found = mirror_status(headrace, mirror, monkeypatch)
    assert (found.exit_code, found.err) == (ExitCode.DONE, "")

    east[leader].kill()
    wait_for(lambda: mirror.partitions()["t", 0]["reason"], mirror.output)
    found = mirror_status(headrace, mirror, monkeypatch)
    assert found.exit_code == ExitCode.UNREACHABLE, "how far it is behind, nobody knows"
    row = next(line.split() for line in found.out.splitlines() if line.split()[:3] == ["east", "t", "0"])
    assert row[-3:] == ["?", "-", "locating"]
    assert "1 copy waits; the table says for what." in of_page(mirror, "/")
    assert "has a problem" in of_page(mirror, "/")
    figures = of_page(mirror, "/metrics")
    labels = '{source="east",target="analysis"'
    assert f"headrace_mirror_partitions_locating{labels}}} 1\n" in figures
    assert f'headrace_mirror_partition_lag_bytes{labels},topic="t",partition="0"}}' not in figures
    assert f'headrace_mirror_partition_lag_bytes{labels},topic="t",partition="1"}} 0\n' in figures

    east[3 - leader].kill()
    wait_for(lambda: mirror.status()["trouble"], mirror.output)
    found = mirror_status(headrace, mirror, monkeypatch)
    assert found.exit_code == ExitCode.UNREACHABLE
    assert "the mirror of east: cannot list topics: " in found.err
    assert f"headrace_mirror_up{labels}}} 0\n" in of_page(mirror, "/metrics")


def test_a_topic_that_is_not_copied_is_named_although_it_has_no_row(
    broker_cluster: StartCluster,
    start_mirror: StartMirror,
    headrace: Headrace,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    east, analysis = broker_cluster(datacenter="east"), broker_cluster(datacenter="analysis")
    for cluster in (east, analysis):
        with Admin(cluster.bootstrap) as admin:
            admin.create_topic("t", 1)
    mirror = start_mirror(east, analysis)
    wait_for(lambda: mirror.status()["topic_troubles"], mirror.output)
    found = mirror_status(headrace, mirror, monkeypatch)
    assert found.exit_code == ExitCode.NEGATIVE
    assert "topic t of east: " in found.err
    assert mirror.status()["topic_troubles"]["t"].split(";")[0] in " ".join(found.err.split())
