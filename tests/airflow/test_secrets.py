"""The password in the audit store's URL: neither a task's log nor the name of a Spark application has it."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from airflow.sdk._shared.secrets_masker import redact, reset_secrets_masker

from headrace.airflow.hook import HeadraceHook
from headrace.airflow.operators import WarehouseJobOperator

PASSWORD = "correct-horse"
# Keeps the arguments of each start in a file, as a line.
STAND_IN = """#!/bin/sh
echo "$@" >> "$(dirname "$0")/arguments"
"""


@pytest.fixture
def main(tmp_path: Path, connection: dict[str, str], set_connection: Callable[..., None]) -> Iterator[Path]:
    """A stand-in for the main environment, and a connection to an audit store with a password."""
    for name in ("spark-submit", "python"):
        (tmp_path / name).write_text(STAND_IN)
        (tmp_path / name).chmod(0o755)
    store = f"postgresql+psycopg://audit:{PASSWORD}@127.108.9.5/audit"
    extra = {**connection, "python": str(tmp_path / "python"), "audit_store": store}
    set_connection("headrace_default", {"conn_type": "headrace", "extra": extra})
    yield tmp_path
    reset_secrets_masker()


@pytest.mark.parametrize("command", ["verify", "refill"])
def test_neither_log_nor_application_name_has_the_password(
    main: Path, command: str, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level("INFO")
    task = WarehouseJobOperator(task_id="orders", command=command, topics=["orders"])
    task.execute({})
    started = (main / "arguments").read_text()
    assert f"--audit-store postgresql+psycopg://audit:{PASSWORD}@" in started
    application_name = started.partition("--name ")[2].partition(" --")[0]
    assert PASSWORD not in application_name
    logged = caplog.text + capsys.readouterr().out
    assert "--audit-store" in logged
    # As Airflow writes what a task logs.
    assert PASSWORD not in str(redact(logged))


@pytest.mark.parametrize(
    ("store", "is_masked"),
    [
        ("postgresql+psycopg://audit:p%40ss@127.108.9.5/audit", True),
        ("postgresql+psycopg://127.108.9.5/audit?user=audit&password=word", True),
        ("postgresql+psycopg://audit@127.108.9.5/audit", False),
        ("sqlite:////srv/audit.db", False),
        ("no store: word", True),
    ],
)
def test_only_a_url_with_a_password_is_masked(
    main: Path,
    connection: dict[str, str],
    set_connection: Callable[..., None],
    store: str,
    is_masked: bool,
) -> None:
    extra = {**connection, "audit_store": store, "python": sys.executable}
    set_connection("headrace_default", {"conn_type": "headrace", "extra": extra})
    assert HeadraceHook().installation.audit_store == store
    assert (store not in str(redact(f"--audit-store {store}"))) is is_masked
