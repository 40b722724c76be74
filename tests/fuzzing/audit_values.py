"""What strangers write to `_audit`: records of `audit_records`, impossible ones of anybody, and bytes."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any, Final

from fuzzing.audit_lies import HEADER_LIES, LIES, OF_A_LOG, TOPIC
from fuzzing.audit_records import KINDS, MANY, TIMES_MS, Place, Tree, tally
from fuzzing.avro import LIE, AvroWriter
from fuzzing.values import integer, mutate
from headrace.registry.framing import prefix

TOPICS: Final = (TOPIC, "strange-b", "strange.c")
DATACENTERS: Final = ("strange", "east")
NUMBERS: Final = (0, 1, 7, 2**31 - 1, 2**31, 2**40, 2**62, 2**63 - 1, -1, -(2**63))


# --- records that cannot be true, whoever says them ---


def impossible(rng: random.Random, kind: str, place: Place) -> Tree:
    """A record of this kind that lies in one place, so that nobody may believe it."""
    tree = {"header": place.header(), **KINDS[kind](rng, place)}
    if kind == "audit-positions.avsc":
        tree["positions"] = tree["positions"][:1]
    if rng.random() < 0.2:
        return {**tree, "header": {**tree["header"], **rng.choice(HEADER_LIES)}}
    if kind in OF_A_LOG and rng.random() < 0.2:
        return {**tree, "tier": "datacenter", "header": {**tree["header"], "datacenter": "elsewhere"}}
    # A tally's spans must fit its range, unless they are the lie.
    tree = {**tree, **({"from_address": 0, "to_address": 500, "spans": []} if "spans" in tree else {})}
    return {**tree, **rng.choice(LIES[kind])}


# --- values ---


class ValueMaker:
    """Makes values of `_audit`. `schemas`: file → schema; `ids`: file → its id; `honest`: true values."""

    def __init__(
        self,
        schemas: Mapping[str, Any],
        ids: Mapping[str, int],
        place: Place,
        honest: list[bytes],
    ) -> None:
        self._schemas = schemas
        self._ids = ids
        self._place = place
        self._honest = honest

    def value(self, rng: random.Random) -> bytes:
        """One value."""
        kind = rng.choice(list(KINDS))
        form = rng.random()
        if form < 0.1:
            return rng.choice(self._honest)
        if form < 0.13:
            return rng.choice((b"", b"\0", rng.randbytes(5), b"\0" * 400, b"{}", b"\xff" * 1000))
        if form < 0.35:
            return self._written(rng, kind, impossible(rng, kind, self._place), lie=0)
        if form < 0.4 and kind != "audit-load.avsc":  # the audited topic, as of another datacenter
            own = Place(self._place.topic, "strange", "strange", self._place.now_ms)
            tree = {"header": own.header(), **KINDS[kind](rng, own)}
            return self._written(rng, kind, tree | ({"tier": "datacenter"} if "tier" in tree else {}), lie=0)
        stranger = self._stranger(rng)
        tree = {"header": stranger.header(), **KINDS[kind](rng, stranger)}
        written = self._written(rng, kind, tree if form < 0.55 else _with_odd_leaves(rng, tree))
        if form < 0.7:
            return written
        if form < 0.8:
            return written[: rng.randrange(len(written))] + rng.choice((b"", b"", b"\0"))
        if form < 0.9:  # under another schema's id
            other = rng.choice((*self._ids.values(), rng.randrange(1 << 32)))
            return prefix(other) + written[5:]
        return written[:5] + mutate(rng, written[5:])

    def flood(self, rng: random.Random) -> list[bytes]:
        """Many tallies of one partition that overlap."""
        stranger = self._stranger(rng)
        tree = {"header": stranger.header(), **tally(rng, stranger), "spans": []}
        tree |= {"tier": "datacenter", "partition": rng.randrange(4), "log_partition": 0}
        return [
            self._written(rng, "audit-tally.avsc", {**tree, "from_address": at, "to_address": at + 5_000})
            for at in (rng.randrange(50_000) for _ in range(MANY))
        ]

    def unknown_ids(self, rng: random.Random) -> list[bytes]:
        """Values of as many different schemas, which nobody has registered."""
        return [prefix(rng.getrandbits(32)) + b"x" for _ in range(MANY)]

    def _stranger(self, rng: random.Random) -> Place:
        """Somebody who speaks about topics of others, also in the audited datacenter's name."""
        datacenter = rng.choice((*DATACENTERS, self._place.datacenter))
        return Place(rng.choice(TOPICS), datacenter, datacenter, self._place.now_ms)

    def _written(self, rng: random.Random, kind: str, tree: Tree, lie: float = LIE) -> bytes:
        return prefix(self._ids[kind]) + AvroWriter(rng, self._schemas[kind], lie).write(tree)


def _with_odd_leaves(rng: random.Random, tree: Any) -> Any:
    """The tree with some numbers and lists changed; the texts stay, so that it is about the same place."""
    if isinstance(tree, dict):
        return {key: _with_odd_leaves(rng, value) for key, value in tree.items()}
    if isinstance(tree, list):
        if rng.random() < 0.05:
            return rng.choice(([], tree * 3, tree[:1] * MANY))
        return [_with_odd_leaves(rng, each) for each in tree]
    if isinstance(tree, int) and not isinstance(tree, bool) and rng.random() < 0.1:
        return rng.choice((*NUMBERS, *TIMES_MS, integer(rng, 64)))
    return tree
