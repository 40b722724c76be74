"""`make bench`: the smoke run measures each kind of row; what cannot be run is refused with a reason."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import compare
import pytest
from clients.outcome import ClientFailedError, Outcome
from clients.running import run
from experiments import scale, since
from experiments.context import FULL, HEADRACE, Bench
from side_by_side.machine import Cores, TooFewCoresError, snapshot, split_cores
from side_by_side.page import PART, PARTS

from clients import python, rdkafka
from fix_broker import BrokerCluster
from headrace.client import Admin, Consumer

SMOKE_WAIT_MAX_S = 240.0
BENCH = Path(compare.__file__).parent


@pytest.mark.slow
@pytest.mark.zookeeper
def test_the_smoke_run(tmp_path: Path) -> None:
    if not rdkafka.is_installed() or len(os.sched_getaffinity(0)) < 2:
        pytest.skip("needs librdkafka-dev, a C compiler and two cores")
    figures = tmp_path / "smoke.json"
    done = subprocess.run(
        [sys.executable, str(BENCH / "compare.py")],
        env={**os.environ, "SMOKE": "1", "JSON": str(figures), "HEADRACE_HOME": str(tmp_path / "home")},
        capture_output=True,
        text=True,
        timeout=SMOKE_WAIT_MAX_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    rows = json.loads(figures.read_text())["rows"]
    assert [row["key"] for row in rows] == list(compare.SMOKE_ROWS)
    for row in rows:
        assert row["samples"][HEADRACE][0]["records_per_s"] > 0, row
        assert row["title"] in done.stdout.replace("\n", " ")
    assert not (tmp_path / "home" / "bench-run").exists(), "the brokers' data is removed"


def test_an_unknown_row_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert compare.main({"ROWS": "consume no-such-row"}) == compare.NOT_MADE
    assert "no-such-row: no such row; known are produce-batch-1" in capsys.readouterr().out


def test_each_row_has_a_place_on_the_page() -> None:
    page = (BENCH.parent / "docs" / "benchmarks.md").read_text()
    rows = {experiment.key for group in compare.groups() for experiment in group.experiments}
    assert {found["name"] for found in PART.finditer(page)} - set(PARTS) == rows


def test_brokers_and_clients_share_no_core() -> None:
    cores = split_cores({4, 5, 6})
    assert cores.broker == {4} and cores.client == {5, 6}
    with pytest.raises(TooFewCoresError, match=r"1 core\(s\) available, 2 needed"):
        split_cores({4})


def test_a_snapshot_sees_the_work_of_a_family_and_of_strangers() -> None:
    before = snapshot()
    busy = subprocess.run([sys.executable, "-c", "sum(range(20_000_000))"], check=True)
    after = snapshot()
    assert busy.returncode == 0
    assert after.cpu_s([os.getpid()]) - before.cpu_s([os.getpid()]) > 0.1
    assert after.others_s([1]) <= after.others_s([os.getpid()])


def test_a_row_that_the_disk_has_no_room_for_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(FULL, Cores(frozenset({0}), frozenset({1})), tmp_path)
    rows = {each.key: each for each in scale.experiments()}
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=30_000_000_000))
    assert "long-log may write 61 GB" in rows["long-log"].missing_room(bench)
    assert "has 30 GB left" in rows["long-log"].missing_room(bench)
    assert rows["restart"].missing_room(bench) == ""


def test_any_row_may_come_first_on_a_fresh_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    homes: list[Path] = []

    def measured(bench: Bench, *_: object, **__: object) -> None:
        assert bench.home.is_dir(), "a row asks how much room the disk has for it"
        homes.append(bench.home)

    monkeypatch.setenv("HEADRACE_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(compare, "run", measured)
    assert compare.main({"ROWS": "mirror"}) == 0
    assert homes == [tmp_path / "home" / "bench-run"]


def test_an_earlier_commit_runs_its_own_code(tmp_path: Path) -> None:
    if not (BENCH.parent / ".git").exists():
        pytest.skip("needs the repository: this is not a clone")
    environment = since.earlier_code("HEAD", tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", "import headrace.broker.core; print(headrace.broker.core.__file__)"],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    assert Path(done.stdout.strip()).is_relative_to(tmp_path)
    with pytest.raises(
        since.NoSuchCommitError, match=r"SINCE=no-such-commit: git has no code of this commit"
    ):
        since.earlier_code("no-such-commit", tmp_path)


def test_a_row_that_cannot_be_measured_beside_an_earlier_commit_is_refused(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert compare.main({"SINCE": "HEAD", "ROWS": "mirror"}) == compare.NOT_MADE
    assert "ROWS=mirror: SINCE=HEAD does not measure these" in capsys.readouterr().out


def test_each_row_beside_an_earlier_commit_can_be_measured() -> None:
    measured = compare.since_group("HEAD", [*since.ROWS, *since.ALSO])
    assert [each.key for each in measured.experiments] == [*since.ROWS, *since.ALSO]
    assert all(each.bars == since.BARS for each in measured.experiments)


@pytest.mark.zookeeper
def test_the_same_requests_are_all_acknowledged(one_broker: BrokerCluster, tmp_path: Path) -> None:
    topic, log = "windows", tmp_path / "windows.log"

    def send(**changed: Any) -> Outcome:
        wanted: dict[str, Any] = {
            "requests": 20,
            "batch": 3,
            "value_bytes": 10,
            "seconds": 0.2,
            "warmup_s": 0,
        }
        command = python.windows_command(one_broker.bootstrap, topic, **wanted | changed)
        return run(command, cores=os.sched_getaffinity(0), log=log)

    with Admin(one_broker.bootstrap, client_id="test") as admin:
        admin.create_topic(topic, 1)
        outcome = send()
        assert outcome.records % 60 == 0 and outcome.size_bytes == 10 * outcome.records
        with Consumer(one_broker.bootstrap, auto_offset_reset="earliest") as consumer:
            consumer.assign([(topic, 0)])
            read = 0
            while records := consumer.poll(2.0):
                read += len(records)
        assert read == outcome.records
        with pytest.raises(ClientFailedError, match="MESSAGE_TOO_LARGE"):
            send(batch=1, value_bytes=2_000_000, requests=1)
