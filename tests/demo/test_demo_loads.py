"""When the demo triggers a load, and when all is loaded: with a fake Airflow and commit log."""

from types import SimpleNamespace
from typing import cast

import pytest

from headrace.demo.loads import DemoLoads
from headrace.fleet.airflow_client import AirflowClient, Run, RunFailedError
from headrace.warehouse.commitlog import CommitLog
from headrace.warehouse.manifest import DataFile, Kind, LoadedRange, Manifest


class FakeAirflow:
    """Records what was triggered; the test sets the state of the last run."""

    def __init__(self) -> None:
        self.unpaused: list[str] = []
        self.triggered: list[str] = []
        self.state = "running"

    def unpause(self, dag_id: str) -> None:
        self.unpaused.append(dag_id)

    def trigger(self, dag_id: str) -> Run:
        self.triggered.append(dag_id)
        self.state = "running"
        return self.run(dag_id, f"run-{len(self.triggered)}")

    def run(self, dag_id: str, run_id: str) -> Run:
        return Run(dag_id, run_id, self.state, "manual")

    def problems(self, run: Run) -> dict[str, str]:
        return {"load": "the registry is unreachable"}


class Scene:
    """Loads of the topic `views` whose first change is 3; each `poll` is two seconds after the one before."""

    def __init__(self) -> None:
        self.airflow = FakeAirflow()
        self.manifests: list[Manifest] = []
        self.now_s = 0.0
        log = SimpleNamespace(
            paths=SimpleNamespace(topic="views"),
            manifests=lambda first: [entry for entry in self.manifests if entry.sequence >= first],
        )
        self.loads = DemoLoads(
            cast(AirflowClient, self.airflow), cast(CommitLog, log), 3, clock=lambda: self.now_s
        )

    def poll(self, arrived: int, *, is_all: bool = False) -> None:
        self.now_s += 2
        self.loads.poll(arrived, is_all=is_all)

    def commit(self, rows: int, kind: Kind = "load") -> None:
        file = DataFile("/f", "/s", 0, rows, 1, 1)
        self.manifests.append(
            Manifest(
                sequence=3 + len(self.manifests),
                kind=kind,
                topic="views",
                change_id="c",
                committed_ms=1000 + rows,
                warehouse="analysis",
                ranges=(LoadedRange(0, 0, rows),) if kind == "load" else (),
                files=(file,),
            )
        )


def test_nothing_is_triggered_before_something_has_arrived() -> None:
    scene = Scene()
    scene.poll(0)
    assert scene.airflow.triggered == []
    scene.poll(1)
    assert scene.airflow.triggered == ["load-views"]
    assert scene.airflow.unpaused == ["seal-views"]


def test_one_run_at_a_time_until_all_is_loaded() -> None:
    scene = Scene()
    scene.poll(100)
    scene.poll(200)
    assert len(scene.airflow.triggered) == 1
    scene.commit(100)
    scene.airflow.state = "success"
    scene.poll(300, is_all=True)
    scene.poll(300, is_all=True)
    assert len(scene.airflow.triggered) == 2
    assert scene.loads.rows == 100
    scene.commit(200)
    scene.airflow.state = "success"
    scene.poll(300, is_all=True)
    scene.poll(300, is_all=True)
    assert scene.loads.is_done
    assert len(scene.airflow.triggered) == 2
    assert [load.ranges for load in scene.loads.committed()] == [{0: (0, 100)}, {0: (0, 200)}]


def test_no_run_follows_one_that_has_loaded_everything() -> None:
    scene = Scene()
    scene.poll(100)
    scene.commit(100)
    # Compaction rewrites rows that were loaded before.
    scene.commit(100, "compact")
    scene.airflow.state = "success"
    scene.poll(100, is_all=True)
    scene.poll(100, is_all=True)
    assert scene.loads.is_done
    assert scene.loads.rows == 100
    assert len(scene.airflow.triggered) == 1
    assert len(scene.loads.committed()) == 1


def test_a_run_triggered_after_the_last_arrival_is_the_last() -> None:
    scene = Scene()
    scene.poll(10, is_all=True)
    scene.commit(4)
    scene.airflow.state = "success"
    scene.poll(10, is_all=True)
    scene.poll(10, is_all=True)
    assert scene.loads.is_done
    assert len(scene.airflow.triggered) == 1


def test_a_failed_run_is_raised_with_its_problem() -> None:
    scene = Scene()
    scene.poll(10)
    scene.airflow.state = "failed"
    with pytest.raises(RunFailedError, match="load: the registry is unreachable"):
        scene.poll(10)
