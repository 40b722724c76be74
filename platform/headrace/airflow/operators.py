"""Operators that run programs: any program under Spark, a job of the warehouse, the load of a topic.

Owns which program a task runs, its arguments and its result.
"""

from __future__ import annotations

import itertools
import json
import logging
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Final

from airflow.sdk import BaseOperator, Context
from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowSkipException

from headrace.airflow.hook import HeadraceHook
from headrace.airflow.installation import Installation, without_names
from headrace.airflow.links import AuditReportLink
from headrace.airflow.spark import Program, PythonProgram, SparkApplication, conf_of
from headrace.warehouse.layout import hour_name

log = logging.getLogger(__name__)

# A file, because spark-submit takes no module. The main environment has headrace installed.
JOB: Final = Path(__file__).parents[1] / "warehouse" / "job.py"
RESULT_MAX_BYTES: Final = 4 << 20
"""Of an XCom."""
RESULT_READ_MAX_BYTES: Final = 256 << 20
ENTRIES_KEPT: Final = (1_000, 100, 10, 1)
"""Of each list in a result that is larger than an XCom: as many as there is room for."""
NAMES_MAX: Final = 100
"""An object with more names is a list of its own, such as the rows of each hour."""
PROBLEMS_MAX: Final = 20
# Commands of the job that do not need Spark.
PLAIN_COMMANDS: Final = frozenset({"verify", "retain"})


class SparkProgramOperator(BaseOperator):
    """Runs a Python program under Spark in the main environment, and returns its result.

    The program gets `arguments`, then the installation's addresses: --bootstrap, --registry-url, --hdfs-url,
    --webhdfs-url, and --result FILE, where it may write its result as JSON. `conf` is Spark's configuration;
    master, deploy mode and queue come from the Spark connection. The application ends with its task, however
    the task ends.
    """

    template_fields: Sequence[str] = ("arguments", "conf")
    ui_color = "#e8ddc9"

    def __init__(
        self,
        *,
        program: str | Path,
        arguments: Sequence[str] = (),
        conf: Mapping[str, Any] | None = None,
        headrace_conn_id: str = HeadraceHook.default_conn_name,
        spark_conn_id: str = "spark_default",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.program = program
        self.arguments = arguments
        self.conf = dict(conf or {})
        self.headrace_conn_id = headrace_conn_id
        self.spark_conn_id = spark_conn_id
        self._running: Program | None = None

    def execute(self, context: Context) -> Any:
        return self.run_program(self.arguments)

    def run_program(self, arguments: Sequence[str], *, needs_spark: bool = True) -> Any:
        """Runs the program and returns the content of its result file, None if there is none."""
        installation = HeadraceHook(self.headrace_conn_id).installation
        with tempfile.TemporaryDirectory(prefix="headrace-result-") as directory:
            result = Path(directory) / "result.json"
            options = [*arguments, *self.addresses(installation), "--result", str(result)]
            if needs_spark:
                self._running = SparkApplication(
                    installation,
                    spark_conn_id=self.spark_conn_id,
                    name=f"{self.task_id} {' '.join(arguments)}"[:200],
                    conf=conf_of(self.conf),
                    arguments=options,
                )
            else:
                self._running = PythonProgram(installation, arguments=options)
            try:
                self._running.run(Path(self.program))
            except AirflowException as error:
                if problems := problems_in(read_result(result)):
                    # A retry would find the same problems.
                    raise AirflowFailException("; ".join(problems)) from error
                raise
            return read_result(result)

    def addresses(self, installation: Installation) -> list[str]:
        """Returns the options with the installation's addresses."""
        return addresses(installation)

    def on_kill(self) -> None:
        if self._running is not None:
            self._running.kill()


class WarehouseJobOperator(SparkProgramOperator):
    """Runs a command of `headrace.warehouse.job` (compact, verify, retain, …) on `topics`.

    Starts Spark only for commands that need it. `verify` and `refill` ask the installation's audit store.
    Returns the command's result.
    """

    template_fields: Sequence[str] = ("topics", "arguments", "root", "conf")

    def __init__(self, *, command: str, topics: Sequence[str], root: str = "/data", **kwargs: Any) -> None:
        super().__init__(program=JOB, **kwargs)
        self.command = command
        self.topics = topics
        self.root = root

    def execute(self, context: Context) -> Any:
        return self.run_command(self.arguments, needs_spark=self.command not in PLAIN_COMMANDS)

    def addresses(self, installation: Installation) -> list[str]:
        more = []
        if self.command in ("load", "replay", "refill") and installation.zookeeper:
            more = ["--zookeeper", installation.zookeeper]
        if self.command in ("verify", "refill"):
            # Its URL may hold a password, so it is none of the arguments, which name the Spark application.
            more += ["--audit-store", installation.audit_store]
        # With the datacenters' names, which this program knows; the last option of a name counts.
        return [*addresses(installation), "--registry-url", installation.registry_url, *more]

    def run_command(self, arguments: Sequence[str], *, needs_spark: bool) -> Any:
        """Runs the command with these options after the common ones."""
        return self.run_program(
            [self.command, *self.topics, "--root", self.root, *arguments], needs_spark=needs_spark
        )


class LoadTopicOperator(WarehouseJobOperator):
    """Loads new records of `topic` into hourly Parquet files, exactly once.

    It is safe to repeat, to kill, or to run twice at once. `until` (ISO 8601) loads only records before that
    time; empty: up to the log's end. `dry_run` prints the plan, stores it as XCom `plan` and skips the task,
    so that no asset is updated. `made_again` says of a topic that was deleted and made again whether its log
    is `new`, or a `copy` of the one that is loaded, or both of some partitions (`new:0 copy:1,2`); else such
    a load fails. Returns the load's result.
    """

    template_fields: Sequence[str] = ("topic", "until", "dry_run", "made_again", "root", "conf")
    operator_extra_links: ClassVar = (AuditReportLink(),)
    ui_color = "#c9dfe8"

    def __init__(
        self,
        *,
        topic: str,
        until: str | None = None,
        dry_run: str | bool = False,
        accept_gap: bool = False,
        made_again: str = "",
        **kwargs: Any,
    ) -> None:
        super().__init__(command="load", topics=(topic,), **kwargs)
        self.topic = topic
        self.until = until
        self.dry_run = dry_run
        self.accept_gap = accept_gap
        self.made_again = made_again

    def execute(self, context: Context) -> Any:
        # Only now: `topic` may be a template.
        self.topics = (self.topic,)
        is_dry = is_true(self.dry_run)
        results = self.run_command(
            [
                *(("--until", str(self.until)) if self.until else ()),
                *(("--accept-gap",) if self.accept_gap else ()),
                *(word for each in self.made_again.split() for word in ("--made-again", each)),
                *(("--dry-run",) if is_dry else ()),
            ],
            needs_spark=not is_dry,
        )
        # The job returns one result for each of its topics.
        result = results[0] if results else None
        if is_dry:
            context["ti"].xcom_push("plan", result)
            raise AirflowSkipException(f"dry run: nothing of {self.topic} was loaded; the plan is above")
        return result


def addresses(installation: Installation) -> list[str]:
    """Returns the options with the installation's addresses."""
    return [
        *("--bootstrap", installation.bootstrap),
        *("--registry-url", without_names(installation.registry_url)),
        *("--hdfs-url", installation.hdfs_url),
        *("--webhdfs-url", installation.webhdfs_url),
    ]


def read_result(path: Path) -> Any:
    """Returns a program's JSON, None if there is none. If it is too large for an XCom, its lists are cut: the
    program has done its work by then, and a repetition would end no better.
    """
    if not path.exists():
        return None
    if (size := path.stat().st_size) > RESULT_READ_MAX_BYTES:
        raise ValueError(f"the program's result has {size} bytes, more than {RESULT_READ_MAX_BYTES}")
    result = json.loads(path.read_text())
    if size <= RESULT_MAX_BYTES:
        return result
    for most in ENTRIES_KEPT:
        kept = shortened(result, most)
        if len(json.dumps(kept)) <= RESULT_MAX_BYTES:
            log.warning("the result has %s bytes: at most %s entries of each list are kept", size, most)
            return kept
    raise ValueError(
        f"the program's result has {size} bytes, more than {RESULT_MAX_BYTES} also with its lists cut"
    )


def shortened(value: Any, most: int) -> Any:
    """Returns a value of JSON with the first entries of each list, and of each object with many names."""
    if isinstance(value, list):
        return [shortened(each, most) for each in value[:most]]
    if isinstance(value, dict):
        left = len(value) if len(value) <= NAMES_MAX else most
        return {name: shortened(each, most) for name, each in itertools.islice(value.items(), left)}
    return value


def problems_in(result: Any) -> list[str]:
    """Returns the problems that a program found, of topics or of single hours: the first ones, and how many
    more there are.
    """
    reports = [report for report in result or () if isinstance(report, dict)]
    problems = [f"{_place(report)}: {problem}" for report in reports for problem in _told(report)]
    more = len(problems) - PROBLEMS_MAX
    return problems[:PROBLEMS_MAX] + ([f"and {more} more problems"] if more > 0 else [])


def _told(report: Mapping[str, Any]) -> list[str]:
    problem = report.get("problem")
    return [*report.get("problems", ()), *([problem] if problem else [])]


def _place(report: Mapping[str, Any]) -> str:
    hour_ms = report.get("hour_ms")
    return f"{report.get('topic')}" + (f", {hour_name(hour_ms)}" if isinstance(hour_ms, int) else "")


def is_true(value: str | bool) -> bool:
    """Returns a flag that may be the text of a template. Raises `ValueError` for other texts."""
    if isinstance(value, bool):
        return value
    text = value.strip().lower()
    if text not in ("true", "false", ""):
        raise ValueError(f"dry_run is {value!r}; it must be true or false")
    return text == "true"
