"""Options of `audit report` and `warehouse ls`: `--wait`, as in docs/first-topic.md, and `--root`."""

from __future__ import annotations

from pathlib import Path

import pytest

from fix_audit_world import received
from fix_cli import Headrace, command_runner
from headrace.audit.store.store import AuditStore
from headrace.audit.topic.load_report import LoadedPartition, LoadReport
from headrace.cli import warehouse as cli_warehouse
from headrace.cli.errors import ExitCode
from headrace.cli.warehouse import Span, is_sealed
from headrace.tables import connect
from headrace.warehouse import api
from headrace.warehouse.api import HourSummary
from headrace.warehouse.layout import HOUR_MS
from headrace.warehouse.options import WarehouseOptions


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Headrace:
    """Commands in a home where nothing runs."""
    monkeypatch.setenv("HEADRACE_HOME", str(tmp_path))
    monkeypatch.delenv("HEADRACE_CONTEXT", raising=False)
    return command_runner(monkeypatch, capsys)


def hour_of(number: int, version: int | None, *, is_stale: bool = False) -> HourSummary:
    return HourSummary(
        hour=str(number),
        hour_ms=number * HOUR_MS,
        rows=1,
        files=1,
        size_bytes=1,
        sealed_version=version,
        sealed_rows=None if version is None else 1,
        is_stale=is_stale,
        counted_from=None,
    )


def test_hours_are_sealed_once_each_seal_vouches_for_all_rows() -> None:
    sealed, late, unsealed = hour_of(1, 1), hour_of(2, 1, is_stale=True), hour_of(3, None)
    assert is_sealed([sealed])
    assert not is_sealed([]), "what is not loaded yet is not sealed"
    assert not is_sealed([sealed, late]) and not is_sealed([sealed, unsealed])


def test_a_span_has_its_first_hour_and_not_the_one_at_its_end() -> None:
    hours = [hour_of(number, None) for number in range(5)]

    def chosen(span: Span) -> list[str]:
        return [hour.hour for hour in hours if span.has(hour)]

    assert chosen(Span(None, None)) == ["0", "1", "2", "3", "4"]
    assert chosen(Span(HOUR_MS, 3 * HOUR_MS)) == ["1", "2"]
    assert chosen(Span(HOUR_MS + 1, 3 * HOUR_MS + 1)) == ["2", "3"]


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("warehouse", "ls", "--wait", "5m"), "--from, --to and --wait need a TOPIC"),
        (("warehouse", "ls", "--to", "-1h"), "--from, --to and --wait need a TOPIC"),
        (("warehouse", "ls", "t", "--wait", "soon"), "--wait: 'soon' is not a duration"),
        (("audit", "report", "--wait", "soon"), "--wait: 'soon' is not a duration"),
    ],
)
def test_wrong_words_are_refused_at_once(run: Headrace, words: tuple[str, ...], error: str) -> None:
    result = run(*words)
    assert result.exit_code == ExitCode.USAGE and error in result.err, result.err


def test_a_report_waits_for_nothing_longer_than_it_may(run: Headrace, tmp_path: Path) -> None:
    """A store that does not exist is told at once: there is nothing to wait for."""
    result = run("audit", "report", "--wait", "5m", "--store", f"sqlite:///{tmp_path}/none.db")
    assert result.exit_code == ExitCode.UNREACHABLE and "there is no audit store" in result.err


def test_tables_may_be_below_another_directory(
    run: Headrace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As those of a load with an output of its own, of which a second table would be made."""
    seen: list[str] = []

    def list_tables(options: WarehouseOptions) -> list[str]:
        seen.append(options.root)
        return []

    monkeypatch.setattr(api, "list_tables", list_tables)
    for words in ((), ("--root", "/finance")):
        assert run("warehouse", "ls", *words).exit_code == 0
    assert seen == ["/data", "/finance"]
    wrong = run("warehouse", "ls", "--root", "finance")
    assert wrong.exit_code == ExitCode.USAGE and "--root 'finance' does not begin with /" in wrong.err
    assert connect("site", root="/finance").warehouse.root == "/finance"
    # Commands of the audit take the directory of the topic's last load.
    store = AuditStore(f"sqlite:///{tmp_path}/audit.db")
    url = cli_warehouse.warehouse().hdfs_url
    names = {"page-view": f"{url}/data", "orders": f"{url}/finance/eu", "moved": "hdfs://other:1/finance"}
    for topic, name in names.items():
        store.fold([received(LoadReport(name, topic, 0, 5, (LoadedPartition(0, 0, 9),)))])
    roots = [cli_warehouse.warehouse_with(topic, store).root for topic in (*names, "unknown")]
    assert roots == ["/data", "/finance/eu", "/data", "/data"]
    store.close()
