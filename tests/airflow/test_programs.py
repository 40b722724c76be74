"""Programs of the main environment as tasks run them: their arguments, their results, their end.

spark-submit is a stand-in, a shell script beside the interpreter like PySpark's own; the end-to-end tests use
the real one.
"""

import json
import multiprocessing
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.exceptions import (
    AirflowException,
    AirflowFailException,
    AirflowSkipException,
    AirflowTaskTimeout,
)
from airflow.sdk.execution_time.timeout import timeout

from headrace.airflow import operators
from headrace.airflow.drilling import DrillOperator
from headrace.airflow.operators import (
    LoadTopicOperator,
    SparkProgramOperator,
    WarehouseJobOperator,
    is_true,
    problems_in,
    read_result,
)
from headrace.airflow.spark import conf_of, error_in
from headrace.warehouse.session import worker_environment

# Writes its arguments to started.json beside itself, then runs then.py from there.
STAND_IN = """#!/bin/sh
exec {python} "$(dirname "$0")/stand_in.py" "$@"
"""
STAND_IN_PY = """
import json, os, sys
from pathlib import Path
here = Path(__file__).parent
names = ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "HEADRACE_PYTHON")
python = {name: os.environ.get(name) for name in names}
started = {"arguments": sys.argv[1:], "python": python, "pid": os.getpid()}
(here / "started.tmp").write_text(json.dumps(started))
(here / "started.tmp").rename(here / "started.json")
result = Path(sys.argv[sys.argv.index("--result") + 1]) if "--result" in sys.argv else None
exec((here / "then.py").read_text())
"""


class Main:
    """A stand-in for the main environment: a folder with `python` and `spark-submit`."""

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
    def started(self) -> dict[str, Any]:
        """Arguments, interpreters and pid of the last program that was started."""
        started: dict[str, Any] = json.loads((self.folder / "started.json").read_text())
        return started

    def value_of(self, option: str) -> str:
        arguments: list[str] = self.started["arguments"]
        return arguments[arguments.index(option) + 1]


@pytest.fixture
def main(
    tmp_path: Path,
    connection: dict[str, str],
    set_connection: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
) -> Main:
    folder = tmp_path / "main" / "bin"
    folder.mkdir(parents=True)
    made = Main(folder)
    extra = {**connection, "python": str(made.python)}
    set_connection("headrace_default", {"conn_type": "headrace", "extra": extra})
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
    arguments = main.started["arguments"]
    job = str(Path(operators.__file__).parents[1] / "warehouse" / "job.py")
    assert Path(job).exists()
    submitted, options = arguments[: arguments.index(job)], arguments[arguments.index(job) + 1 :]
    assert submitted[:2] == ["--master", "local[1]"]
    assert {"spark.is.local=True", "spark.speculation=true"} <= set(submitted)
    assert options[:2] == ["load", "page-view"]
    assert main.value_of("--bootstrap") == connection["bootstrap"]
    assert main.value_of("--registry-url") == connection["registry_url"]
    assert main.value_of("--hdfs-url") == connection["hdfs_url"]
    assert main.value_of("--webhdfs-url") == connection["webhdfs_url"]
    assert main.value_of("--root") == "/elsewhere"
    assert main.value_of("--until") == "2015-05-18T00:00:00+00:00"
    assert main.started["python"] == {
        "PYSPARK_PYTHON": worker_environment("")["PYSPARK_PYTHON"],
        "PYSPARK_DRIVER_PYTHON": worker_environment("")["PYSPARK_PYTHON"],
        "HEADRACE_PYTHON": str(main.python),
    }
    assert "--dry-run" not in arguments
    assert "--accept-gap" not in arguments


def test_an_empty_until_is_no_limit_and_a_gap_must_be_accepted(main: Main) -> None:
    load(until="", accept_gap=True).execute({"ti": NoTask()})
    assert "--until" not in main.started["arguments"]
    assert "--accept-gap" in main.started["arguments"]
    assert "--made-again" not in main.started["arguments"]


def test_what_a_topic_is_that_was_made_again_is_passed_on(main: Main) -> None:
    load(made_again="new").execute({"ti": NoTask()})
    assert main.value_of("--made-again") == "new"


def test_a_dry_run_needs_no_spark_and_skips_with_the_plan(main: Main) -> None:
    main.then("result.write_text(json.dumps([{'topic': 'page-view', 'ranges': []}]))")
    task_instance = NoTask()
    with pytest.raises(AirflowSkipException, match="dry run: nothing of page-view was loaded"):
        load(dry_run="True").execute({"ti": task_instance})
    assert task_instance.pushed == {"plan": {"topic": "page-view", "ranges": []}}
    # The interpreter itself was started, not the submitter.
    assert Path(main.started["arguments"][0]).name == "job.py"
    assert "--dry-run" in main.started["arguments"]


def test_a_failed_program_fails_the_task_with_its_own_error(main: Main) -> None:
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


def test_a_verification_with_problems_is_not_retried(main: Main, connection: dict[str, str]) -> None:
    task = WarehouseJobOperator(task_id="verify", command="verify", topics=["a", "b"])
    main.then("result.write_text(json.dumps([{'topic': 'a', 'problems': ['x is missing']}])); sys.exit(1)")
    with pytest.raises(AirflowFailException, match=r"^a: x is missing$"):
        task.execute({})
    assert main.started["arguments"][1:4] == ["verify", "a", "b"]
    assert main.value_of("--audit-store") == connection["audit_store"]


def test_a_repair_that_found_its_rows_gone_says_of_which_hour(main: Main, connection: dict[str, str]) -> None:
    task = WarehouseJobOperator(task_id="repair", command="refill", topics=["a"])
    done = {"topic": "a", "hour_ms": 1_431_860_400_000, "problem": "", "rows": 3}
    left = {**done, "hour_ms": 1_431_864_000_000, "problem": "only 0 of 5 missing rows are still in the log"}
    main.then(f"result.write_text(json.dumps({[done, left]!r})); sys.exit(1)")
    with pytest.raises(AirflowFailException, match=r"^a, 2015-05-17T12: only 0 of 5 missing rows are still"):
        task.execute({})


def test_a_drill_runs_the_command_and_fails_with_its_last_words(
    main: Main, connection: dict[str, str]
) -> None:
    task = DrillOperator(task_id="drill", timeout="7m", headrace_context="prod")
    main.then("print('the audit found 18 of 18 plants')")
    task.execute({})
    store = connection["audit_store"]
    words = ["audit", "drill", "--timeout", "7m", "--store", store, "--context", "prod"]
    assert main.started["arguments"] == ["-m", "headrace.cli", *words]
    DrillOperator(task_id="drill", datacenter="east").execute({})
    assert main.started["arguments"][2:] == [
        *("audit", "drill", "--timeout", "5m", "--store", store, "--datacenter", "east")
    ]
    main.then("print('the audit found 17 of 18 plants'); sys.exit(1)")
    with pytest.raises(AirflowException, match="exit code 1: the audit found 17 of 18 plants"):
        task.execute({})


def test_a_users_program_also_gets_the_addresses(main: Main, connection: dict[str, str]) -> None:
    task = SparkProgramOperator(task_id="mine", program="/srv/mine.py", arguments=["--day", "2015-05-17"])
    assert task.execute({}) == [{}]
    arguments = main.started["arguments"]
    assert arguments[arguments.index("/srv/mine.py") + 1 :][:2] == ["--day", "2015-05-17"]
    assert main.value_of("--bootstrap") == connection["bootstrap"]
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
    wait_for(lambda: (main.folder / "started.json").exists())
    task.on_kill()
    thread.join(10)
    assert len(ended) == 1
    wait_for(lambda: not is_alive(main.started["pid"]))


@pytest.mark.parametrize("dry_run", [False, True])
def test_a_timeout_ends_a_task_whose_program_hangs(main: Main, dry_run: bool) -> None:
    """A program without Spark was waited for, without an end, before Airflow could have it killed."""
    main.then("import time; time.sleep(60)")
    task = load(dry_run=dry_run)
    began_s = time.monotonic()
    with pytest.raises(AirflowTaskTimeout), timeout(3):
        task.execute({"ti": NoTask()})
    task.on_kill()  # as Airflow does then
    assert time.monotonic() - began_s < 30
    wait_for(lambda: not is_alive(main.started["pid"]))


@pytest.mark.parametrize("dry_run", [False, True])
def test_a_program_dies_with_its_task(main: Main, dry_run: bool) -> None:
    main.then("import time; time.sleep(60)")
    # Forked, as Airflow's workers fork a task.
    task = multiprocessing.get_context("fork").Process(
        target=lambda: load(dry_run=dry_run).execute({"ti": NoTask()}), daemon=True
    )
    task.start()
    wait_for(lambda: (main.folder / "started.json").exists())
    assert is_alive(main.started["pid"])
    task.kill()
    wait_for(lambda: not is_alive(main.started["pid"]))
    task.join()


def test_results_are_bounded(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    assert read_result(path) is None
    path.write_text('"' + "x" * (4 << 20) + '"')
    with pytest.raises(ValueError, match="more than 4194304"):
        read_result(path)
    runs = [{"log_partition": 0, "first_offset": n, "last_offset": n, "extra": True} for n in range(60_000)]
    verified = {"topic": "a", "problems": ["p"], "doubles": [{"hour_ms": 1, "runs": runs}]}
    path.write_text(json.dumps([verified]))
    assert read_result(path) == [{**verified, "doubles": [{"hour_ms": 1, "runs": runs[:1_000]}]}]
    loaded = {"topic": "a", "rows": 9, "hours": {str(n): n for n in range(400_000)}}
    path.write_text(json.dumps([loaded]))
    [result] = read_result(path)
    assert (result["rows"], len(result["hours"])) == (9, 1_000)
    many = problems_in([{"topic": "a", "problems": [str(n) for n in range(30)]}])
    assert len(many) == 21
    assert many[-1] == "and 10 more problems"
    assert problems_in(None) == problems_in([1, {"topic": "a"}]) == []


def test_flags_and_conf_from_templates_are_parsed() -> None:
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


def test_a_programs_last_error_is_found() -> None:
    lines = [
        "headrace warehouse: first",
        "26/11/20 WARN Utils",
        "  headrace warehouse: last ",
        "at java.lang",
    ]
    assert error_in(lines) == "last"
    assert error_in(["nothing of ours"]) is None


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
