"""Programs of the main environment as tasks start them: what they are told, how they end, how they die.

The submitter is a stand-in here, a shell script beside the interpreter as PySpark's own is; a real
spark-submit is in `test_real_spark.py` and in the end-to-end tests.
"""

import json
import multiprocessing
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowSkipException

from conftest import set_connection
from headrace.airflow import operators
from headrace.airflow.operators import (
    LoadTopicOperator,
    SparkProgramOperator,
    WarehouseJobOperator,
    is_true,
    problems_in,
    read_result,
)
from headrace.airflow.spark import conf_of, reason
from headrace.warehouse.session import worker_environment

# Writes its arguments beside itself, then does what the file `then.py` there says.
STAND_IN = """#!/bin/sh
exec {python} "$(dirname "$0")/stand_in.py" "$@"
"""
STAND_IN_PY = """
import json, os, sys
from pathlib import Path
here = Path(__file__).parent
names = ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "HEADRACE_PYTHON")
python = {name: os.environ.get(name) for name in names}
told = {"arguments": sys.argv[1:], "python": python, "pid": os.getpid()}
(here / "told.tmp").write_text(json.dumps(told))
(here / "told.tmp").rename(here / "told.json")
result = Path(sys.argv[sys.argv.index("--result") + 1])
exec((here / "then.py").read_text())
"""


class Main:
    """A made-up main environment: its interpreter's folder holds the stand-in."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.python = folder / "python"
        (folder / "stand_in.py").write_text(STAND_IN_PY)
        self.then("result.write_text('[{}]')")
        for name in ("spark-submit", "python"):
            (folder / name).write_text(STAND_IN.format(python=sys.executable))
            (folder / name).chmod(0o755)

    def then(self, code: str) -> None:
        (self.folder / "then.py").write_text(code)

    @property
    def told(self) -> dict[str, Any]:
        said: dict[str, Any] = json.loads((self.folder / "told.json").read_text())
        return said

    def told_after(self, option: str) -> str:
        arguments: list[str] = self.told["arguments"]
        return arguments[arguments.index(option) + 1]


@pytest.fixture
def main(tmp_path: Path, connection: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Main:
    folder = tmp_path / "main" / "bin"
    folder.mkdir(parents=True)
    made = Main(folder)
    fields: dict[str, object] = {"conn_type": "headrace", "extra": {**connection, "python": str(made.python)}}
    set_connection(monkeypatch, "headrace_default", fields)
    monkeypatch.setattr("headrace.airflow.spark.spark_conf", lambda *, local: {"spark.is.local": local})
    return made


class NoTask:
    """Stands for the running task instance."""

    def __init__(self) -> None:
        self.pushed: dict[str, Any] = {}

    def xcom_push(self, key: str, value: Any) -> None:
        self.pushed[key] = value


def load(**more: Any) -> LoadTopicOperator:
    return LoadTopicOperator(**{"task_id": "load", "topic": "page-view", **more})


def test_a_load_is_submitted_with_the_connections_addresses(main: Main, connection: dict[str, str]) -> None:
    main.then("result.write_text(json.dumps([{'topic': 'page-view', 'rows': 7}]))")
    task = load(conf={"spark.speculation": True}, until="2015-05-18T00:00:00+00:00", root="/elsewhere")
    assert task.execute({"ti": NoTask()}) == {"topic": "page-view", "rows": 7}
    arguments = main.told["arguments"]
    job = str(Path(operators.__file__).parents[1] / "warehouse" / "job.py")
    assert Path(job).exists()
    submitted, told = arguments[: arguments.index(job)], arguments[arguments.index(job) + 1 :]
    assert submitted[:2] == ["--master", "local[1]"]
    assert {"spark.is.local=True", "spark.speculation=true"} <= set(submitted)
    assert told[:2] == ["load", "page-view"]
    assert main.told_after("--bootstrap") == connection["bootstrap"]
    assert main.told_after("--registry-url") == connection["registry_url"]
    assert main.told_after("--hdfs-url") == connection["hdfs_url"]
    assert main.told_after("--webhdfs-url") == connection["webhdfs_url"]
    assert main.told_after("--root") == "/elsewhere"
    assert main.told_after("--until") == "2015-05-18T00:00:00+00:00"
    assert main.told["python"] == {
        "PYSPARK_PYTHON": worker_environment("")["PYSPARK_PYTHON"],
        "PYSPARK_DRIVER_PYTHON": worker_environment("")["PYSPARK_PYTHON"],
        "HEADRACE_PYTHON": str(main.python),
    }
    assert "--dry-run" not in arguments
    assert "--accept-gap" not in arguments


def test_an_empty_until_bounds_nothing_and_a_gap_must_be_accepted(main: Main) -> None:
    load(until="", accept_gap=True).execute({"ti": NoTask()})
    assert "--until" not in main.told["arguments"]
    assert "--accept-gap" in main.told["arguments"]


def test_a_dry_run_needs_no_spark_and_skips_with_the_plan(main: Main) -> None:
    main.then("result.write_text(json.dumps([{'topic': 'page-view', 'ranges': []}]))")
    task_instance = NoTask()
    with pytest.raises(AirflowSkipException, match="dry run: nothing of page-view was loaded"):
        load(dry_run="True").execute({"ti": task_instance})
    assert task_instance.pushed == {"plan": {"topic": "page-view", "ranges": []}}
    # The interpreter itself was started, not the submitter.
    assert Path(main.told["arguments"][0]).name == "job.py"
    assert "--dry-run" in main.told["arguments"]


def test_a_failed_program_fails_the_task_in_its_own_words(main: Main) -> None:
    main.then(
        "print('26/11/20 INFO much noise'); "
        "print('headrace warehouse: page-view: a gap', file=sys.stderr); sys.exit(1)"
    )
    with pytest.raises(AirflowException, match=r"^page-view: a gap$"):
        load().execute({"ti": NoTask()})
    with pytest.raises(AirflowException, match=r"^page-view: a gap$"):
        load(dry_run=True).execute({"ti": NoTask()})
    main.then("print('no mark'); sys.exit(3)")
    with pytest.raises(AirflowException, match=r"Error code is: 3(.|\n)*no mark"):
        load().execute({"ti": NoTask()})
    with pytest.raises(AirflowException, match="exit code 3: no mark"):
        load(dry_run=True).execute({"ti": NoTask()})


def test_a_verification_that_finds_something_is_not_tried_again(
    main: Main, connection: dict[str, str]
) -> None:
    task = WarehouseJobOperator(task_id="verify", command="verify", topics=["a", "b"])
    main.then("result.write_text(json.dumps([{'topic': 'a', 'problems': ['x is missing']}])); sys.exit(1)")
    with pytest.raises(AirflowFailException, match=r"^a: x is missing$"):
        task.execute({})
    assert main.told["arguments"][1:4] == ["verify", "a", "b"]
    assert main.told_after("--audit-store") == connection["audit_store"]


def test_a_program_of_ones_own_gets_the_addresses_too(main: Main, connection: dict[str, str]) -> None:
    task = SparkProgramOperator(task_id="mine", program="/srv/mine.py", arguments=["--day", "2015-05-17"])
    assert task.execute({}) == [{}]
    arguments = main.told["arguments"]
    assert arguments[arguments.index("/srv/mine.py") + 1 :][:2] == ["--day", "2015-05-17"]
    assert main.told_after("--bootstrap") == connection["bootstrap"]
    main.then("")
    assert task.execute({}) is None


@pytest.mark.parametrize("dry_run", [False, True])
def test_a_killed_task_kills_its_program(main: Main, dry_run: bool) -> None:
    main.then("import time; time.sleep(60)")
    task = load(dry_run=dry_run)
    ended: list[BaseException] = []

    def run() -> None:
        try:
            task.execute({"ti": NoTask()})
        except AirflowException as error:
            ended.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    wait_for(lambda: (main.folder / "told.json").exists())
    task.on_kill()
    thread.join(10)
    assert len(ended) == 1
    wait_for(lambda: not is_alive(main.told["pid"]))


@pytest.mark.parametrize("dry_run", [False, True])
def test_a_program_dies_with_its_task(main: Main, dry_run: bool) -> None:
    main.then("import time; time.sleep(60)")
    # Forked, as Airflow's workers fork a task.
    task = multiprocessing.get_context("fork").Process(
        target=lambda: load(dry_run=dry_run).execute({"ti": NoTask()}), daemon=True
    )
    task.start()
    wait_for(lambda: (main.folder / "told.json").exists())
    assert is_alive(main.told["pid"])
    task.kill()
    wait_for(lambda: not is_alive(main.told["pid"]))
    task.join()


def test_results_are_bounded(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    assert read_result(path) is None
    path.write_text('"' + "x" * (4 << 20) + '"')
    with pytest.raises(ValueError, match="Airflow keeps at most"):
        read_result(path)
    many = problems_in([{"topic": "a", "problems": [str(n) for n in range(30)]}])
    assert len(many) == 21
    assert many[-1] == "and 10 more problems"
    assert problems_in(None) == problems_in([1, {"topic": "a"}]) == []


def test_flags_and_conf_as_templates_make_them() -> None:
    assert [is_true(value) for value in (True, "True", "false", "", False)] == [
        True,
        True,
        False,
        False,
        False,
    ]
    with pytest.raises(ValueError, match="dry_run is 'perhaps'"):
        is_true("perhaps")
    assert conf_of({"a": True, "b": 2, "c": "x"}) == {"a": "true", "b": "2", "c": "x"}


def test_the_last_words_of_a_program_are_found() -> None:
    lines = [
        "headrace warehouse: first",
        "26/11/20 WARN Utils",
        "  headrace warehouse: last ",
        "at java.lang",
    ]
    assert reason(lines) == "last"
    assert reason(["nothing of ours"]) is None


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_for(condition: Any, timeout_s: float = 60) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)
