"""A verification reads a large table bit by bit, and names each file that is not what it was."""

from __future__ import annotations

import contextlib
import io
import json
import random
import re
import sqlite3
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sqlalchemy import insert
from sqlalchemy.exc import SQLAlchemyError

from drill.drill_tables import HOUR, TOPIC, FolderHdfs, Table, drilled_table, load, report_loads
from headrace.audit.report.report import report
from headrace.audit.store import tables, upkeep
from headrace.audit.store.store import AuditStore, StoreMissingError
from headrace.audit.topic.publish import AuditPublishError
from headrace.audit.topic.said_of_tables import PROBLEMS_PER_RECORD_MAX, RECENT, VerifiedRecord
from headrace.warehouse import api, commitlog, completing, crash, refill
from headrace.warehouse.change import TopicTable
from headrace.warehouse.commitlog import CommitLog
from headrace.warehouse.counting import NotParquetError, count_file
from headrace.warehouse.errors import known_error
from headrace.warehouse.hdfs.client import FileStatus
from headrace.warehouse.layout import HOUR_MS, TopicPaths
from headrace.warehouse.manifest import TableState
from headrace.warehouse.options import WarehouseOptions
from headrace.warehouse.report import TEXT_MAX_CHARS, tell_verified, verified_record
from headrace.warehouse.retain import retain_topic
from headrace.warehouse.verify import NEW_MS, SHARES, VerifyResult, recent_hours, share_of, verify_topic

WAREHOUSE = WarehouseOptions("hdfs://x", "http://x", "x:1", "http://x", audit=False)


def table_of(folder: Path) -> TopicTable:
    """Two loads, each with a file in each of two hours."""
    hdfs = FolderHdfs(folder)
    table = Table(hdfs, CommitLog(hdfs, TopicPaths(WAREHOUSE.root, TOPIC)), random.Random(1))
    for number in range(2):
        load(table, number * 2_000, 20)
    return TopicTable(TOPIC, WAREHOUSE, hdfs)


def change_value(table: TopicTable, hour_ms: int) -> str:
    """Changes one byte of a value: the size and the number of rows stay."""
    file = table.log.state().hours()[hour_ms][0]
    data = bytearray(table.hdfs.read(file.path))
    at = data.index(b"/", 8) + 1
    data[at] ^= 1
    table.hdfs.write(file.path, bytes(data), overwrite=True)
    return file.path


def recent(table: TopicTable, now_ms: int, suspects: set[int] | None = None) -> VerifyResult:
    return verify_topic(replace(table, clock_ms=lambda: now_ms), checked=RECENT, suspects=suspects or ())


def when_turn(hour_ms: int, *, far_ms: int = 10**12) -> int:
    """A time, long after all changes, at which it is the turn of an hour's share."""
    return far_ms - far_ms % (HOUR_MS * SHARES) + share_of(hour_ms) * HOUR_MS


def test_the_audit_hears_nothing_of_a_topic_without_a_table() -> None:
    """A wrong name would stand in every report, as sound. Nothing listens at this address."""
    telling = replace(WAREHOUSE, audit=True, bootstrap="127.0.0.1:1", registry_url="http://127.0.0.1:1")
    tell_verified([VerifyResult("page-vew", (), files=0, rows=0, changes=0, audited_hours=0)], telling)


def test_new_hours_are_read_and_old_ones_when_it_is_their_turn(tmp_path: Path) -> None:
    table = table_of(tmp_path)
    path = change_value(table, HOUR)
    turn_ms = when_turn(HOUR)
    assert share_of(HOUR) != share_of(HOUR + HOUR_MS)
    problem = f"{path} has 20 rows, and other bytes than when it was written"
    for now_ms, files, problems in (
        (0, 4, (problem,)),
        (NEW_MS, 4, (problem,)),
        (turn_ms, 2, (problem,)),
        (when_turn(HOUR + HOUR_MS), 2, ()),
    ):
        found = recent(table, now_ms)
        assert (found.files, found.problems, found.checked) == (files, problems, RECENT), now_ms
    # What was wrong is looked at again, whoever's turn it is.
    found = recent(table, when_turn(HOUR + HOUR_MS), {HOUR})
    assert (found.files, found.problems) == (4, (problem,))
    (placed,) = found.placed
    assert (placed.hour_ms, placed.path, placed.rows, placed.is_gone) == (HOUR, path, 20, False)


def test_a_file_that_is_gone_or_has_another_size_is_named_in_every_turn(tmp_path: Path) -> None:
    table = table_of(tmp_path)
    gone, cut = (file.path for file in table.log.state().hours()[HOUR])
    table.hdfs.delete(gone)
    table.hdfs.write(cut, table.hdfs.read(cut)[:-9], overwrite=True)
    turn = next(n for n in range(SHARES) if n not in (share_of(HOUR), share_of(HOUR + HOUR_MS)))
    found = recent(table, when_turn(HOUR) + (turn - share_of(HOUR)) * HOUR_MS)
    assert found.files == 0
    assert {(each.path, each.is_gone) for each in found.placed} == {(gone, True), (cut, False)}
    record = verified_record(found, WAREHOUSE)
    assert (record.checked, record.problem_count, len(record.problems)) == (RECENT, 2, 2)
    assert VerifiedRecord.from_avro(record.to_avro()) == record


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("_timestamp", pa.array(["yesterday"])),
        ("_timestamp", pa.array([1 << 61], pa.timestamp("ms"))),
        ("_timestamp", pa.array([None], pa.timestamp("us", "UTC"))),
        ("_partition", pa.array(["west"])),
        ("_partition", pa.array([None], pa.int32())),
        ("_offset", pa.array([None], pa.int64())),
        ("_offset", pa.array([0.5])),
        ("_schema_id", pa.array([None], pa.int32())),
    ],
)
def test_a_file_of_somebody_with_other_values_ends_no_verification(
    tmp_path: Path, name: str, values: pa.Array
) -> None:
    table = table_of(tmp_path)
    columns = {
        "_partition": pa.array([0], pa.int32()),
        "_offset": pa.array([1]),
        "_timestamp": pa.array([1], pa.timestamp("us", "UTC")),
        "_schema_id": pa.array([1], pa.int32()),
    }
    sink = io.BytesIO()
    pq.write_table(pa.table({**columns, name: values}), sink)
    path = f"{table.paths.hour_dir(HOUR)}/theirs.parquet"
    table.hdfs.write(path, sink.getvalue())
    with pytest.raises(NotParquetError, match=re.escape(f"{path} can't be read as a file of the warehouse")):
        count_file(table.hdfs, path, len(sink.getvalue()))
    found = verify_topic(table)
    assert found.files == 4
    assert [each.path for each in found.placed] == [path]


@pytest.mark.parametrize("name", ["none", "ends", "files", "changed", "written"])
def test_a_written_state_that_says_other_than_the_manifests_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Loads, readers and seals begin with it. With other ends, the next load reads addresses again."""
    monkeypatch.setattr(commitlog, "STATE_EVERY", 2)
    table = table_of(tmp_path)
    assert verify_topic(table).problems == ()
    where = table.paths.state(1)
    told = json.loads(table.hdfs.read(where))
    if name == "files":
        (gone,) = (file["path"] for file in told["files"][-1:])
        told["files"] = told["files"][:-1]
        table.hdfs.delete(gone)
    elif name != "none":
        told[name] = {key: value - 1 for key, value in told[name].items()}
    table.hdfs.write(where, json.dumps(told).encode(), overwrite=True)
    problems = verify_topic(table).problems
    if name == "none":
        assert problems == ()
    else:
        assert any(
            each.startswith(f"{where} is not what the manifests up to it add up to") for each in problems
        )


@pytest.mark.parametrize("when", ["before the files are listed", "while they are listed"])
def test_a_load_beside_a_verification_is_no_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    table = table_of(tmp_path)
    loads = iter([4_000])
    state, walk = CommitLog.state, FolderHdfs.walk

    def and_a_load() -> None:
        for start in loads:
            load(Table(table.hdfs, table.log, random.Random(2)), start, 20)  # type: ignore[arg-type]

    def listed(self: FolderHdfs, path: str) -> list[tuple[str, FileStatus]]:
        found = walk(self, path)
        if when == "while they are listed":
            and_a_load()
        return found

    def read(self: CommitLog) -> TableState:
        found = state(self)
        if when == "before the files are listed":
            and_a_load()
        return found

    monkeypatch.setattr(FolderHdfs, "walk", listed)
    monkeypatch.setattr(CommitLog, "state", read)
    found = verify_topic(table)
    assert (found.problems, found.files, found.changes) == ((), 6, 3)


class Died(BaseException):
    """Stands for SIGKILL."""


@pytest.mark.parametrize(
    ("kind", "step"), [("load", "committed"), ("load", "moved-one"), ("retain", "committed")]
)
def test_nothing_is_lost_of_a_change_that_was_interrupted_behind_its_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, step: str
) -> None:
    """The audit would call the hour lost, and it could not be sealed, until the next verification."""
    monkeypatch.setattr(completing, "COMPLETION_WAIT_S", 0.0)
    table = table_of(tmp_path)
    before = table.log.state().files

    def reached(at: str) -> None:
        if at == step:
            raise Died

    with monkeypatch.context() as patch, pytest.raises(Died):
        patch.setattr(crash, "reached", reached)
        if kind == "load":
            load(Table(table.hdfs, table.log, random.Random(2)), 4_000, 20)  # type: ignore[arg-type]
        else:
            retain_topic(replace(table, clock_ms=lambda: HOUR + 2 * HOUR_MS), keep_ms=HOUR_MS)
    problem = "change 2 is committed but not complete; the next load completes it"
    found = verify_topic(table)
    assert (found.problems, found.of_files) == ((problem,), ())
    # What is missing beside it is found all the same.
    other = next(path for path, file in before.items() if file.hour_ms == HOUR + HOUR_MS)
    table.hdfs.delete(other)
    assert verify_topic(table).problems == (problem, f"{other} is missing (20 rows)")
    table.log.complete_all(None)
    assert verify_topic(table).problems == (f"{other} is missing (20 rows)",)


def test_a_file_that_goes_while_it_is_to_be_read_ends_no_verification(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As beside a compaction, which takes the files that it has merged."""
    table = table_of(tmp_path)
    [[first, second], _] = table.log.state().hours().values()
    read, gone = FolderHdfs.read, iter([first.path])

    def beside(self: FolderHdfs, path: str, *, offset: int = 0, length: int | None = None) -> bytes:
        if path in (first.path, second.path):
            for each in gone:
                self.delete(each)
        return read(self, path, offset=offset, length=length)

    monkeypatch.setattr(FolderHdfs, "read", beside)
    found = verify_topic(table)
    assert (found.files, found.problems) == (3, (f"{first.path} is missing (20 rows)",))


def test_a_refill_brings_nothing_of_an_hour_that_retention_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of it would be missing: the audit would be told of its rows a second time."""
    monkeypatch.setattr(refill, "BROKER_TIMEOUT_S", 0.1)
    table = table_of(tmp_path)
    retain_topic(replace(table, clock_ms=lambda: HOUR + 2 * HOUR_MS), keep_ms=HOUR_MS)
    [found] = refill.refill_topic(cast(Any, None), table, [HOUR])
    assert found.problem == "retention has deleted rows of 2015-05-17T11: none is brought again"
    assert (found.sequence, table.log.state().sequence) == (None, 2)


def test_every_hour_has_a_turn_within_a_week(tmp_path: Path) -> None:
    state = table_of(tmp_path).log.state()
    hours = {HOUR + number * HOUR_MS for number in range(1_000)}
    file = next(iter(state.files.values()))
    files = {str(hour): replace(file, hour_ms=hour) for hour in hours}
    large = TableState(files=files)
    seen: list[int] = []
    for turn in range(SHARES):
        seen += recent_hours(large, [], 10**12 + turn * HOUR_MS)
    assert sorted(seen) == sorted(hours)


def test_what_the_audit_is_told_is_bounded() -> None:
    many = tuple(f"{number} " + "x" * 3_000 for number in range(900))
    record = verified_record(VerifyResult(TOPIC, many, 1, 1, 1, 0), WAREHOUSE)
    assert (record.problem_count, len(record.problems)) == (900, PROBLEMS_PER_RECORD_MAX)
    assert {len(each.text) for each in record.problems} == {TEXT_MAX_CHARS}


def test_without_a_store_nothing_is_called_unaudited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty store was made, and all that was loaded called a problem; the audit was told so, too."""
    table = table_of(tmp_path / "hdfs")
    told: list[Any] = []
    monkeypatch.setattr(api, "hdfs_of", lambda _: contextlib.nullcontext(table.hdfs))
    monkeypatch.setattr(api, "tell_verified", lambda *found: told.append(found))
    store = tmp_path / "elsewhere" / "audit.db"
    with pytest.raises(StoreMissingError, match=f"there is no audit store at {store}") as caught:
        api.verify_topics(replace(WAREHOUSE, audit=True), [TOPIC], audit_store=f"sqlite:///{store}")
    assert not store.parent.exists() and not told
    line = known_error(caught.value, f"verify {TOPIC}")
    assert line == (
        f"verify {TOPIC}: there is no audit store at {store}; check the URL, and that the auditor runs which "
        "folds it"
    ), "nothing was changed that is not reported"
    late = known_error(AuditPublishError("no broker answers"), f"load {TOPIC}")
    assert late is not None and late.endswith("no broker answers; the next run reports it")


def test_hours_that_the_audit_has_forgotten_are_no_problem() -> None:
    """After 30 days each table was called unaudited, and `audit report` said corrupt, for good."""
    with drilled_table("forgotten") as drilled:
        with contextlib.closing(AuditStore(drilled.store_url)) as store:
            with store.writing() as connection:
                hours = [HOUR, HOUR + HOUR_MS]
                rows = [
                    {"topic": TOPIC, "datacenter": "east", "hour_ms": each, "touched_ms": 1} for each in hours
                ]
                connection.execute(insert(tables.hours), rows)
            assert upkeep.forget(store, 2) == 2
            assert not report(store, TOPIC).verdicts
        assert drilled.problems() == []
        # A new load of one of these hours, of which the audit hears.
        load(drilled.table, drilled.table.log.state().ends[0], 20)
        report_loads(drilled.store_url, drilled.table.log)
        assert drilled.problems() == []
        # And one of which it does not.
        load(drilled.table, drilled.table.log.state().ends[0], 30)
        loaded = [sum(each.rows for each in files) for files in drilled.table.log.state().hours().values()]
        assert drilled.problems() == [
            f"hour 2015-05-17T{hour}: {rows} rows are loaded, the audit has 20"
            for hour, rows in zip((11, 12), loaded, strict=True)
        ]
        # What was loaded within a week is not forgotten, and what no report told of is none of it.
        early = replace(drilled.topic_table, clock_ms=lambda: 1)
        (first, second) = verify_topic(early, audit_store=drilled.store_url).problems
        assert "the audit has 20" in first and "the audit has 20" in second


def test_a_store_that_begins_with_a_later_load_has_no_word_on_earlier_ones(tmp_path: Path) -> None:
    """As one that was folded again, of audit topics that keep their records for 31 days."""
    with drilled_table("younger") as drilled:
        young = drilled._replace(store_url=f"sqlite:///{tmp_path}/audit.db")
        report_loads(young.store_url, drilled.table.log, first=1)
        assert young.problems() == []
        early = replace(drilled.topic_table, clock_ms=lambda: 1)
        assert len(verify_topic(early, audit_store=young.store_url).problems) == 2


def test_a_store_that_is_rotten_is_an_error_of_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The DAGs verify and repair ended with a traceback, the command with the text of a query."""
    table, path = table_of(tmp_path / "hdfs"), tmp_path / "audit.db"
    monkeypatch.setattr(api, "hdfs_of", lambda _: contextlib.nullcontext(table.hdfs))
    AuditStore(f"sqlite:///{path}").close()
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("DROP TABLE verified")
        connection.commit()
    with pytest.raises(SQLAlchemyError) as caught:
        api.verify_topics(WAREHOUSE, [TOPIC], audit_store=f"sqlite:///{path}")
    assert known_error(caught.value, f"verify {TOPIC}") == (
        f"verify {TOPIC}: the audit store cannot be read now: no such table: verified; try again"
    )
