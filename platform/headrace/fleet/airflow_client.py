"""A client of Airflow's REST API (v2): triggers DAGs and waits for their runs.

Owns login, retries while the api-server starts or is busy, waiting, and the problems of a failed run. Knows
nothing of what the DAGs do. Why not Airflow's own client: docs/decisions/0012-our-own-airflow-client.md.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from types import TracebackType
from typing import Any, Final, NamedTuple, Self
from urllib.parse import quote

import httpx

from headrace.site.errors import SiteError

REQUEST_TIMEOUT_S: Final = 30.0
POLL_INTERVAL_S: Final = 0.5
RUNS_PER_PAGE: Final = 20
TASKS_MAX: Final = 1000
# How long an Airflow that has just started may take until it knows a DAG.
DAG_TIMEOUT_S: Final = 90.0
# How long requests are repeated, for example while the api-server restarts.
UNREACHABLE_TIMEOUT_S: Final = 60.0
ENDED: Final = ("success", "failed")


class AirflowError(SiteError):
    """Airflow does not answer, or refuses a request."""


class RunFailedError(AirflowError):
    """A run has failed. `problems`: the last error of each failed task."""

    def __init__(self, run: Run, problems: Mapping[str, str]) -> None:
        self.run = run
        self.problems = dict(problems)
        text = "; ".join(f"{task}: {problem}" for task, problem in self.problems.items())
        super().__init__(f"run {run.run_id} of {run.dag_id} failed: {text or 'no task has failed'}")


class Run(NamedTuple):
    """One run of a DAG; `state` is Airflow's word (queued, running, success, failed)."""

    dag_id: str
    run_id: str
    state: str
    run_type: str
    queued_at: datetime | None = None
    ended_at: datetime | None = None

    @property
    def has_ended(self) -> bool:
        return self.state in ENDED

    @staticmethod
    def from_json(row: Mapping[str, Any]) -> Run:
        times = (_time(row.get(name)) for name in ("queued_at", "end_date"))
        return Run(row["dag_id"], row["dag_run_id"], row["state"], row["run_type"], *times)


def _time(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)


class TaskState(NamedTuple):
    """One task instance of a run; `map_index` is -1 unless the task is mapped."""

    task_id: str
    map_index: int
    state: str | None
    try_number: int

    @property
    def name(self) -> str:
        return self.task_id if self.map_index < 0 else f"{self.task_id}[{self.map_index}]"


class AirflowClient:
    """One Airflow, as one user. Every failure is an `AirflowError` with a message of one line."""

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
            # Loading the certificate authorities costs as much as fifty requests.
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

    def trigger(self, dag_id: str, conf: Mapping[str, Any] | None = None) -> Run:
        """Starts a run now, and unpauses the DAG before; `conf` sets the run's params."""
        self.unpause(dag_id)
        body = {"logical_date": None, "conf": dict(conf or {})}
        return Run.from_json(self.request_json("POST", f"{_dag_path(dag_id)}/dagRuns", json=body))

    def unpause(self, dag_id: str) -> None:
        """Unpauses a DAG; waits up to `DAG_TIMEOUT_S` until Airflow knows it."""
        for _ in self._polls(DAG_TIMEOUT_S):
            response = self._request("PATCH", _dag_path(dag_id), json={"is_paused": False})
            if response.status_code != 404:
                self._check(response)
                return
        raise AirflowError(f"Airflow at {self.url} has no DAG {dag_id}{self._import_error()}")

    def is_paused(self, dag_id: str) -> bool | None:
        """Returns whether a DAG is paused; None if Airflow does not know it."""
        response = self._request("GET", _dag_path(dag_id))
        return None if response.status_code == 404 else bool(self._check(response).json()["is_paused"])

    def read_dags_again(self, tag: str) -> None:
        """Makes Airflow read soon the file of the DAGs with this tag, for those that it does not know yet."""
        found = self.request_json("GET", "/dags", params={"tags": tag, "limit": 1})["dags"]
        for row in found:
            token = quote(row["file_token"], safe="")
            response = self._request("PUT", f"/parseDagFile/{token}")
            if response.status_code != 409:  # it was asked for already
                self._check(response)

    def wait(self, run: Run, *, timeout_s: float) -> Run:
        """Waits until a run has succeeded. Raises `RunFailedError`, or `AirflowError` after `timeout_s`."""
        for _ in self._polls(timeout_s):
            run = self.run(run.dag_id, run.run_id)
            if run.state == "failed":
                raise RunFailedError(run, self.problems(run))
            if run.has_ended:
                return run
        states = ", ".join(f"{task.name} {task.state}" for task in self.tasks(run) if task.state)
        raise AirflowError(
            f"run {run.run_id} of {run.dag_id} is still {run.state} after {timeout_s:.0f} s"
            f" ({states or 'no task has started'})"
        )

    def run(self, dag_id: str, run_id: str) -> Run:
        """Returns a run as it is now."""
        return Run.from_json(self.request_json("GET", _run_path(dag_id, run_id)))

    def runs(self, dag_id: str) -> list[Run]:
        """Returns the latest runs of a DAG, newest first."""
        params = {"order_by": "-id", "limit": RUNS_PER_PAGE}
        found = self.request_json("GET", f"{_dag_path(dag_id)}/dagRuns", params=params)
        return [Run.from_json(row) for row in found["dag_runs"]]

    def run_caused_by(self, dag_id: str, cause: Run, *, timeout_s: float) -> Run:
        """Waits for the run of `dag_id` that was started by an asset which the run `cause` has updated.

        That is also one that an asset started, and that was queued once `cause` had ended: if an earlier
        update waited already, Airflow puts the later one down to no run.
        """
        for _ in self._polls(timeout_s):
            ended_at = self.run(cause.dag_id, cause.run_id).ended_at
            for run in self.runs(dag_id):
                if run.run_type != "asset_triggered":
                    continue
                is_later = ended_at is not None and run.queued_at is not None and run.queued_at >= ended_at
                if is_later or self._was_caused_by(run, cause):
                    return run
        raise AirflowError(
            f"no run of {dag_id} followed run {cause.run_id} of {cause.dag_id} "
            f"within {timeout_s:.0f} s; is {dag_id} paused?"
        )

    def _was_caused_by(self, run: Run, cause: Run) -> bool:
        path = f"{_run_path(run.dag_id, run.run_id)}/upstreamAssetEvents"
        return any(
            (event["source_dag_id"], event["source_run_id"]) == (cause.dag_id, cause.run_id)
            for event in self.request_json("GET", path)["asset_events"]
        )

    def tasks(self, run: Run) -> list[TaskState]:
        """Returns the task instances of a run."""
        path = f"{_run_path(run.dag_id, run.run_id)}/taskInstances"
        return [
            TaskState(row["task_id"], row["map_index"], row["state"], row["try_number"])
            for row in self.request_json("GET", path, params={"limit": TASKS_MAX})["task_instances"]
        ]

    def problems(self, run: Run) -> dict[str, str]:
        """Returns the last error in the log of each failed task of a run."""
        return {task.name: self._last_error(run, task) for task in self.tasks(run) if task.state == "failed"}

    def _last_error(self, run: Run, task: TaskState) -> str:
        path = f"{_run_path(run.dag_id, run.run_id)}/taskInstances/{quote(task.task_id)}"
        response = self._request(
            "GET",
            f"{path}/logs/{task.try_number}",
            params={"map_index": task.map_index, "full_content": True},
        )
        if response.status_code != 200:
            return "its log cannot be read"
        return last_error(response.json().get("content", []))

    def _import_error(self) -> str:
        rows = self.request_json("GET", "/importErrors")["import_errors"]
        if not rows:
            return ""
        lines = [line for line in rows[0]["stack_trace"].splitlines() if line.strip()]
        return f"; {rows[0]['filename']} cannot be imported: {lines[-1] if lines else 'no cause given'}"

    def request_json(self, method: str, path: str, **options: Any) -> Any:
        """Sends a request to a path below `/api/v2`, and returns the response's JSON."""
        return self._check(self._request(method, path, **options)).json()

    def _check(self, response: httpx.Response) -> httpx.Response:
        if response.is_error:
            raise AirflowError(
                f"Airflow answers {response.status_code} to {response.request.method} "
                f"{response.request.url.path}: {response.text[:300]}"
            )
        return response

    def _polls(self, timeout_s: float) -> Iterator[None]:
        """Yields at once, and then every `POLL_INTERVAL_S` until the time is up."""
        deadline = self._clock() + timeout_s
        while True:
            yield
            if self._clock() > deadline:
                return
            self._sleep(POLL_INTERVAL_S)

    def _request(self, method: str, path: str, **options: Any) -> httpx.Response:
        """Sends a request, logging in if needed; repeats it for `UNREACHABLE_TIMEOUT_S` if that may help."""
        deadline = self._clock() + UNREACHABLE_TIMEOUT_S
        while True:
            try:
                if self._token is None:
                    self._token = self._log_in()
                headers = {"Authorization": f"Bearer {self._token}"}
                response = self._http.request(method, f"/api/v2{path}", headers=headers, **options)
            except httpx.TransportError as error:
                # A POST may have arrived, unless the connection was refused; it must not run twice.
                may_repeat = method != "POST" or isinstance(error, httpx.ConnectError)
                if self._clock() > deadline or not may_repeat:
                    raise AirflowError(f"Airflow at {self.url} does not answer: {error}") from error
            else:
                if self._clock() > deadline or not _may_pass(response):
                    return response
                if response.status_code == 401:
                    self._token = None
            self._sleep(POLL_INTERVAL_S)

    def _log_in(self) -> str:
        response = self._http.post("/auth/token", json={"username": self._user, "password": self._password})
        if response.is_error:
            raise AirflowError(f"Airflow at {self.url} refuses user {self._user}: {response.text[:200]}")
        token: str = response.json()["access_token"]
        return token


def _may_pass(response: httpx.Response) -> bool:
    """Whether the error is one that the same request may not meet again."""
    # 401: the token has expired, after a day. 503: Airflow's database was busy, and nothing has been done.
    if response.status_code in (401, 503):
        return True
    # Airflow 3.3 fails to show an asset event while a run that it caused has not started yet.
    return response.is_server_error and response.request.method == "GET"


def _dag_path(dag_id: str) -> str:
    return f"/dags/{quote(dag_id)}"


def _run_path(dag_id: str, run_id: str) -> str:
    return f"{_dag_path(dag_id)}/dagRuns/{quote(run_id, safe='')}"


def last_error(log: list[Any]) -> str:
    """Returns the last error in a task's structured log; its exception's message if it has one."""
    for line in reversed(log):
        if isinstance(line, dict) and line.get("level") in ("error", "critical"):
            details = line.get("error_detail") or []
            if details:
                return f"{details[0].get('exc_value') or details[0].get('exc_type')}"
            return str(line.get("event"))
    return "its log has no error line"
