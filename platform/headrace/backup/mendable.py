"""Which broker's partition a backup mends: a topic may be mirrored, and a partition has several replicas."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path

from headrace.backup.errors import RefusedError
from headrace.backup.manifest import Manifest, Piece
from headrace.log.claims import Claims


def find(made: Manifest, partition: str, datacenter: str | None, broker_id: int | None = None) -> list[Piece]:
    """Returns the brokers of one datacenter of a backup that have this partition. Raises `RefusedError`."""
    found = [
        piece
        for piece in made.pieces
        if piece.kind == "broker"
        and partition in piece.facts.get("partitions", {})
        and datacenter in (None, piece.datacenter)
        and broker_id in (None, made.configurations.get(piece.name, {}).get("broker_id"))
    ]
    datacenters = sorted({piece.datacenter for piece in found})
    if len(datacenters) > 1:
        raise RefusedError(
            f"{partition} is in several datacenters of this backup ({', '.join(datacenters)}): add "
            "--datacenter"
        )
    if not found:
        of = f" of {datacenter}" if datacenter else ""
        on = "" if broker_id is None else f" on broker {broker_id}"
        raise RefusedError(f"this backup has no partition {partition!r}{of}{on}")
    return found


def choose(found: Collection[Piece], partition: str, folders: Mapping[str, Path]) -> Piece:
    """Returns the broker to mend, of those of this home (name → its data): if there are several, the one that
    does not have the log open. Raises `RefusedError`, `OSError`.
    """
    here = [piece for piece in found if piece.name in folders]
    if not here:
        names = ", ".join(sorted(piece.name for piece in found))
        raise RefusedError(
            f"this home has no unit {names}, which had {partition}: run it on that broker's host"
        )
    offline = here[:1] if len(here) == 1 else [e for e in here if not _is_open(folders[e.name], partition)]
    if len(offline) > 1:
        names = ", ".join(sorted(piece.name for piece in offline))
        raise RefusedError(f"{partition} is not open on several brokers of this home ({names}): add --broker")
    return (offline or here)[0]


def _is_open(data_dir: Path, partition: str) -> bool:
    if not data_dir.is_dir():
        return False  # its disk is not there, or new
    claims = Claims(data_dir)
    try:
        return not claims.take(partition)
    finally:
        claims.close()
