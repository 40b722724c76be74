"""The pure decisions of the warehouse: plans, manifests, paths. No Spark, no HDFS."""

import functools
from contextlib import nullcontext
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fix_memory_hdfs import MemoryHdfs
from headrace.warehouse import api, compact, job
from headrace.warehouse.hdfs.errors import HdfsFullError, raised_in
from headrace.warehouse.layout import (
    TIME_MAX_US,
    TIME_MIN_US,
    TopicNameError,
    TopicPaths,
    hour_name,
    hour_of,
    parse_hour,
)
from headrace.warehouse.manifest import (
    DataFile,
    DeadFile,
    FileSchema,
    HourCount,
    LoadedRange,
    LoadGap,
    Manifest,
    ManifestError,
    TableState,
)
from headrace.warehouse.options import WarehouseOptions
from headrace.warehouse.plan import LoadGapError, LogWentBackError, plan_load, split_count
from headrace.warehouse.seal import Seal, hours_to_seal

HOUR = 3_600_000
PATHS = TopicPaths("/data", "t")


@pytest.mark.parametrize("hours", ["-1", "nan", "inf", "1e300", "30d"])
def test_a_job_refuses_ages_that_are_none(hours: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Every hour is older than -1 hour: a retention would delete the whole table."""
    options = ["--bootstrap", "x:1", "--registry-url", "x", "--hdfs-url", "x", "--webhdfs-url", "http://x"]
    with pytest.raises(SystemExit) as ended:
        job.main(["retain", "t", *options, f"--keep-hours={hours}"])
    assert ended.value.code == 2
    assert f"--keep-hours: '{hours}' is not a number of hours from 0 to" in capsys.readouterr().err


def test_a_folder_of_somebody_beside_the_tables_ends_no_list_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each name of the list is opened as a table, by `headrace warehouse ls` and others."""
    hdfs = MemoryHdfs()
    for name in ("page-view", "_archive", "my notes", "a=1", "t"):
        hdfs.makedirs(f"/data/{name}")
    monkeypatch.setattr(api, "hdfs_of", lambda _: nullcontext(hdfs))
    warehouse = WarehouseOptions("hdfs://x", "http://x", "x:1", "http://x")
    found = api.list_tables(warehouse)
    assert found == ["page-view", "t"]
    assert [api.list_hours(warehouse, name) for name in found] == [[], []]


def load(sequence: int, ranges: dict[int, tuple[int, int]], hour_ms: int = 0, **more: object) -> Manifest:
    files = (DataFile(PATHS.data_file(hour_ms, sequence, 0), f"/s/{sequence}", hour_ms, 5, 100, 7),)
    loaded = tuple(
        LoadedRange(partition, start, end, (HourCount(hour_ms, 5, 5),))
        for partition, (start, end) in ranges.items()
    )
    return Manifest(sequence, "load", "t", f"c{sequence}", 1, "hdfs://h/data", loaded, files=files, **more)  # type: ignore[arg-type]


def fold(manifests: list[Manifest]) -> TableState:
    return functools.reduce(TableState.after, manifests, TableState())


addresses = st.dictionaries(
    st.integers(0, 5), st.tuples(st.integers(0, 1000), st.integers(0, 1000)), max_size=6
)


@given(addresses, st.dictionaries(st.integers(0, 5), st.integers(0, 2000)))
def test_a_plan_covers_exactly_what_is_not_loaded(
    log: dict[int, tuple[int, int]], loaded: dict[int, int]
) -> None:
    earliest = {partition: start for partition, (start, _) in log.items()}
    latest = {partition: start + size for partition, (start, size) in log.items()}
    try:
        plan = plan_load("t", loaded, earliest, latest, accept_gap=True)
    except LogWentBackError:
        assert any(latest[partition] < loaded.get(partition, 0) for partition in log)
        return
    ends = dict(loaded)
    for gap in plan.gaps:
        assert ends[gap.partition] == gap.from_address < gap.to_address == earliest[gap.partition]
        ends[gap.partition] = gap.to_address
    for each in plan.ranges:
        assert each.from_address == ends.get(each.partition, earliest[each.partition]) < each.to_address
        ends[each.partition] = each.to_address
    for partition, end in latest.items():
        assert ends.get(partition, end) == end


def test_a_gap_stops_the_plan_and_names_the_addresses() -> None:
    with pytest.raises(LoadGapError, match=r"partition 1: addresses 100 to 150"):
        plan_load("t", {0: 10, 1: 100}, {0: 0, 1: 150}, {0: 20, 1: 200})


def test_until_shortens_a_plan_and_never_goes_back() -> None:
    plan = plan_load("t", {0: 100}, {0: 0, 1: 0}, {0: 500, 1: 500}, until={0: 50, 1: 300})
    assert [(each.partition, each.from_address, each.to_address) for each in plan.ranges] == [(1, 0, 300)]


@given(st.integers(0, 10**12), st.integers(1, 64))
def test_tasks_are_neither_too_large_nor_too_small(size_bytes: int, cores: int) -> None:
    parts = split_count(size_bytes, cores)
    assert parts >= 1
    assert size_bytes / parts <= 64 << 20
    assert parts == 1 or size_bytes / parts >= 4 << 20


def test_a_manifest_survives_its_json() -> None:
    manifest = replace(
        load(3, {0: (0, 10)}),
        gaps=(LoadGap(1, 2, 3, "r"),),
        dead_files=(DeadFile("/d", "/s", 1, 2),),
        removed=("/gone",),
        schema_id=7,
        writer_ids=(5, 7),
    )
    assert Manifest.from_json(manifest.to_json(), "x") == manifest
    state = TableState().after(load(0, {0: (0, 10)})).after(load(1, {0: (10, 30), 2: (5, 6)}, HOUR))
    assert TableState.from_json(state.to_json(), "x") == state
    for broken in (b"{}", b"nonsense", b'{"format": 99}', manifest.to_json().replace(b'"rows"', b'"cows"')):
        with pytest.raises(ManifestError):
            Manifest.from_json(broken, "x")


def test_a_manifest_says_whose_schema_is_meant_only_where_that_matters() -> None:
    plain = replace(load(0, {0: (0, 10)}), schema_id=7)
    assert b"schema_datacenter" not in plain.to_json()
    assert b"schema_datacenter" not in TableState().after(plain).to_json()
    file = replace(plain.files[0], path="/other", schema_datacenter="east")
    of_east = replace(plain, sequence=1, ranges=(), files=(file,), schema_datacenter="east")
    assert Manifest.from_json(of_east.to_json(), "x") == of_east
    state = TableState().after(plain).after(of_east)
    assert (state.schema_id, state.schema_datacenter) == (7, "east")
    assert TableState.from_json(state.to_json(), "x") == state
    assert {each.schema for each in state.files.values()} == {FileSchema(7), FileSchema(7, "east")}
    # A change that reads no records leaves the table's schema as it is.
    kept = state.after(replace(of_east, sequence=2, kind="retain", schema_id=None, schema_datacenter=None))
    assert (kept.schema_id, kept.schema_datacenter) == (7, "east")


def test_files_of_two_schemas_with_one_id_are_not_merged() -> None:
    files = tuple(
        replace(load(number, {}).files[0], path=f"/{number}", schema_datacenter=name)
        for number, name in enumerate(["east", None, "west", "east", "west"])
    )
    state = TableState().after(replace(load(0, {}), files=files))
    chosen = compact.choose(state, now_ms=HOUR)
    assert {key: [file.path for file in members] for key, members in chosen.items()} == {
        (0, FileSchema(7, "east"), 0): ["/0", "/3"],
        (0, FileSchema(7, "west"), 0): ["/2", "/4"],
    }


def test_files_of_two_logs_are_not_merged() -> None:
    files = tuple(
        replace(load(number, {}).files[0], path=f"/{number}", log=log)
        for number, log in enumerate([0, 3, 0, 3])
    )
    state = TableState().after(replace(load(0, {}), files=files))
    chosen = compact.choose(state, now_ms=HOUR)
    assert [[file.path for file in members] for members in chosen.values()] == [["/0", "/2"], ["/1", "/3"]]


def test_the_state_is_the_fold_of_the_manifests() -> None:
    state = fold([load(0, {0: (0, 10), 1: (0, 5)}), load(1, {0: (10, 20)}, HOUR), load(2, {1: (5, 9)})])
    assert state.ends == {0: 20, 1: 9}
    assert [len(files) for files in state.hours().values()] == [2, 1]
    assert state.changed == {0: 2, HOUR: 1}
    path = PATHS.data_file(0, 3, 0)
    merged = Manifest(
        3,
        "compact",
        "t",
        "c3",
        1,
        "w",
        files=(DataFile(path, "/s", 0, 10, 1, 7),),
        removed=tuple(each.path for each in state.hours()[0]),
    )
    compacted = state.after(merged)
    assert [each.path for each in compacted.hours()[0]] == [path]
    assert compacted.ends == state.ends
    assert compacted.changed == state.changed


def test_a_log_with_a_gap_or_an_overlap_is_refused() -> None:
    with pytest.raises(ManifestError, match="can't follow"):
        fold([load(0, {0: (0, 10)}), load(2, {0: (10, 20)})])
    with pytest.raises(ManifestError, match="from 5, but the log's end is 10"):
        fold([load(0, {0: (0, 10)}), load(1, {0: (5, 20)})])


def test_hours_to_seal_are_closed_and_changed_since_their_seal() -> None:
    state = fold([load(0, {0: (0, 10)}), load(1, {0: (10, 20)}, HOUR)])
    seal = Seal("t", 0, 1, 0, 0, 5, (), {})
    assert Seal.from_json(seal.to_json(), "x") == seal
    assert hours_to_seal(state, {}, 2 * HOUR, 0) == [0, HOUR]
    assert hours_to_seal(state, {}, 2 * HOUR, 1) == [0]
    assert hours_to_seal(state, {0: seal}, 2 * HOUR, 0) == [HOUR]
    late = state.after(load(2, {0: (20, 30)}))
    assert hours_to_seal(late, {0: seal}, 2 * HOUR, 0) == [0, HOUR]


@given(st.integers(TIME_MIN_US // 1000, TIME_MAX_US // 1000))
def test_hours_have_one_name_and_one_directory(time_ms: int) -> None:
    hour_ms = hour_of(time_ms)
    assert hour_ms <= time_ms < hour_ms + HOUR
    assert parse_hour(hour_name(hour_ms)) == hour_ms
    for directory in (PATHS.hour_dir(hour_ms), PATHS.older_hour_dir(hour_ms)):
        assert parse_hour(directory.removeprefix(f"{PATHS.hourly}/")) == hour_ms
    older = f"{PATHS.older_hour_dir(hour_ms)}/{0:020d}-00007.parquet"
    assert PATHS.moved(older, hour_ms) == PATHS.data_file(hour_ms, 0, 7)


@pytest.mark.parametrize("name", ["", "_hidden", "a/b", "..", "with space", "x" * 250])
def test_invalid_names_of_tables(name: str) -> None:
    with pytest.raises(TopicNameError, match="can't be a table"):
        TopicPaths("/data", name)


def test_texts_that_are_not_an_hour() -> None:
    for text in ("2026-11-20", "yesterday", "2026-13-01T00", ""):
        with pytest.raises(ValueError):
            parse_hour(text)


def test_an_error_of_hdfs_in_a_task_is_raised_as_itself() -> None:
    message = (
        "Job aborted: Traceback (most recent call last):\n  File ...\n"
        "headrace.warehouse.hdfs.errors.HdfsFullError: HDFS at http://h: write /x: no room\n\tat org.apache"
    )
    found = raised_in(message)
    assert isinstance(found, HdfsFullError)
    assert str(found) == "HDFS at http://h: write /x: no room"
    assert raised_in("headrace.warehouse.hdfs.errors.Final: x") is None
    assert raised_in("java.io.IOException: x") is None
