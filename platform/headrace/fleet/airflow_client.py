"""Triggers DAGs and waits for them, over Airflow's REST API (v2).

Owns the few calls that the demo, tests and scripts need: log in, unpause, trigger, wait, and what a failed
run said. Knows nothing of what the DAGs do.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from datetime import datetime
from types import TracebackType
from typing import Any, Final, NamedTuple, Self
from urllib.parse import quote

import httpx

from headrace.site.errors import SiteError

REQUEST_TIMEOUT_S: Final = 30.0
POLL_INTERVAL_S: Final = 0.5
RUNS_PER_PAGE: Final = 20
# How long a just started Airflow may take to know a DAG.
DAG_TIMEOUT_S: Final = 90.0
# The api-server may restart while somebody waits for a run.
UNREACHABLE_TIMEOUT_S: Final = 60.0
ENDED: Final = ("success", "failed")


class AirflowError(SiteError):
    """Airflow does not answer, or refuses."""


class RunFailedError(AirflowError):
    """A run ended in failure. `reasons`: task → what it said last."""

    def __init__(self, run: Run, reasons: Mapping[str, str]) -> None:
        self.run = run
        self.reasons = dict(reasons)
        said = "; ".join(f"{task}: {reason}" for task, reason in self.reasons.items())
        super().__init__(f"run {run.run_id} of {run.dag_id} failed: {said or 'no task says why'}")


class Run(NamedTuple):
    """One DAG run; `state` is Airflow's word (queued, running, success, failed)."""

    dag_id: str
    run_id: str
    state: str
    run_type: str
    queued_at: datetime | None
    conf: Mapping[str, Any]

    @property
    def has_ended(self) -> bool:
        return self.state in ENDED


class TaskState(NamedTuple):
    """One task instance of a run; `map_index` is -1 unless the task is mapped."""

    task_id: str
    map_index: int
    state: str | None
    try_number: int


class AirflowClient:
    """One Airflow, as one user. Raises `AirflowError`, one line, for whatever goes wrong."""

    def __init__(
        self,
        url: str,
        *,
        user: str,
        password: str,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        self.url = url.rstrip("/")
        self._user, self._password = user, password
        self._clock, self._sleep = clock, sleep
        self._token: str | None = None
        self._http = httpx.Client(
            base_url=self.url,
            timeout=REQUEST_TIMEOUT_S,
            trust_env=False,
            # Reading the authorities costs as much as fifty requests.
            verify=not self.url.startswith("http:"),
            transport=transport,
        )

    def close(self) -> None:
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def trigger(
        self,
        dag_id: str,
        conf: Mapping[str, Any] | None = None,
        *,
        partition_key: str | None = None,
        dag_timeout_s: float = DAG_TIMEOUT_S,
    ) -> Run:
        """Starts a run now, unpausing the DAG; `conf` sets its params. Waits for the DAG to be known."""
        self.unpause(dag_id, timeout_s=dag_timeout_s)
        body: dict[str, Any] = {"logical_date": None, "conf": dict(conf or {})}
        if partition_key is not None:
            body["partition_key"] = partition_key
        return _run(self._ask("POST", f"/dags/{quote(dag_id)}/dagRuns", json=body))

    def backfill(self, dag_id: str, since: datetime, until: datetime) -> list[Run]:
        """Airflow's own backfill: a run for each slot of the schedule from `since` to `until`, in their
        order.

        Slots that have a run already get no other.
        """
        self.unpause(dag_id)
        body = {
            "dag_id": dag_id,
            "from_date": since.isoformat(),
            "to_date": until.isoformat(),
            "max_active_runs": 1,
        }
        self._ask("POST", "/backfills", json=body)
        params = {
            "run_type": "backfill",
            "logical_date_gte": body["from_date"],
            "logical_date_lte": body["to_date"],
            "order_by": "logical_date",
            "limit": 100,
        }
        return [
            _run(row) for row in self._ask("GET", f"/dags/{quote(dag_id)}/dagRuns", params=params)["dag_runs"]
        ]

    def unpause(self, dag_id: str, *, timeout_s: float = DAG_TIMEOUT_S) -> None:
        """Lets the scheduler run a DAG, once it is known."""
        deadline = self._clock() + timeout_s
        while True:
            answer = self._request("PATCH", f"/dags/{quote(dag_id)}", json={"is_paused": False})
            if answer.status_code != 404:
                self._checked(answer)
                return
            if self._clock() > deadline:
                raise AirflowError(f"Airflow at {self.url} has no DAG {dag_id}{self._import_errors()}")
            self._sleep(POLL_INTERVAL_S)

    def wait(self, run: Run, *, timeout_s: float) -> Run:
        """Returns when the run has succeeded. Raises `RunFailedError`; `AirflowError` after `timeout_s`."""
        deadline = self._clock() + timeout_s
        while True:
            run = self.run(run.dag_id, run.run_id)
            if run.state == "failed":
                raise RunFailedError(run, self.reasons(run))
            if run.has_ended:
                return run
            if self._clock() > deadline:
                doing = ", ".join(f"{task.task_id} {task.state}" for task in self.tasks(run) if task.state)
                raise AirflowError(
                    f"run {run.run_id} of {run.dag_id} is still {run.state} after {timeout_s:.0f} s"
                    f" ({doing or 'no task was started'})"
                )
            self._sleep(POLL_INTERVAL_S)

    def run(self, dag_id: str, run_id: str) -> Run:
        return _run(self._ask("GET", f"/dags/{quote(dag_id)}/dagRuns/{quote(run_id, safe='')}"))

    def runs(self, dag_id: str) -> list[Run]:
        """The latest runs, newest first."""
        found = self._ask(
            "GET", f"/dags/{quote(dag_id)}/dagRuns", params={"order_by": "-id", "limit": RUNS_PER_PAGE}
        )
        return [_run(row) for row in found["dag_runs"]]

    def run_caused_by(self, dag_id: str, cause: Run, *, timeout_s: float) -> Run:
        """The run of `dag_id` that an asset updated by the run `cause` has started, once it is there."""
        deadline = self._clock() + timeout_s
        while True:
            for run in self.runs(dag_id):
                if run.run_type == "asset_triggered" and self._was_caused_by(run, cause):
                    return run
            if self._clock() > deadline:
                raise AirflowError(
                    f"no run of {dag_id} followed run {cause.run_id} of {cause.dag_id} "
                    f"within {timeout_s:.0f} s; is {dag_id} paused?"
                )
            self._sleep(POLL_INTERVAL_S)

    def _was_caused_by(self, run: Run, cause: Run) -> bool:
        path = f"/dags/{quote(run.dag_id)}/dagRuns/{quote(run.run_id, safe='')}/upstreamAssetEvents"
        events = self._ask("GET", path)["asset_events"]
        return any(
            event["source_dag_id"] == cause.dag_id and event["source_run_id"] == cause.run_id
            for event in events
        )

    def tasks(self, run: Run) -> list[TaskState]:
        """Every task instance of a run."""
        path = f"/dags/{quote(run.dag_id)}/dagRuns/{quote(run.run_id, safe='')}/taskInstances"
        return [
            TaskState(row["task_id"], row["map_index"], row["state"], row["try_number"])
            for row in self._ask("GET", path, params={"limit": 1000})["task_instances"]
        ]

    def asset_events(self, run: Run) -> list[dict[str, Any]]:
        """What a run has updated: asset events as Airflow gives them (`name`, `partition_key`, `extra`)."""
        params = {"source_dag_id": run.dag_id, "source_run_id": run.run_id, "limit": 1000}
        events: list[dict[str, Any]] = self._ask("GET", "/assets/events", params=params)["asset_events"]
        return events

    def reasons(self, run: Run) -> dict[str, str]:
        """The last error in the log of each failed task of a run."""
        found = {}
        for task in self.tasks(run):
            if task.state == "failed":
                name = task.task_id if task.map_index < 0 else f"{task.task_id}[{task.map_index}]"
                found[name] = self._last_error(run, task)
        return found

    def _last_error(self, run: Run, task: TaskState) -> str:
        answer = self._request(
            "GET",
            f"/dags/{quote(run.dag_id)}/dagRuns/{quote(run.run_id, safe='')}"
            f"/taskInstances/{quote(task.task_id)}/logs/{task.try_number}",
            params={"map_index": task.map_index, "full_content": True},
        )
        if answer.status_code != 200:
            return "its log cannot be read"
        return last_error(answer.json().get("content", []))

    def _import_errors(self) -> str:
        rows = self._ask("GET", "/importErrors")["import_errors"]
        if not rows:
            return ""
        lines = [line for line in rows[0]["stack_trace"].splitlines() if line.strip()]
        return f"; {rows[0]['filename']} cannot be imported: {lines[-1] if lines else 'no reason given'}"

    def _ask(self, method: str, path: str, **options: Any) -> Any:
        return self._checked(self._request(method, path, **options)).json()

    def _checked(self, answer: httpx.Response) -> httpx.Response:
        if answer.is_error:
            raise AirflowError(
                f"Airflow answers {answer.status_code} to {answer.request.method} {answer.request.url.path}: "
                f"{answer.text[:300]}"
            )
        return answer

    def _request(self, method: str, path: str, **options: Any) -> httpx.Response:
        """One request; logs in when needed, and waits for an api-server that is just restarting."""
        deadline = self._clock() + UNREACHABLE_TIMEOUT_S
        while True:
            try:
                if self._token is None:
                    self._token = self._log_in()
                headers = {"Authorization": f"Bearer {self._token}"}
                answer = self._http.request(method, f"/api/v2{path}", headers=headers, **options)
            except httpx.TransportError as error:
                # A POST may have arrived: only a refused connection is certain not to have.
                if self._clock() > deadline or (
                    method == "POST" and not isinstance(error, httpx.ConnectError)
                ):
                    raise AirflowError(f"Airflow at {self.url} does not answer: {error}") from error
                self._sleep(POLL_INTERVAL_S)
                continue
            if answer.status_code == 401 and self._clock() <= deadline:
                # The token is only good for a day.
                self._token = None
                self._sleep(POLL_INTERVAL_S)
                continue
            if answer.status_code == 503 and self._clock() <= deadline:
                # By this Airflow says that its database was busy, and that it has done nothing.
                self._sleep(POLL_INTERVAL_S)
                continue
            if answer.is_server_error and method == "GET" and self._clock() <= deadline:
                # Airflow 3.3 fails to show an asset event while a run that it caused has not started yet.
                self._sleep(POLL_INTERVAL_S)
                continue
            return answer

    def _log_in(self) -> str:
        answer = self._http.post("/auth/token", json={"username": self._user, "password": self._password})
        if answer.is_error:
            raise AirflowError(f"Airflow at {self.url} refuses user {self._user}: {answer.text[:200]}")
        token: str = answer.json()["access_token"]
        return token


def last_error(log: list[Any]) -> str:
    """The last error line of a task's structured log, with the exception's own words when it has one."""
    for line in reversed(log):
        if isinstance(line, dict) and line.get("level") in ("error", "critical"):
            details = line.get("error_detail") or []
            if details:
                return f"{details[0].get('exc_value') or details[0].get('exc_type')}"
            return str(line.get("event"))
    return "its log says nothing"


def _run(row: Mapping[str, Any]) -> Run:
    queued = row.get("queued_at")
    return Run(
        dag_id=row["dag_id"],
        run_id=row["dag_run_id"],
        state=row["state"],
        run_type=row["run_type"],
        queued_at=datetime.fromisoformat(queued) if queued else None,
        conf=row.get("conf") or {},
    )
