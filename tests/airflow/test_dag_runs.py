"""Runs of the DAGs in this process (`dag.test()`): a real HDFS, a real audit store, real asset events.

Only Spark is a stand-in: the tests commit what a load would commit. `tests/dags` runs the DAGs with Spark,
brokers and a scheduler.
"""

import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from airflow.configuration import conf
from airflow.dag_processing.dagbag import DagBag
from airflow.models.asset import AssetEvent
from airflow.sdk import DAG
from airflow.utils.session import create_session
from sqlalchemy import select

from fix_audit_world import DC, HOUR_A, TOPIC, Batch, PartitionBytes, everything_reported
from fix_hdfs import HdfsProcess
from fix_parquet import parquet_of
from headrace.airflow import proofs, sealing, sensors, triggers
from headrace.audit.store.columns import metadata
from headrace.audit.store.forgotten import note_forgotten
from headrace.audit.store.store import AuditStore
from headrace.audit.store.tables import meta
from headrace.warehouse.commitlog import CommitLog
from headrace.warehouse.hdfs.client import HdfsClient
from headrace.warehouse.layout import HOUR_MS, TopicPaths
from headrace.warehouse.manifest import DataFile, HourCount, LoadedRange, Manifest
from headrace.warehouse.seal import seals

ROOT = "/data"
NEXT_DAY = HOUR_A + 24 * HOUR_MS
HOUR_NAMES = {HOUR_A: "2015-05-17T11:00:00", HOUR_A + HOUR_MS: "2015-05-17T12:00:00"}


def load(hdfs: HdfsProcess, rows: dict[int, int]) -> Manifest:
    """Commits what a load of these rows (hour → count) would commit."""
    with hdfs.client() as client:
        log = CommitLog(client, TopicPaths(ROOT, TOPIC))
        sequence = log.state().next_sequence
        change_id = f"load-{sequence}"
        staged = log.paths.staged(change_id)
        files = []
        for number, (hour_ms, count) in enumerate(rows.items()):
            data = parquet_of(count)
            client.write(f"{staged}/{number}", data, overwrite=True)
            path = log.paths.data_file(hour_ms, sequence, number)
            files.append(DataFile(path, f"{staged}/{number}", hour_ms, count, len(data), 1))
        hours = tuple(HourCount(hour_ms, count, count) for hour_ms, count in rows.items())
        consumed = (LoadedRange(0, sequence * 10, sequence * 10 + 10, hours),)
        parts = (TOPIC, change_id, 1, "test", consumed)
        manifest = Manifest(sequence, "load", *parts, files=tuple(files), schema_id=1)
        log.commit(change_id, lambda _state: manifest)
        log.complete(manifest, None)
        return manifest


class World:
    """A warehouse and an audit store."""

    def __init__(self, hdfs: HdfsProcess, store: AuditStore) -> None:
        self.hdfs, self.store = hdfs, store

    def load(self, rows: dict[int, int]) -> None:
        load(self.hdfs, rows)

    def account_for(self, rows: dict[int, int], *, lost: int = 0) -> None:
        """Makes all tiers report these events (hour → count), and nothing else; the first `lost` of all never
        arrived.
        """
        batches, first = [], 0
        for hour_ms, count in rows.items():
            batches += [Batch(0, 7, 0, first + n, 1, hour_ms) for n in range(count)]
            first += count
        log = PartitionBytes()
        for batch in batches[lost:]:
            log.append(batch.encode())
        with self.store.writing() as connection:
            for table in metadata.sorted_tables:
                if table is not meta:
                    connection.execute(table.delete())
        self.store.fold(everything_reported(batches, {0: log}))

    def sealed(self) -> dict[int, tuple[int, int]]:
        """Returns version and rows of each hour's seal."""
        with self.hdfs.client() as client:
            found = seals(client, TopicPaths(ROOT, TOPIC))
        return {hour_ms: (seal.version, seal.rows) for hour_ms, seal in found.items()}


@pytest.fixture
def world(
    hdfs: HdfsProcess,
    connection: dict[str, str],
    airflow_database: Path,
    set_connection: Callable[..., None],
) -> World:
    extra = {**connection, "webhdfs_url": hdfs.webhdfs_url, "hdfs_url": hdfs.hdfs_url}
    set_connection("headrace_default", {"conn_type": "headrace", "extra": extra})
    with hdfs.client() as client:
        client.delete(ROOT)
    return World(hdfs, AuditStore(connection["audit_store"]))


@pytest.fixture
def dags(world: World, airflow_home: Path) -> dict[str, DAG]:
    bag = DagBag(airflow_home / "dags")
    assert not bag.import_errors
    return dict(bag.dags)


def states(run: Any) -> dict[str, str]:
    return {
        ti.task_id if ti.map_index < 0 else f"{ti.task_id}[{ti.map_index}]": str(ti.state)
        for ti in run.get_task_instances()
    }


def events_of(run: Any, name: str) -> dict[str | None, dict[str, Any]]:
    """The asset events of a run by partition key."""
    with create_session() as session:
        rows = session.scalars(
            select(AssetEvent).where(AssetEvent.source_run_id == run.run_id, AssetEvent.asset.has(name=name))
        ).all()
        return {row.partition_key: row.extra for row in rows}


def test_sealed_hours_become_events_with_addresses_and_counts(world: World, dags: dict[str, DAG]) -> None:
    rows = {HOUR_A: 3, HOUR_A + HOUR_MS: 2, NEXT_DAY: 4}
    world.load(rows)
    world.account_for(rows)
    run = dags[f"seal-{TOPIC}"].test()
    assert str(run.state) == "success"
    assert states(run) == dict.fromkeys(
        ["hours_due", "audit[0]", "audit[1]", "seal[0]", "seal[1]", "every_hour_sealed"], "success"
    )
    assert world.sealed() == {hour_ms: (1, count) for hour_ms, count in rows.items()}
    events = events_of(run, TOPIC)
    assert set(events) == {*HOUR_NAMES.values(), "2015-05-18T11:00:00"}
    seal = events["2015-05-17T12:00:00"]["hours"]["2015-05-17T12:00:00"]
    assert (seal["version"], seal["rows"], seal["completeness"]) == (1, 2, 1.0)
    assert seal["counts"]["west"]["warehouse"] == 2
    assert seal["addresses"]["west"]["0"][1] > 0
    # Nothing is due any more: the next run seals nothing, and no asset changes.
    again = dags[f"seal-{TOPIC}"].test()
    assert str(again.state) == "success"
    assert states(again)["every_hour_sealed"] == "success"
    assert events_of(again, TOPIC) == {}


def test_late_events_make_a_new_version_of_a_sealed_hour(world: World, dags: dict[str, DAG]) -> None:
    world.load({HOUR_A: 3})
    world.account_for({HOUR_A: 3})
    dags[f"seal-{TOPIC}"].test()
    world.load({HOUR_A: 2})
    world.account_for({HOUR_A: 5})
    run = dags[f"seal-{TOPIC}"].test()
    assert world.sealed() == {HOUR_A: (2, 5)}
    assert events_of(run, TOPIC)[HOUR_NAMES[HOUR_A]]["hours"][HOUR_NAMES[HOUR_A]]["version"] == 2


def test_a_loss_leaves_its_hour_unsealed_and_fails_the_run_with_the_audits_problems(
    world: World, dags: dict[str, DAG], caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = {HOUR_A: 3, HOUR_A + HOUR_MS: 2, NEXT_DAY: 4}
    world.load({**rows, HOUR_A: 2})
    world.account_for(rows, lost=1)
    run = dags[f"seal-{TOPIC}"].test()
    assert str(run.state) == "failed"
    assert states(run)["every_hour_sealed"] == "failed"
    assert states(run)["seal[0]"] == states(run)["seal[1]"] == "success"
    # Its neighbours are sealed all the same.
    assert world.sealed() == {HOUR_A + HOUR_MS: (1, 2), NEXT_DAY: (1, 4)}
    assert set(events_of(run, TOPIC)) == {"2015-05-17T12:00:00", "2015-05-18T11:00:00"}
    output = capsys.readouterr().out + caplog.text
    assert f"{TOPIC}: 1 hour is not sealed: {HOUR_NAMES[HOUR_A]} is lost: 1 event of {TOPIC}, west" in output
    assert "sequence 0 of partition 0" in output


def test_hours_without_audit_reports_fail_the_run_at_the_timeout(world: World, dags: dict[str, DAG]) -> None:
    world.load({HOUR_A: 1})
    run = dags[f"seal-{TOPIC}"].test()
    assert str(run.state) == "failed"
    assert states(run) == {
        "hours_due": "success",
        "audit[0]": "failed",
        "seal[0]": "skipped",
        "every_hour_sealed": "failed",
    }
    assert world.sealed() == {}


def test_an_hour_without_a_verdict_keeps_no_other_hour_of_its_day_from_its_seal(
    world: World, dags: dict[str, DAG], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = {HOUR_A: 3, HOUR_A + HOUR_MS: 2}
    world.load(rows)
    world.account_for(rows)
    real = proofs.proofs_of

    def proofs_of(*arguments: Any, **options: Any) -> list[proofs.Proof]:
        return [
            proof._replace(status="unknown") if proof.hour == HOUR_NAMES[HOUR_A] else proof
            for proof in real(*arguments, **options)
        ]

    for module in (sealing, sensors, triggers):
        monkeypatch.setattr(module, "proofs_of", proofs_of)
    run = dags[f"seal-{TOPIC}"].test()
    assert states(run) == {
        "hours_due": "success",
        "audit[0]": "failed",
        "seal[0]": "success",
        "every_hour_sealed": "failed",
    }
    assert world.sealed() == {HOUR_A + HOUR_MS: (1, 2)}
    assert set(events_of(run, TOPIC)) == {HOUR_NAMES[HOUR_A + HOUR_MS]}


def test_a_cleared_run_counts_no_seal_of_its_earlier_try(
    world: World, dags: dict[str, DAG], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Airflow keeps the XComs of mapped tasks that the run has no more, and a run whose only due hour is lost
    succeeded: its earlier try had sealed that hour as its second day.
    """
    world.load({HOUR_A: 3, NEXT_DAY: 4})
    world.account_for({HOUR_A: 3, NEXT_DAY: 4})
    seal = dags[f"seal-{TOPIC}"]
    run = seal.test()
    assert str(run.state) == "success" and len(world.sealed()) == 2
    world.load({NEXT_DAY: 1})
    world.account_for({NEXT_DAY: 6, HOUR_A: 3}, lost=1)

    def same_run(*, dag: Any, session: Any, **_: Any) -> Any:
        found = session.merge(run)
        found.dag = dag
        found.set_state("running")
        session.commit()
        return found

    # `test()` clears the run's tasks; then it would replace the run by a new one.
    monkeypatch.setattr("airflow.models.dagrun.get_or_create_dagrun", same_run)
    again = seal.test(logical_date=run.logical_date)
    assert states(again)["seal[0]"] == "skipped" and states(again)["seal[1]"] == "removed"
    assert states(again)["every_hour_sealed"] == "failed"


def test_a_window_selects_the_hours(world: World, dags: dict[str, DAG]) -> None:
    rows = {HOUR_A: 3, HOUR_A + HOUR_MS: 2, NEXT_DAY: 4}
    world.load(rows)
    world.account_for(rows)
    window = {"from": "2015-05-17T12:00:00Z", "to": "2015-05-18T00:00:00Z"}
    run = dags[f"seal-{TOPIC}"].test(run_conf=window)
    assert str(run.state) == "success"
    assert world.sealed() == {HOUR_A + HOUR_MS: (1, 2)}


def test_an_hour_with_a_problem_keeps_no_other_hour_from_its_seal_and_its_event(
    world: World, dags: dict[str, DAG], caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = {HOUR_A: 3, HOUR_A + HOUR_MS: 2, HOUR_A + 2 * HOUR_MS: 4}
    world.load(rows)
    world.account_for(rows)
    stray = f"{TopicPaths(ROOT, TOPIC).hour_dir(HOUR_A + HOUR_MS)}/copied.parquet"
    with world.hdfs.client() as client:
        client.write(stray, b"x")
    run = dags[f"seal-{TOPIC}"].test()
    assert states(run)["every_hour_sealed"] == "failed"
    assert world.sealed() == {HOUR_A: (1, 3), HOUR_A + 2 * HOUR_MS: (1, 4)}
    assert set(events_of(run, TOPIC)) == {"2015-05-17T11:00:00", "2015-05-17T13:00:00"}
    output = capsys.readouterr().out + caplog.text
    assert f"1 hour is not sealed: 2015-05-17T12:00:00 is complete: {TOPIC}, 2015-05-17T12: {stray}" in output


def test_what_is_wrong_with_a_forgotten_hour_is_said(
    world: World, dags: dict[str, DAG], caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    """The seal decides on it: the failed run said only that its late events are complete."""
    rows = {HOUR_A: 3, HOUR_A + HOUR_MS: 2}
    world.load(rows)
    world.account_for(rows)
    with world.store.writing() as connection:
        note_forgotten(connection, [(TOPIC, DC, HOUR_A)])
    stray = f"{TopicPaths(ROOT, TOPIC).hour_dir(HOUR_A)}/copied.parquet"
    with world.hdfs.client() as client:
        client.write(stray, b"x")
    run = dags[f"seal-{TOPIC}"].test()
    assert str(run.state) == "failed" and world.sealed() == {HOUR_A + HOUR_MS: (1, 2)}
    output = capsys.readouterr().out + caplog.text
    assert f"not sealed: {HOUR_NAMES[HOUR_A]} is forgotten: {TOPIC}, 2015-05-17T11: {stray}" in output


def test_events_of_all_times_do_not_keep_the_last_days_from_being_sealed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    hours = [HOUR_A - number * 24 * HOUR_MS for number in range(3_000)]
    monkeypatch.setattr(sealing, "due_hours", lambda *_, **__: sorted(hours))
    days = sealing.days_due(topic=TOPIC, root=ROOT, grace_s=0)
    assert len(days) == sealing.DAYS_MAX <= conf.getint("core", "max_map_length")
    assert days[-1] == [HOUR_NAMES[HOUR_A]]


def test_an_hour_is_not_sealed_before_its_grace_has_passed(world: World, dags: dict[str, DAG]) -> None:
    now_ms = round(datetime.now(UTC).timestamp() * 1000)
    world.load({now_ms - now_ms % HOUR_MS: 1})
    run = dags[f"seal-{TOPIC}"].test()
    assert str(run.state) == "success"
    assert world.sealed() == {}


def test_an_unreachable_hdfs_fails_the_run_with_that_problem(
    world: World,
    dags: dict[str, DAG],
    set_connection: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    defaults = HdfsClient.__init__.__kwdefaults__
    assert defaults is not None
    monkeypatch.setitem(defaults, "patience_s", 0.1)
    extra = {
        "bootstrap": "127.108.9.2:9092",
        "registry_url": "http://127.108.9.3:8081",
        "hdfs_url": "hdfs://127.108.9.9:8020",
        "webhdfs_url": "http://127.108.9.9:9870",
        "audit_store": "sqlite://",
        "python": sys.executable,
    }
    set_connection("headrace_default", {"conn_type": "headrace", "extra": extra})
    run = dags[f"seal-{TOPIC}"].test()
    assert str(run.state) == "failed"
    assert states(run)["hours_due"] == states(run)["every_hour_sealed"] == "failed"
    assert "127.108.9.9:9870" in capsys.readouterr().out
