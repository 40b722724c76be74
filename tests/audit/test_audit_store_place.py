"""One bad store file never stops the counting: it is kept by name, and the audit topics fill a new one."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fix_audit import AuditorProcess, StartAuditor, wait_for
from fix_audit_reader import RecordsReader
from fix_audit_world import BUCKET_MS, HOUR_A, NOW_MS, Batch, PartitionBytes, everything_reported
from fix_broker import StartCluster
from fix_registry import StartRegistry
from headrace.audit.findings import Status
from headrace.audit.fold_loop import FoldLoop
from headrace.audit.report.report import report
from headrace.audit.store.place import MARK, SET_ASIDE_MAX, StorePlace
from headrace.audit.store.store import AuditStore, StoreError, UnusableStoreError
from headrace.audit.topic.logs_read import LastRead, LogsRead
from headrace.audit.topic.reader import Polled
from headrace.audit.topic.records import ReceivedRecord
from headrace.client import Admin, Producer

TIME_MS = 1_795_386_600_000  # 2026-11-22 22:30:00 UTC
HEADER_SIZE_BYTES = 100  # in it, SQLite counts who opens the file
BATCHES = [Batch(0, 7, 0, index * 10, 10, HOUR_A + index * BUCKET_MS) for index in range(4)]


def records() -> list[ReceivedRecord]:
    log = PartitionBytes()
    for batch in BATCHES:
        log.append(batch.encode())
    return everything_reported(BATCHES, {0: log})


def filled(path: Path) -> None:
    """A store with all that can be reported, in one file."""
    store = AuditStore(f"sqlite:///{path}")
    store.fold(records(), {("_audit", 0): 100})
    store.close()


def garbage(path: Path) -> None:
    path.write_bytes(b"this was a database, and now it is something else" * 100)


def damaged_behind_the_first_page(path: Path) -> None:
    filled(path)
    data = bytearray(path.read_bytes())
    data[4096:] = b"\x55" * (len(data) - 4096)
    path.write_bytes(data)


def cut_in_half(path: Path) -> None:
    filled(path)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def of_another_version(path: Path) -> None:
    filled(path)
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE meta SET value = '99' WHERE name = 'schema_version'")
    connection.close()


def changed(*statements: str) -> Callable[[Path], None]:
    def spoil(path: Path) -> None:
        filled(path)
        with sqlite3.connect(path) as connection:
            connection.executescript(";".join(statements))
        connection.close()

    return spoil


LOAD_TOPICS = (
    "CREATE TABLE load_topics (warehouse VARCHAR NOT NULL, topic VARCHAR NOT NULL, "
    "load_sequence BIGINT NOT NULL, log_topic_id VARCHAR NOT NULL, "
)
of_another_key = changed("DROP TABLE load_topics", LOAD_TOPICS + "PRIMARY KEY (warehouse, topic))")
of_a_later_version = changed(
    "DROP TABLE load_topics",
    LOAD_TOPICS + "later BIGINT NOT NULL, PRIMARY KEY (warehouse, topic, load_sequence))",
)
SPOILED = [
    garbage,
    damaged_behind_the_first_page,
    cut_in_half,
    of_another_version,
    pytest.param(changed("ALTER TABLE hours RENAME touched_ms TO seen_ms"), id="column gone"),
    pytest.param(of_another_key, id="another key"),
    pytest.param(of_a_later_version, id="a column that needs a value"),
]


@pytest.mark.parametrize("spoil", SPOILED)
def test_a_store_that_cannot_be_used_is_kept_beside_a_new_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, spoil: Callable[[Path], None]
) -> None:
    path = tmp_path / "audit.db"
    spoil(path)
    before = path.read_bytes()
    with pytest.raises(UnusableStoreError):
        AuditStore(f"sqlite:///{path}").close()  # readers of the store change nothing
    assert path.read_bytes()[HEADER_SIZE_BYTES:] == before[HEADER_SIZE_BYTES:]
    place = StorePlace(f"sqlite:///{path}", lambda: TIME_MS)
    store = place.open()
    assert (store.positions(), store.producers()) == ({}, set())
    store.close()
    kept = tmp_path / "audit.db.set-aside-20261122T223000Z"
    assert place.set_aside_as == str(kept)
    assert kept.read_bytes()[HEADER_SIZE_BYTES:] == before[HEADER_SIZE_BYTES:]
    (warning,) = [each for each in caplog.records if each.levelno == logging.WARNING]
    assert str(kept) in warning.getMessage() and f"store {path} is rebuilt" in warning.getMessage()


def test_nothing_of_a_store_that_is_set_aside_gets_into_the_new_one(tmp_path: Path) -> None:
    path = tmp_path / "audit.db"
    for suffix in ("", "-wal", "-shm"):
        Path(f"{path}{suffix}").write_text(f"old{suffix}")
    place = StorePlace(f"sqlite:///{path}", lambda: TIME_MS)
    place.set_aside("its disk hums")
    kept = place.set_aside_as
    assert {Path(f"{kept}{suffix}").read_text() for suffix in ("", "-wal", "-shm")} == {
        *("old", "old-wal", "old-shm")
    }
    assert len(list(tmp_path.iterdir())) == 3


def test_no_set_aside_file_replaces_another_and_their_number_is_bounded(tmp_path: Path) -> None:
    path = tmp_path / "audit.db"
    place = StorePlace(f"sqlite:///{path}", lambda: TIME_MS)
    for number in range(SET_ASIDE_MAX):
        path.write_bytes(b"%d: no database" % number * 100)
        place.open().close()
    kept = sorted(each for each in tmp_path.iterdir() if MARK in each.name)
    assert len({each.read_bytes() for each in kept}) == SET_ASIDE_MAX
    garbage(path)
    with pytest.raises(StoreError, match=f"{SET_ASIDE_MAX} such files lie beside it already"):
        place.open()
    assert path.read_bytes().startswith(b"this was a database")


def test_what_is_no_damage_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "audit.db").mkdir()
    with pytest.raises(StoreError, match="unable to open database file"):
        StorePlace(f"sqlite:///{tmp_path}/audit.db").open()
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="cannot open the audit store"):
        StorePlace(f"sqlite:///{tmp_path}/file/audit.db").open()
    assert sorted(each.name for each in tmp_path.iterdir()) == ["audit.db", "file"]
    for url in (
        "/data/audit.db",
        "nosql://USER:secret@host/audit",
        "postgresql://USER:secret@host:port/audit",
    ):
        with pytest.raises(StoreError, match="write it as sqlite:") as raised:
            StorePlace(url)
        assert "secret" not in str(raised.value)


@pytest.mark.parametrize("kept_bytes", [4096, 0], ids=["damaged", "emptied"])
def test_a_store_that_is_spoiled_while_it_is_used_is_rebuilt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept_bytes: int
) -> None:
    """Whatever call meets the damage: no record is taken for the cause of it."""
    path = tmp_path / "audit.db"
    place = StorePlace(f"sqlite:///{path}")
    starts: list[dict[tuple[str, int], int]] = []
    fold, folds = AuditStore.fold, iter(range(10**6))

    def spoiling_fold(store: AuditStore, *arguments: Any) -> None:
        if next(folds) == 3:
            store.close()  # the next connection reads the file again
            data = path.read_bytes()
            path.write_bytes(data[:kept_bytes] + b"\x55" * (len(data) - 4096 if kept_bytes else 0))
        fold(store, *arguments)

    monkeypatch.setattr(AuditStore, "fold", spoiling_fold)
    monkeypatch.setattr("headrace.audit.fold_loop.RETRY_PAUSE_S", 0.0)

    def make_reader(positions: dict[tuple[str, int], int]) -> Any:
        starts.append(positions)
        return RecordsReader(records(), positions.get(("_audit", 0), 0), loop.stop)

    loop = FoldLoop(place, make_reader)
    loop.run()
    assert starts == [{}, {}]
    assert loop.status()["refused"] == 0
    assert (MARK in loop.status()["set_aside_store"]) is (kept_bytes > 0)
    store = place.open()
    assert [each.status for each in report(store, now_ms=NOW_MS).verdicts] == [Status.COMPLETE]
    store.close()


def test_the_reader_is_told_of_which_logs_the_positions_are(tmp_path: Path) -> None:
    """And so does the store: else a topic that is made again is read on from the middle."""
    place = StorePlace(f"sqlite:///{tmp_path}/audit.db")
    log, told = ("_audit", 0), []
    ids = iter(["old", "old", "new"])

    class Telling(RecordsReader):
        topic_id = ""

        def know(self, last: object, marks: object) -> None:
            told.append((last, marks))

        def poll(self, timeout_s: float) -> Polled:
            polled = super().poll(timeout_s)
            logs = {log: LastRead(self.topic_id, self.at, "digest")} if polled.records else {}
            return polled._replace(logs=LogsRead(logs))

    def make_reader(positions: dict[tuple[str, int], int]) -> Any:
        reader = Telling(records()[:2], positions.get(log, 0) if len(told) < 2 else 0, loop.stop)
        reader.topic_id = next(ids)
        return reader

    for _ in range(3):
        loop = FoldLoop(place, make_reader)
        loop.run()
    assert told == [({}, []), *[({log: ("old", 2, "digest")}, [])] * 2]
    store = place.open()
    assert store.logs_read()[0] == {log: ("new", 2, "digest")}
    store.close()


def test_a_store_that_cannot_be_opened_yet_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = StorePlace(f"sqlite:///{tmp_path}/folder/audit.db")
    (tmp_path / "folder").touch()
    problems: list[str] = []

    def make_reader(_positions: object) -> Any:
        return RecordsReader(records(), 0, loop.stop)

    loop = FoldLoop(place, make_reader)
    opened = place.open

    def opening() -> AuditStore:
        problems.append(loop.status()["trouble"])
        if len(problems) == 3:
            (tmp_path / "folder").unlink()
        return opened()

    monkeypatch.setattr("headrace.audit.fold_loop.RETRY_PAUSE_S", 0.0)
    monkeypatch.setattr(place, "open", opening)
    loop.run()
    assert len(problems) == 3 and "cannot open the audit store" in problems[1]
    assert (loop.status()["trouble"], loop.status()["folded"]) == ("", len(records()))


@pytest.fixture
def spoiled_store(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "store" / "audit.db"
    path.parent.mkdir()
    garbage(path)
    yield path


def counted_to(auditor: AuditorProcess) -> int | None:
    """How far the topic is counted; None if it is not yet known."""
    found = auditor.partitions().get(("clicks", 0))
    return None if found is None else int(found["counted_to"])


def test_an_auditor_with_a_bad_store_counts_and_rebuilds_it(
    broker_cluster: StartCluster,
    start_registry: StartRegistry,
    start_auditor: StartAuditor,
    spoiled_store: Path,
) -> None:
    east = broker_cluster(datacenter="east")
    registry = start_registry(hosts=east.zookeeper.hosts)
    with Admin(east.bootstrap) as admin:
        admin.create_topic("clicks", 1)
    with Producer(east.bootstrap) as producer:
        producer.send("clicks", b"one", partition=0).result(60)
    url = f"sqlite:///{spoiled_store}"
    auditor = start_auditor(east, registry.url, "--store", url)
    wait_for(lambda: auditor.status()["store"]["folded"] > 0, auditor.output)
    kept = auditor.status()["store"]["set_aside_store"]
    assert Path(kept).read_bytes().startswith(b"this was a database")
    assert kept in auditor.output() and "Traceback" not in auditor.output()
    folded = auditor.status()["store"]["folded"]
    assert auditor.terminate() == 0

    # Where the file cannot even be opened, the counting goes on, and the status says why nothing is folded.
    spoiled_store.rename(spoiled_store.with_name("moved"))
    spoiled_store.mkdir()
    auditor.start()
    wait_for(lambda: "unable to open" in auditor.status()["store"]["trouble"], auditor.output)
    with Producer(east.bootstrap) as producer:
        end = producer.send("clicks", b"two", partition=0).result(60).offset + 1
    wait_for(lambda: counted_to(auditor) == end, auditor.status)
    spoiled_store.rmdir()
    wait_for(lambda: auditor.status()["store"]["folded"] >= folded, auditor.output)
    wait_for(lambda: auditor.status()["store"]["trouble"] == "", auditor.output)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql+psycopg://a:GEHEIM@h/d", "postgresql+psycopg://a:***@h/d"),
        (
            "postgresql+psycopg://a@h/d?password=GEHEIM&sslmode=require",
            "postgresql+psycopg://a@h/d?password=hidden&sslmode=require",
        ),
        ("postgresql+psycopg://h/d?sslpassword=GEHEIM", "postgresql+psycopg://h/d?sslpassword=hidden"),
        ("sqlite:////x/audit.db", "sqlite:////x/audit.db"),
    ],
)
def test_no_page_and_no_error_shows_the_stores_password(url: str, shown: str) -> None:
    assert StorePlace(url).url == shown
