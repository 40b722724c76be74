"""Whether an hour's rows are those that its proof vouches for. Needs neither Spark nor pyarrow.

Four numbers must agree: what the footers of the hour's files claim, what the manifests say of these files,
what the loads wrote into the hour, and what the audit counted. The audit counts by Kafka's timestamps and the
table's hours are those of events, which need not be the same; so the commit log keeps both sums. Each file is
read once, and must have the checksum with which it was written.
"""

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from headrace.warehouse.checksums import read_checksum
from headrace.warehouse.commitlog import CommitLog
from headrace.warehouse.footers import TRAILER_SIZE_BYTES, FooterError, footer_size, rows_of
from headrace.warehouse.hdfs.client import HdfsClient
from headrace.warehouse.hdfs.errors import HdfsDamagedError, HdfsMissingError
from headrace.warehouse.layout import HOUR_MS, hour_name
from headrace.warehouse.manifest import DataFile, TableState

FILES_AT_ONCE: Final = 8
FOOTER_GUESS_BYTES: Final = 32 << 10
FORGOTTEN_AFTER_MS: Final = 7 * 24 * HOUR_MS
"""The audit may have forgotten the first rows of an hour that is older, when late ones are proven."""

_FORGOTTEN: Final = (
    "the audit has forgotten what the hour had before its late events, and no seal vouches for that"
)


def problem_of_rows(
    log: CommitLog, state: TableState, hour_ms: int, proof: Mapping[str, Any], sealed_to: int | None = None
) -> str:
    """Returns why the hour's rows are not those of the proof; empty if they are. Raises `HdfsError`.

    `sealed_to`: the last change whose rows the hour's seal vouches for; None without a seal.
    """
    files = state.hours().get(hour_ms, [])
    with ThreadPoolExecutor(FILES_AT_ONCE, thread_name_prefix="sealed-rows") as pool:
        problems = [
            problem for problem in pool.map(lambda file: _problem_of_file(log.hdfs, file), files) if problem
        ]
    problem = problems[0] if problems else _problem_of_sums(log, state, hour_ms, proof, sealed_to)
    if not problem and sealed_to is None and proof.get("forgotten") is True:
        problem = _FORGOTTEN
    hour = f"{log.paths.topic}, {hour_name(hour_ms)}"
    return f"{hour}: {problem}; `headrace warehouse verify {log.paths.topic}` compares all" if problem else ""


def _problem_of_file(hdfs: HdfsClient, file: DataFile) -> str:
    size = file.size_bytes
    guess = min(size, FOOTER_GUESS_BYTES)
    try:
        tail = hdfs.read(file.path, offset=size - guess, length=guess)
        length = footer_size(tail[-TRAILER_SIZE_BYTES:], size)
        end = len(tail) - TRAILER_SIZE_BYTES
        if length <= end:
            footer = tail[end - length : end]
        else:
            footer = hdfs.read(file.path, offset=size - TRAILER_SIZE_BYTES - length, length=length)
        rows = rows_of(footer)
        if rows != file.rows:
            return f"{file.path} has {rows} rows, its manifest has {file.rows}"
        if file.checksum and read_checksum(hdfs, file.path, size) != file.checksum:
            return f"{file.path} has {rows} rows, and other bytes than when it was written"
    except (FooterError, HdfsDamagedError) as error:
        return f"{file.path} can't be read: {error}"
    except HdfsMissingError:
        return f"{file.path} is missing ({file.rows} rows)"  # a compaction, or somebody, has just taken it
    return ""


def _problem_of_sums(
    log: CommitLog, state: TableState, hour_ms: int, proof: Mapping[str, Any], sealed_to: int | None
) -> str:
    """Compares the commit log with itself and with the proof, if its sums begin at the first change."""
    if state.counted_from > 0:
        return ""
    rows = sum(file.rows for file in state.hours().get(hour_ms, []))
    written = state.written.get(hour_ms, 0)
    if rows != written:
        return f"its files have {rows} rows, and the loads wrote {written}"
    all_written, all_counted = sum(state.written.values()) + state.deleted, sum(state.counted.values())
    if all_written != all_counted:
        return f"the commit log has {all_written} rows in files, and {all_counted} in what it consumed"
    proven, counted = rows_proven(proof), state.counted.get(hour_ms, 0)
    if proven is None or proven == counted:
        return ""
    problem = f"the loads counted {counted} rows of this hour, and the proof says {proven}"
    if not may_be_forgotten(proof, hour_ms, proven, counted) or _has_news(log, hour_ms, proof):
        return problem
    sealed = 0 if sealed_to is None else log.state_at(min(sealed_to, state.sequence)).counted.get(hour_ms, 0)
    if counted - proven <= sealed:
        return ""
    return f"{problem}: the audit may have forgotten the others, and seals vouch for {sealed} rows"


def _has_news(log: CommitLog, hour_ms: int, proof: Mapping[str, Any]) -> bool:
    """Whether loads counted rows of the hour of which the audit had not heard when it proved the hour: these
    are not forgotten.
    """
    heard = proof.get("load_sequence")
    if not isinstance(heard, int):
        return False
    return any(
        hour.hour_ms == hour_ms
        for manifest in log.manifests(heard + 1)
        if manifest.kind in ("load", "replay", "refill")
        for loaded in manifest.ranges
        for hour in loaded.hours
    )


def rows_proven(proof: Mapping[str, Any]) -> int | None:
    """Returns how many rows a proof vouches for; None if it does not say."""
    counts = proof.get("counts")
    return int(sum(each["warehouse"] for each in counts.values())) if isinstance(counts, Mapping) else None


def may_be_forgotten(proof: Mapping[str, Any], hour_ms: int, proven: int, counted: int) -> bool:
    """Whether the audit may have forgotten the first rows of this hour when it proved the late ones.

    That says nothing of the first ones: only an earlier seal does.
    """
    return bool(counted > proven and proof.get("judged_ms", 0) - hour_ms > FORGOTTEN_AFTER_MS)
