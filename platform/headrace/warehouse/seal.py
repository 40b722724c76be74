"""Seals: an hour's rows, vouched for. A seal is a file that never changes; late data brings a new version
beside it.

Owns `_sealed/`. Whether an hour may be sealed the audit says (its proof goes into the seal); what the hour
holds the commit log says. Needs neither Spark nor pyarrow.
"""

import json
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any, Final

from headrace.process.clock import now_ms
from headrace.warehouse.commitlog import CommitLog
from headrace.warehouse.hdfs.client import HdfsClient
from headrace.warehouse.layout import HOUR_MS, TopicPaths, hour_name, parse_hour
from headrace.warehouse.manifest import ManifestError, TableState
from headrace.warehouse.options import DEFAULT_ROOT

FORMAT: Final = 1
ATTEMPTS_MAX: Final = 10
SEALS_AT_ONCE: Final = 8


class NotSealedError(Exception):
    """The hour may not be sealed as things stand."""


@dataclass(frozen=True)
class Seal:
    """One sealed version of one hour."""

    topic: str
    hour_ms: int
    version: int
    sequence: int
    """The last change that brought or took rows of this hour, when it was sealed."""
    sealed_ms: int
    rows: int
    files: tuple[str, ...]
    proof: Mapping[str, Any]
    previous_rows: int | None = None
    """What the version before had; None for the first."""

    def to_json(self) -> bytes:
        data = {"format": FORMAT, "hour": hour_name(self.hour_ms), **asdict(self)}
        return json.dumps(data, indent=1).encode()

    @classmethod
    def from_json(cls, data: bytes, where: str) -> "Seal":
        try:
            raw = json.loads(data)
            if raw.pop("format") != FORMAT:
                raise ManifestError(f"{where} is of another format; a newer headrace wrote it")
            del raw["hour"]
            return cls(files=tuple(raw.pop("files")), **raw)
        except (ValueError, KeyError, TypeError) as error:
            raise ManifestError(f"{where} can't be read: {type(error).__name__}: {error}") from error


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
    """Seal an hour as it is now. `proof` is the audit's, as plain data.

    An hour that hasn't changed since its last seal keeps it: sealing twice is harmless, also at the same
    time. Raises `NotSealedError` while a committed change is not finished.
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
    """`seal_hour` for several hours, whose proofs are given; what the table holds is read once for all."""
    if not proofs:
        return {}
    with HdfsClient(webhdfs_url, user=user) as hdfs:
        log = CommitLog(hdfs, TopicPaths(root, topic))
        found: dict[int, Seal] = {}
        for _ in range(ATTEMPTS_MAX):
            unfinished = [each.manifest for each in log.unfinished() if each.manifest is not None]
            if unfinished:
                raise NotSealedError(
                    f"{topic}: change {unfinished[0].sequence} is committed but not finished; "
                    "run a load, which finishes it"
                )
            state = log.state()
            latest = seals(hdfs, log.paths, only=proofs.keys() - found.keys())
            for hour_ms in sorted(proofs.keys() - found.keys()):
                seal = latest.get(hour_ms)
                if is_stale(state, seal, hour_ms):
                    seal = _seal(state, topic, hour_ms, seal, proofs[hour_ms], clock_ms())
                    if not _put(hdfs, log.paths, seal):
                        continue
                assert seal is not None
                found[hour_ms] = seal
            if found.keys() == proofs.keys():
                return found
    left = hour_name(min(proofs.keys() - found.keys()))
    raise NotSealedError(f"{topic}, {left}: others sealed it {ATTEMPTS_MAX} times meanwhile; repeat")


def seals(hdfs: HdfsClient, paths: TopicPaths, *, only: Collection[int] | None = None) -> dict[int, Seal]:
    """The latest seal of every sealed hour, or of these, by hour."""
    found: dict[int, tuple[int, str]] = {}
    for hour_ms, version, name in _names(hdfs, paths):
        if only is None or hour_ms in only:
            found[hour_ms] = max(found.get(hour_ms, (0, "")), (version, name))

    def read(name: str) -> Seal:
        return Seal.from_json(hdfs.read(f"{paths.sealed}/{name}"), name)

    with ThreadPoolExecutor(SEALS_AT_ONCE, thread_name_prefix="seals") as pool:
        names = {hour_ms: name for hour_ms, (_, name) in sorted(found.items())}
        return dict(zip(names, pool.map(read, names.values()), strict=True))


def due_hours(
    webhdfs_url: str,
    topic: str,
    *,
    root: str = DEFAULT_ROOT,
    now_ms: int,
    grace_ms: int = 0,
    user: str | None = None,
) -> list[int]:
    """Hours that are over since `grace_ms`, hold rows, and changed since they were sealed, if ever; in
    order.
    """
    with HdfsClient(webhdfs_url, user=user) as hdfs:
        paths = TopicPaths(root, topic)
        return due(CommitLog(hdfs, paths).state(), seals(hdfs, paths), now_ms, grace_ms)


def due(state: TableState, sealed: Mapping[int, Seal], now_ms: int, grace_ms: int) -> list[int]:
    """`due_hours`, decided. Pure."""
    return [
        hour_ms
        for hour_ms in sorted(state.hours())
        if hour_ms + HOUR_MS + grace_ms <= now_ms and is_stale(state, sealed.get(hour_ms), hour_ms)
    ]


def is_stale(state: TableState, seal: Seal | None, hour_ms: int) -> bool:
    """Whether the hour has changed since this seal (or never had one)."""
    return seal is None or seal.sequence < state.changed.get(hour_ms, -1)


def _seal(
    state: TableState, topic: str, hour_ms: int, latest: Seal | None, proof: Mapping[str, Any], now_ms: int
) -> Seal:
    files = state.hours().get(hour_ms, [])
    return Seal(
        topic=topic,
        hour_ms=hour_ms,
        version=1 if latest is None else latest.version + 1,
        sequence=state.changed.get(hour_ms, state.sequence),
        sealed_ms=now_ms,
        rows=sum(each.rows for each in files),
        files=tuple(each.path for each in files),
        proof=proof,
        previous_rows=None if latest is None else latest.rows,
    )


def _put(hdfs: HdfsClient, paths: TopicPaths, seal: Seal) -> bool:
    """Writes a seal where no other has its version; False if one has."""
    staged = f"{paths.sealed}/_{hour_name(seal.hour_ms)}.{seal.sealed_ms}.tmp"
    hdfs.write(staged, seal.to_json(), overwrite=True)
    if hdfs.rename(staged, paths.seal(seal.hour_ms, seal.version)):
        return True
    hdfs.delete(staged)
    return False


def _names(hdfs: HdfsClient, paths: TopicPaths) -> list[tuple[int, int, str]]:
    found: list[tuple[int, int, str]] = []
    for entry in hdfs.entries(paths.sealed):
        hour, _, rest = entry.name.partition(".v")
        version, _, kind = rest.partition(".")
        if kind == "json" and version.isdigit():
            found.append((parse_hour(hour), int(version), entry.name))
    return found
