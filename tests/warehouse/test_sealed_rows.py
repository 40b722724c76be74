"""An hour is sealed only if footers, manifests, consumed addresses and proof say the same number of rows."""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fix_memory_hdfs import MemoryHdfs
from fix_parquet import parquet_of
from headrace.warehouse import seal as seal_module
from headrace.warehouse.commitlog import CommitLog
from headrace.warehouse.footers import TRAILER_SIZE_BYTES, FooterError, footer_size, rows_of
from headrace.warehouse.layout import HOUR_MS, TopicPaths
from headrace.warehouse.manifest import DataFile, HourCount, LoadedRange, Manifest, TableState
from headrace.warehouse.seal import NotSealedError, Seal
from headrace.warehouse.seal_checks import problems_of_seals

PATHS = TopicPaths("/data", "t")
HOUR = 10 * HOUR_MS
PROOF = {"counts": {"east": {"warehouse": 70}, "west": {"warehouse": 9}}, "judged_ms": HOUR + HOUR_MS}


def footer_of(data: bytes) -> bytes:
    size = footer_size(data[-TRAILER_SIZE_BYTES:], len(data))
    return data[-TRAILER_SIZE_BYTES - size : -TRAILER_SIZE_BYTES]


def rows_in(data: bytes) -> int:
    return rows_of(footer_of(data))


def written(rows: int, columns: int = 3, **options: Any) -> bytes:
    """A file that pyarrow writes, with nested and plain columns."""
    plain: dict[str, Any] = {f"c{index}": list(range(rows)) for index in range(columns)}
    table = pa.table({**plain, "s": [{"a": "x", "b": [1, 2]}] * rows, "n": pa.nulls(rows, pa.string())})
    sink = io.BytesIO()
    pq.write_table(table, sink, **options)
    return sink.getvalue()


@pytest.mark.parametrize("rows", [0, 1, 79, 20_000])
@pytest.mark.parametrize("version", ["1.0", "2.6"])
def test_the_footers_of_real_files_are_read(rows: int, version: str) -> None:
    assert rows_in(written(rows, version=version, row_group_size=5_000)) == rows


def test_a_footer_of_many_columns_and_groups_is_read() -> None:
    assert rows_in(written(100, 200, row_group_size=10)) == 100


GOOD = footer_of(written(5))


@given(at=st.integers(0, len(GOOD) - 1), new=st.integers(0, 255), cut=st.integers(0, len(GOOD)))
@settings(max_examples=300, deadline=None)
def test_broken_footers_end_in_one_kind_of_error(at: int, new: int, cut: int) -> None:
    broken = bytearray(GOOD)
    broken[at] = new
    for data in (bytes(broken), GOOD[:cut]):
        with contextlib.suppress(FooterError):
            assert rows_of(data) >= 0


@given(data=st.binary(max_size=80))
@settings(max_examples=300, deadline=None)
def test_any_bytes_end_in_one_kind_of_error(data: bytes) -> None:
    with contextlib.suppress(FooterError):
        assert rows_in(data) >= 0


@pytest.mark.parametrize("tail", [b"", b"PAR1", b"\0\0\0\0PAR1", b"\xff\xff\xff\x7fPAR1", b"\1\0\0\0PAR2"])
def test_what_does_not_end_as_a_parquet_file_is_refused(tail: bytes) -> None:
    with pytest.raises(FooterError):
        footer_size(tail, 100)


# --- seals ---


def load(
    hdfs: MemoryHdfs, rows: int = 79, *, change: Callable[[Manifest], Manifest] = lambda manifest: manifest
) -> DataFile:
    """A load of one file of one hour."""
    log = CommitLog(hdfs, PATHS)
    sequence, data = log.state().next_sequence, parquet_of(rows)
    change_id = f"c{sequence}"
    staged = f"{PATHS.staged(change_id)}/0"
    hdfs.write(staged, data)

    def rebase(now: TableState) -> Manifest:
        file = DataFile(PATHS.data_file(HOUR, now.next_sequence, 0), staged, HOUR, rows, len(data), 7)
        end = now.ends.get(0, 0)
        loaded = LoadedRange(0, end, end + 1_000, (HourCount(HOUR, rows, rows),))
        return change(Manifest(now.next_sequence, "load", "t", change_id, 0, "w", (loaded,), files=(file,)))

    manifest = log.commit(change_id, rebase)
    log.complete(manifest, None)
    return manifest.files[0]


def sealed(hdfs: MemoryHdfs, proof: dict[str, Any] | None = None) -> Seal:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(seal_module, "HdfsClient", lambda *_, **__: contextlib.nullcontext(hdfs))
        return seal_module.seal_hour("http://x", "t", HOUR, proof or PROOF, clock_ms=lambda: 1)


def refused(hdfs: MemoryHdfs, problem: str, proof: dict[str, Any] | None = None) -> None:
    with pytest.raises(NotSealedError, match=re.escape(problem)):
        sealed(hdfs, proof)
    assert not [path for path in hdfs.files if path.startswith(PATHS.sealed)]


def test_an_hour_whose_rows_are_those_of_its_proof_is_sealed() -> None:
    hdfs = MemoryHdfs()
    load(hdfs)
    assert sealed(hdfs).rows == 79


def test_a_file_that_lost_rows_and_kept_its_size_is_refused() -> None:
    hdfs = MemoryHdfs()
    file = load(hdfs)
    hdfs.files[file.path] = parquet_of(76, "x" * (file.size_bytes - len(parquet_of(76))))
    refused(hdfs, f"{file.path} has 76 rows, its manifest has 79")


def test_a_file_that_is_no_parquet_file_any_more_is_refused() -> None:
    hdfs = MemoryHdfs()
    file = load(hdfs)
    hdfs.files[file.path] = bytes(file.size_bytes)
    refused(hdfs, "does not end as a Parquet file does")


@pytest.mark.parametrize("rows", [76, 80])
def test_an_hour_with_other_rows_than_its_proof_is_refused(rows: int) -> None:
    hdfs = MemoryHdfs()
    load(hdfs, rows)
    refused(hdfs, f"the loads counted {rows} rows of this hour, and the proof says 79")


def test_a_manifest_that_counts_other_rows_than_it_has_files_for_is_refused() -> None:
    hdfs = MemoryHdfs()
    hours = (HourCount(HOUR, 79, 79),)
    load(hdfs, 76, change=lambda made: replace(made, ranges=(replace(made.ranges[0], hours=hours),)))
    refused(hdfs, "the commit log has 76 rows in files, and 79 in what it consumed")


def test_late_rows_of_an_hour_that_the_audit_has_forgotten_are_sealed() -> None:
    hdfs = MemoryHdfs()
    load(hdfs)
    sealed(hdfs)
    late = {"counts": {"east": {"warehouse": 3}}, "judged_ms": HOUR + 40 * 24 * HOUR_MS}
    load(hdfs, 3)
    assert sealed(hdfs, late).rows == 82
    # Once more: what this seal vouches for is forgotten by then, too.
    load(hdfs, 5)
    with pytest.raises(NotSealedError, match="counted 87 rows of this hour, and the proof says 3"):
        sealed(hdfs, late)
    assert sealed(hdfs, {**late, "counts": {"east": {"warehouse": 5}}}).rows == 87
    log = CommitLog(hdfs, PATHS)
    assert problems_of_seals(hdfs, PATHS, log.manifests(), log.state()) == []
    refused_now = {**late, "judged_ms": HOUR + HOUR_MS}
    hdfs = MemoryHdfs()
    load(hdfs)
    load(hdfs, 3)
    refused(hdfs, "counted 82 rows of this hour, and the proof says 3", refused_now)


@pytest.mark.parametrize("proven", [0, 3])
def test_what_the_audit_has_forgotten_is_not_sealed_unless_a_seal_vouches_for_it(proven: int) -> None:
    """An hour of which events were lost, so that it was never sealed, was sealed by itself after 30 days: the
    audit forgets it then, and its proof says no rows, or only late ones.
    """
    hdfs, proof = MemoryHdfs(), dict[str, Any]()
    load(hdfs)
    if proven:
        load(hdfs, proven)
    proof = {"counts": {"east": {"warehouse": proven}}, "judged_ms": HOUR + 40 * 24 * HOUR_MS}
    refused(
        hdfs,
        f"the loads counted {79 + proven} rows of this hour, and the proof says {proven}: the audit may have "
        "forgotten the others, and seals vouch for 0 rows",
        proof,
    )
    # A seal that an earlier headrace wrote on such a proof is named.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(seal_module, "problem_of_rows", lambda *_: "")
        assert sealed(hdfs, proof).rows == 79 + proven
    log = CommitLog(hdfs, PATHS)
    (problem,) = problems_of_seals(hdfs, PATHS, log.manifests(), log.state())
    assert problem.endswith(f"its proof says {proven} rows, the loads had counted {79 + proven}")


def test_a_commit_log_that_an_older_headrace_began_is_not_summed_up() -> None:
    state = TableState.from_json(
        b'{"format": 1, "sequence": 63, "ends": {}, "files": [], "dead_files": [], "schema_id": null, '
        b'"changed": {}}',
        "63.state.json",
    )
    assert state.counted_from == 64
    assert TableState.from_json(state.to_json(), "x").counted_from == 64


def test_what_retention_deletes_is_not_missed() -> None:
    hdfs = MemoryHdfs()
    file = load(hdfs)
    log = CommitLog(hdfs, PATHS)
    hdfs.makedirs(PATHS.staged("r"))
    manifest = log.commit(
        "r", lambda now: Manifest(now.next_sequence, "retain", "t", "r", 0, "w", removed=(file.path,))
    )
    log.complete(manifest, None)
    load(hdfs, 3)
    state = log.state()
    assert (state.written[HOUR], state.deleted, state.counted[HOUR]) == (3, 79, 82)
    assert sealed(hdfs, {"counts": {"east": {"warehouse": 82}}}).rows == 3
