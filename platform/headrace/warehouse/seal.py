"""Seals, which certify that an hour of a table is complete.

Owns `_sealed/`. The audit proves that an hour is complete, and its proof becomes part of the seal; the rows
come from the commit log. A seal never changes: late data leads to a new version beside it, and one that was
changed after it was written is refused by its digest. Needs neither Spark nor pyarrow.
"""

import hashlib
import json
import uuid
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Final

from headrace.audit.topic.declarations import FROM_LOG, FROM_PRODUCERS
from headrace.process.clock import now_ms
from headrace.warehouse.checked import check
from headrace.warehouse.commitlog import CommitLog
from headrace.warehouse.completing import wait_until_complete
from headrace.warehouse.hdfs.client import HdfsClient
from headrace.warehouse.hdfs.errors import LOST, HdfsDamagedError, HdfsError
from headrace.warehouse.layout import HOUR_MS, TopicPaths, hour_name, parse_hour
from headrace.warehouse.manifest import ManifestError, TableState, parsed, reading
from headrace.warehouse.options import DEFAULT_ROOT
from headrace.warehouse.sealed_rows import problem_of_rows

FORMAT: Final = 1
ATTEMPTS_MAX: Final = 10
SEALS_AT_ONCE: Final = 8


class NotSealedError(Exception):
    """Hours can't be sealed now. `problems` says why, by hour; `sealed` has those that were sealed beside."""

    def __init__(
        self,
        message: str,
        problems: Mapping[int, str] | None = None,
        sealed: "Mapping[int, Seal] | None" = None,
    ) -> None:
        super().__init__(message)
        self.problems = dict(problems or {})
        self.sealed = dict(sealed or {})


@dataclass(frozen=True)
class Seal:
    """One sealed version of one hour."""

    topic: str
    hour_ms: int
    version: int
    sequence: int
    """Sequence of the last change that affected this hour, as of sealing."""
    sealed_ms: int
    rows: int
    files: tuple[str, ...]
    proof: Mapping[str, Any]
    previous_rows: int | None = None
    """The rows of the previous version; None for the first."""
    digest: str = ""
    """The SHA-256 of all else, in hexadecimal digits; empty if an older headrace wrote the seal."""

    def to_json(self) -> bytes:
        data = {"format": FORMAT, "hour": hour_name(self.hour_ms), **asdict(self)}
        if not self.digest:
            del data["digest"]
        return json.dumps(data, indent=1).encode()

    @classmethod
    def from_json(cls, data: bytes, where: str) -> "Seal":
        """Raises `ManifestError`, also for a seal that was changed after it was written."""
        with reading(where):
            raw = parsed(data, where, FORMAT)
            del raw["hour"]
            made = cls(files=tuple(raw.pop("files")), **raw)
            for each in fields(made):
                if each.name != "proof":
                    check(getattr(made, each.name), each.type, each.name)
            check(made.proof.get("counted_from", {}), dict[str, str], "counted_from")
            if made.digest not in ("", made.own_digest()):
                raise ManifestError(
                    f"{where} is not the seal that was written: its digest differs from its content. Remove "
                    "it, and the hour is sealed again"
                )
            return made

    def own_digest(self) -> str:
        """Returns the digest of what the seal says."""
        said = json.loads(replace(self, digest="").to_json())
        return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()


def seal_hour(
    webhdfs_url: str,
    topic: str,
    hour_ms: int,
    proof: Mapping[str, Any],
    *,
    root: str = DEFAULT_ROOT,
    user: str | None = None,
    clock_ms: Callable[[], int] = now_ms,
) -> Seal:
    """Seals an hour as it is now. `proof` is the audit's, as plain data.

    An hour that has not changed since its last seal keeps that seal, so two processes may seal the same hour
    concurrently. Raises `NotSealedError` while a committed change is not complete, if the hour's folder does
    not hold exactly the files of the commit log, with their sizes and checksums, and if their rows are not
    those that the commit log counted, and the proof (`sealed_rows`).
    """
    return seal_hours(webhdfs_url, topic, {hour_ms: proof}, root=root, user=user, clock_ms=clock_ms)[hour_ms]


def seal_hours(
    webhdfs_url: str,
    topic: str,
    proofs: Mapping[int, Mapping[str, Any]],
    *,
    root: str = DEFAULT_ROOT,
    user: str | None = None,
    clock_ms: Callable[[], int] = now_ms,
) -> dict[int, Seal]:
    """Seals each hour in `proofs`, reading the commit log once; see `seal_hour`.

    An hour that cannot be sealed keeps no other one from it: the error has both.
    """
    if not proofs:
        return {}
    with HdfsClient(webhdfs_url, user=user) as hdfs:
        return seal_in(CommitLog(hdfs, TopicPaths(root, topic)), proofs, clock_ms)


def seal_in(
    log: CommitLog, proofs: Mapping[int, Mapping[str, Any]], clock_ms: Callable[[], int] = now_ms
) -> dict[int, Seal]:
    """Seals each hour in `proofs` of the table with this commit log; see `seal_hours`."""
    sealed: dict[int, Seal] = {}
    problems: dict[int, str] = {}
    for _ in range(ATTEMPTS_MAX):
        left = {hour: proof for hour, proof in proofs.items() if hour not in {*sealed, *problems}}
        if not left:
            break
        try:
            _try_seal(log, left, clock_ms, sealed, problems)
        except HdfsError as error:
            if not sealed:
                raise
            problems |= {hour_ms: str(error) for hour_ms in left.keys() - sealed.keys()}
    for hour_ms in sorted(proofs.keys() - sealed.keys() - problems.keys()):
        problems[hour_ms] = (
            f"{log.paths.topic}, {hour_name(hour_ms)}: other runs sealed it first {ATTEMPTS_MAX} times in a "
            "row; run again"
        )
    if problems:
        hours = "1 more hour" if len(problems) == 2 else f"{len(problems) - 1} more hours"
        more = f"; and {hours}" if len(problems) > 1 else ""
        raise NotSealedError(problems[min(problems)] + more, problems, sealed)
    return sealed


def _try_seal(
    log: CommitLog,
    proofs: Mapping[int, Mapping[str, Any]],
    clock_ms: Callable[[], int],
    sealed: dict[int, Seal],
    problems: dict[int, str],
) -> None:
    """Adds each of these hours to `sealed` or `problems`, except those whose next version another process
    writes first.
    """
    topic = log.paths.topic
    wait_until_complete(log)
    if incomplete := log.to_complete():
        raise NotSealedError(
            f"{topic}: change {incomplete[0].sequence} is committed but not complete; "
            "run a load, which completes it",
            problems,
            sealed,
        )
    state = log.state()
    latest = seals(log.hdfs, log.paths, only=proofs.keys(), problems=problems)
    for hour_ms in sorted(proofs.keys() - problems.keys()):
        seal = latest.get(hour_ms)
        if seal is None or is_stale(state, seal, hour_ms):
            if problem := _problem_of_files(log, state, hour_ms) or problem_of_rows(
                log, state, hour_ms, proofs[hour_ms], None if seal is None else sealed_to(seal)
            ):
                if log.state().sequence == state.sequence and not log.to_complete():
                    problems[hour_ms] = problem
                continue  # else another run has changed the table meanwhile, or does just now
            seal = _seal(state, topic, hour_ms, seal, proofs[hour_ms], clock_ms())
            if not _put(log.hdfs, log.paths, seal):
                continue
        sealed[hour_ms] = seal


def seals(
    hdfs: HdfsClient,
    paths: TopicPaths,
    *,
    only: Collection[int] | None = None,
    until_ms: int | None = None,
    problems: dict[int, str] | None = None,
) -> dict[int, Seal]:
    """Returns the latest seal of every sealed hour, or of the hours in `only`.

    `until_ms`: the latest of those that were written by this time. `problems` takes, by hour, why a seal is
    not believed; without it that is a `ManifestError`.
    """
    found: dict[int, list[tuple[int, str]]] = {}
    for hour_ms, version, where in seal_files(hdfs, paths):
        if only is None or hour_ms in only:
            found.setdefault(hour_ms, []).append((version, where))

    def read(hour_ms: int) -> Seal | None:
        for _, where in sorted(found[hour_ms], reverse=True):
            try:
                seal = read_seal(hdfs, where)
            except ManifestError as error:
                if problems is None:
                    raise
                problems[hour_ms] = str(error)
                return None
            if until_ms is None or seal.sealed_ms <= until_ms:
                return seal
        return None

    hours = sorted(found)
    with ThreadPoolExecutor(SEALS_AT_ONCE, thread_name_prefix="seals") as pool:
        read_seals = zip(hours, pool.map(read, hours), strict=True)
        return {hour_ms: seal for hour_ms, seal in read_seals if seal is not None}


def read_seal(hdfs: HdfsClient, where: str) -> Seal:
    """Raises `ManifestError` for one that is not the seal that was written, and `HdfsError`."""
    try:
        data = hdfs.read(where)
    except HdfsDamagedError as error:
        raise ManifestError(
            f"{where} can't be read, {LOST}. Remove it, and the hour is sealed again"
        ) from error
    return Seal.from_json(data, where)


def due_hours(
    webhdfs_url: str,
    topic: str,
    *,
    root: str = DEFAULT_ROOT,
    now_ms: int,
    grace_ms: int = 0,
    user: str | None = None,
) -> list[int]:
    """Returns the hours to seal: those that ended `grace_ms` ago and hold rows newer than their seal."""
    with HdfsClient(webhdfs_url, user=user) as hdfs:
        paths = TopicPaths(root, topic)
        # An hour whose seal is not believed is due: its task says what is wrong, and the others go on.
        sealed = seals(hdfs, paths, problems={})
        return hours_to_seal(CommitLog(hdfs, paths).state(), sealed, now_ms, grace_ms)


def counted_from(seal: Seal) -> str:
    """Returns "log" if some datacenter's part of the hour was counted from the log on, else "producers".

    Seals of earlier versions do not say it: all were counted from the producers on.
    """
    found = seal.proof.get("counted_from", {}).values()
    return FROM_LOG if FROM_LOG in found else FROM_PRODUCERS


def hours_to_seal(state: TableState, sealed: Mapping[int, Seal], now_ms: int, grace_ms: int) -> list[int]:
    """Returns the hours to seal, from a table's state and seals (see `due_hours`). Pure."""
    return [
        hour_ms
        for hour_ms in sorted(state.hours())
        if hour_ms + HOUR_MS + grace_ms <= now_ms and is_stale(state, sealed.get(hour_ms), hour_ms)
    ]


def is_stale(state: TableState, seal: Seal | None, hour_ms: int) -> bool:
    """Whether the hour has changed since its seal, or has none."""
    return seal is None or seal.sequence < state.changed.get(hour_ms, -1)


def sealed_to(seal: Seal) -> int:
    """Returns the last change whose rows a seal vouches for: its own, or a later one that its proof knew."""
    heard = seal.proof.get("load_sequence")
    return max(seal.sequence, heard) if isinstance(heard, int) else seal.sequence


def _problem_of_files(log: CommitLog, state: TableState, hour_ms: int) -> str:
    """Returns why the hour's files are not those of the commit log; empty if they are.

    A file beside them is a problem, too: readers of the folder read it.
    """
    files = state.hours().get(hour_ms, [])
    folders = {log.paths.hour_dir(hour_ms), log.paths.older_hour_dir(hour_ms)}
    folders |= {file.path.rpartition("/")[0] for file in files}
    present = {
        f"{folder}/{entry.name}": entry.size_bytes
        for folder in sorted(folders)
        for entry in log.hdfs.entries(folder)
        if not entry.is_dir and entry.name.endswith(".parquet")
    }
    problems = [
        f"{file.path} is missing ({file.rows} rows)"
        if file.path not in present
        else f"{file.path} has {present[file.path]} bytes, its manifest has {file.size_bytes}"
        for file in files
        if present.get(file.path) != file.size_bytes
    ]
    problems += [f"{path} is in no manifest" for path in sorted(present) if path not in state.files]
    if not problems:
        return ""
    more = f", and {len(problems) - 1} problems more" if len(problems) > 1 else ""
    hour = f"{log.paths.topic}, {hour_name(hour_ms)}"
    return f"{hour}: {problems[0]}{more}; `headrace warehouse verify {log.paths.topic}` lists all"


def _seal(
    state: TableState, topic: str, hour_ms: int, latest: Seal | None, proof: Mapping[str, Any], now_ms: int
) -> Seal:
    files = state.hours().get(hour_ms, [])
    seal = Seal(
        topic=topic,
        hour_ms=hour_ms,
        version=1 if latest is None else latest.version + 1,
        sequence=state.changed.get(hour_ms, state.sequence),
        sealed_ms=now_ms,
        rows=sum(file.rows for file in files),
        files=tuple(file.path for file in files),
        proof=proof,
        previous_rows=None if latest is None else latest.rows,
    )
    return replace(seal, digest=seal.own_digest())


def _put(hdfs: HdfsClient, paths: TopicPaths, seal: Seal) -> bool:
    """Writes a seal; False if its version exists already."""
    # A name of its own: another run may seal the same hour in the same millisecond.
    staged = f"{paths.sealed}/_{hour_name(seal.hour_ms)}.{uuid.uuid4().hex}.tmp"
    hdfs.write(staged, seal.to_json(), overwrite=True)
    if hdfs.rename(staged, paths.seal(seal.hour_ms, seal.version)):
        return True
    hdfs.delete(staged)
    return False


def seal_files(hdfs: HdfsClient, paths: TopicPaths) -> list[tuple[int, int, str]]:
    """Returns the hour, version and path of every seal."""
    found: list[tuple[int, int, str]] = []
    for entry in hdfs.entries(paths.sealed):
        hour, _, rest = entry.name.partition(".v")
        version, _, kind = rest.partition(".")
        if kind != "json" or not version.isdecimal():
            continue
        try:
            found.append((parse_hour(hour), int(version), f"{paths.sealed}/{entry.name}"))
        except ValueError:
            continue  # somebody's file
    return found
