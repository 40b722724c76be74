"""The REST client against a fake Airflow: login, waiting, retries over restarts, and the text of failures."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from headrace.fleet.airflow_client import AirflowClient, AirflowError, Run, RunFailedError, last_error

RUN = {
    "dag_id": "load-page-view",
    "dag_run_id": "manual__2026-11-20T18:00:00+00:00",
    "state": "queued",
    "run_type": "manual",
}
Handler = Callable[[httpx.Request], httpx.Response]


class Clock:
    """Time that passes only in `sleep`."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


class FakeAirflow:
    """Responds from a table: (method, path) → the responses, in this order; the last one is repeated."""

    def __init__(self, responses: dict[tuple[str, str], list[Any]]) -> None:
        self.responses = {("POST", "/auth/token"): [{"access_token": "t1"}], **responses}
        self.requests: list[tuple[str, str, Any]] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        # The path as it is sent: a run id has many characters that a URL quotes.
        path = request.url.raw_path.decode().partition("?")[0].removeprefix("/api/v2")
        self.requests.append((request.method, path, json.loads(request.content) if request.content else None))
        left = self.responses[request.method, path]
        response = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(response, Exception):
            raise response
        status, body = response if isinstance(response, tuple) else (200, response)
        return httpx.Response(status, json=body)

    def count(self, method: str, path: str) -> int:
        return sum(request[:2] == (method, path) for request in self.requests)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def connect(clock: Clock) -> Iterator[Callable[[FakeAirflow], AirflowClient]]:
    clients: list[AirflowClient] = []

    def make(airflow: FakeAirflow) -> AirflowClient:
        client = AirflowClient(
            "http://airflow:8080/",
            user="admin",
            password="secret",
            clock=clock,
            sleep=clock.sleep,
            transport=httpx.MockTransport(airflow),
        )
        clients.append(client)
        return client

    yield make
    for client in clients:
        client.close()


Connect = Callable[[FakeAirflow], AirflowClient]
DAG = "/dags/load-page-view"
RUN_PATH = f"{DAG}/dagRuns/manual__2026-11-20T18%3A00%3A00%2B00%3A00"


def run(**more: Any) -> Run:
    return Run("load-page-view", str(RUN["dag_run_id"]), "queued", "manual")._replace(**more)


def test_triggering_unpauses_and_sends_the_params(connect: Connect) -> None:
    airflow = FakeAirflow({("PATCH", DAG): [(404, {}), {}], ("POST", f"{DAG}/dagRuns"): [RUN]})
    triggered = connect(airflow).trigger("load-page-view", {"dry_run": True})
    assert (triggered.run_id, triggered.state) == (RUN["dag_run_id"], "queued")
    assert airflow.requests[0] == ("POST", "/auth/token", {"username": "admin", "password": "secret"})
    assert airflow.count("PATCH", DAG) == 2
    assert airflow.requests[-1][2] == {"logical_date": None, "conf": {"dry_run": True}}


def test_a_dag_that_never_appears_is_named_with_the_import_error(connect: Connect, clock: Clock) -> None:
    errors = {
        "import_errors": [{"filename": "headrace_topics.py", "stack_trace": "Traceback\n  x\nBad: y\n"}]
    }
    airflow = FakeAirflow({("PATCH", DAG): [(404, {})], ("GET", "/importErrors"): [errors]})
    with pytest.raises(
        AirflowError, match=r"no DAG load-page-view; headrace_topics.py cannot be .*: Bad: y$"
    ):
        connect(airflow).trigger("load-page-view")
    assert 90 <= clock.now_s < 92


def test_waiting_ends_with_success(connect: Connect) -> None:
    states = [{**RUN, "state": state} for state in ("queued", "running", "success")]
    airflow = FakeAirflow({("GET", RUN_PATH): states})
    assert connect(airflow).wait(run(), timeout_s=60).state == "success"
    assert airflow.count("GET", RUN_PATH) == 3


def test_a_wait_survives_a_restart_an_expired_token_and_a_transient_error(
    connect: Connect, clock: Clock
) -> None:
    airflow = FakeAirflow(
        {
            ("POST", "/auth/token"): [{"access_token": "t1"}, {"access_token": "t2"}],
            ("GET", RUN_PATH): [
                httpx.ConnectError("refused"),
                httpx.ReadTimeout("slow"),
                (401, {}),
                (500, {}),
                {**RUN, "state": "success"},
            ],
        }
    )
    assert connect(airflow).wait(run(), timeout_s=60).state == "success"
    assert airflow.count("POST", "/auth/token") == 2


def test_a_trigger_that_may_have_arrived_is_not_repeated(connect: Connect) -> None:
    airflow = FakeAirflow(
        {("PATCH", DAG): [{}], ("POST", f"{DAG}/dagRuns"): [httpx.ReadTimeout("slow"), RUN]}
    )
    with pytest.raises(AirflowError, match="does not answer: slow"):
        connect(airflow).trigger("load-page-view")
    assert airflow.count("POST", f"{DAG}/dagRuns") == 1
    refused = FakeAirflow(
        {("PATCH", DAG): [{}], ("POST", f"{DAG}/dagRuns"): [httpx.ConnectError("refused"), RUN]}
    )
    assert connect(refused).trigger("load-page-view").state == "queued"


def test_a_wait_that_times_out_names_the_tasks_states(connect: Connect, clock: Clock) -> None:
    tasks = {"task_instances": [{"task_id": "load", "map_index": -1, "state": "running", "try_number": 1}]}
    airflow = FakeAirflow(
        {("GET", RUN_PATH): [{**RUN, "state": "running"}], ("GET", f"{RUN_PATH}/taskInstances"): [tasks]}
    )
    with pytest.raises(AirflowError, match=r"is still running after 5 s \(load running\)"):
        connect(airflow).wait(run(), timeout_s=5)
    assert 5 <= clock.now_s < 7


def test_a_failed_run_has_the_problem_of_each_failed_task(connect: Connect) -> None:
    rows = [
        {"task_id": "audit", "map_index": 0, "state": "success", "try_number": 1},
        {"task_id": "every_hour_sealed", "map_index": -1, "state": "failed", "try_number": 2},
    ]
    log = [
        {"event": "noise", "level": "info"},
        {"event": "Task failed", "level": "error", "error_detail": [{"exc_value": "7 events lost"}]},
        {"event": "more noise", "level": "info"},
    ]
    airflow = FakeAirflow(
        {
            ("GET", RUN_PATH): [{**RUN, "state": "failed"}],
            ("GET", f"{RUN_PATH}/taskInstances"): [{"task_instances": rows}],
            ("GET", f"{RUN_PATH}/taskInstances/every_hour_sealed/logs/2"): [{"content": log}],
        }
    )
    with pytest.raises(
        RunFailedError, match="of load-page-view failed: every_hour_sealed: 7 events lost"
    ) as error:
        connect(airflow).wait(run(), timeout_s=5)
    assert error.value.problems == {"every_hour_sealed": "7 events lost"}


def test_the_run_that_an_asset_caused_is_found(connect: Connect, clock: Clock) -> None:
    other = {**RUN, "dag_id": "seal", "dag_run_id": "a", "run_type": "scheduled"}
    mine = {**RUN, "dag_id": "seal", "dag_run_id": "b", "run_type": "asset_triggered"}
    event = {"source_dag_id": "load-page-view", "source_run_id": RUN["dag_run_id"]}
    airflow = FakeAirflow(
        {
            ("GET", RUN_PATH): [RUN],
            ("GET", f"{RUN_PATH.rpartition('/')[0]}/else"): [{**RUN, "dag_run_id": "else"}],
            ("GET", "/dags/seal/dagRuns"): [{"dag_runs": [other]}, {"dag_runs": [mine, other]}],
            ("GET", "/dags/seal/dagRuns/b/upstreamAssetEvents"): [{"asset_events": [event]}],
        }
    )
    assert connect(airflow).run_caused_by("seal", run(), timeout_s=5).run_id == "b"
    with pytest.raises(AirflowError, match=r"no run of seal followed .* is seal paused"):
        connect(airflow).run_caused_by("seal", run(run_id="else"), timeout_s=5)


@pytest.mark.parametrize(("queued_at", "follows"), [("09:00:10.5Z", True), ("09:00:09.5Z", False)])
def test_a_run_that_was_queued_once_the_cause_had_ended_follows_it(
    connect: Connect, queued_at: str, follows: bool
) -> None:
    """Airflow puts an update down to no run if an earlier one waited for the same run, which began later."""
    sealing = {**RUN, "dag_id": "seal", "dag_run_id": "b", "run_type": "asset_triggered"}
    sealing["queued_at"] = f"2026-11-24T{queued_at}"
    event = {"source_dag_id": "load-page-view", "source_run_id": "an earlier load"}
    load = {**RUN, "state": "success", "end_date": "2026-11-24T09:00:10Z"}
    airflow = FakeAirflow(
        {
            ("GET", RUN_PATH): [load],
            ("GET", "/dags/seal/dagRuns"): [{"dag_runs": [sealing]}],
            ("GET", "/dags/seal/dagRuns/b/upstreamAssetEvents"): [{"asset_events": [event]}],
        }
    )
    if follows:
        assert connect(airflow).run_caused_by("seal", run(), timeout_s=5).run_id == "b"
        return
    with pytest.raises(AirflowError, match=r"no run of seal followed"):
        connect(airflow).run_caused_by("seal", run(), timeout_s=5)


def test_a_refusal_is_one_line_with_the_servers_message(connect: Connect) -> None:
    airflow = FakeAirflow({("POST", "/auth/token"): [(401, {"detail": "Invalid credentials"})]})
    with pytest.raises(AirflowError, match=r"refuses user admin: .*Invalid credentials"):
        connect(airflow).runs("seal")
    airflow = FakeAirflow({("GET", "/dags/seal/dagRuns"): [(422, {"detail": "limit"})]})
    with pytest.raises(AirflowError, match=r"answers 422 to GET /api/v2/dags/seal/dagRuns: .*limit"):
        connect(airflow).runs("seal")


def test_a_request_that_a_busy_database_refused_is_repeated(connect: Connect) -> None:
    airflow = FakeAirflow(
        {
            ("PATCH", DAG): [{}],
            ("POST", f"{DAG}/dagRuns"): [(503, {"detail": "Database is locked."}), RUN],
        }
    )
    assert connect(airflow).trigger("load-page-view").state == "queued"
    assert airflow.count("POST", f"{DAG}/dagRuns") == 2


def test_a_persistent_error_is_raised(connect: Connect, clock: Clock) -> None:
    airflow = FakeAirflow({("GET", "/dags/seal/dagRuns"): [(500, {"detail": "broken"})]})
    with pytest.raises(AirflowError, match=r"answers 500 to GET .*broken"):
        connect(airflow).runs("seal")
    assert 60 <= clock.now_s < 65


def test_the_last_error_of_a_log() -> None:
    assert last_error([]) == "its log has no error line"
    assert last_error(["text", {"event": "it broke", "level": "error"}]) == "it broke"


def test_a_dag_may_be_unknown_and_its_file_is_read_at_once(
    connect: Callable[[FakeAirflow], AirflowClient],
) -> None:
    airflow = FakeAirflow(
        {
            ("GET", "/dags/load-new"): [(404, {}), {"is_paused": True}, {"is_paused": False}],
            ("GET", "/dags"): [{"dags": [{"file_token": "a.b/c"}]}, {"dags": []}],
            ("PUT", "/parseDagFile/a.b%2Fc"): [(201, None)],
        }
    )
    client = connect(airflow)
    assert [client.is_paused("load-new") for _ in range(3)] == [None, True, False]
    client.read_dags_again("load")
    assert airflow.count("PUT", "/parseDagFile/a.b%2Fc") == 1
    client.read_dags_again("load")
    assert airflow.count("PUT", "/parseDagFile/a.b%2Fc") == 1, "no DAG has the tag"


@pytest.mark.parametrize(("status", "refused"), [(409, False), (403, True)])
def test_a_file_that_is_about_to_be_read_is_no_error(
    status: int, refused: bool, connect: Callable[[FakeAirflow], AirflowClient]
) -> None:
    client = connect(
        FakeAirflow(
            {
                ("GET", "/dags"): [{"dags": [{"file_token": "abc"}]}],
                ("PUT", "/parseDagFile/abc"): [(status, {})],
            }
        )
    )
    if refused:
        with pytest.raises(AirflowError, match="Airflow answers 403 to PUT"):
            client.read_dags_again("load")
    else:
        client.read_dags_again("load")
