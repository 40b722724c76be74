"""What a leader knows of its followers: the high watermark and the in-sync set. Pure: time is an argument.

The high watermark is the least address that every in-sync replica has. The set that counts is the *maximal*
one: what ZooKeeper is known to hold, and what was proposed to it and may be there already (KIP-497). So each
member of the set that ZooKeeper really holds, one of which is elected next, has all below the high watermark.

Within a leader epoch only the leader adds to the set. The controller may take dead brokers out of it, and
begins a new epoch when it does anything else.

Replicas that leave while too few stay are eligible leader replicas (KIP-966): they have all below the high
watermark as well. So that this stays true it stands still until ZooKeeper holds none.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from math import inf
from typing import Final

UNKNOWN_ADDRESS: Final = -1  # a replica that has not asked in this epoch
UNKNOWN_EPOCH: Final = -1


@dataclass(slots=True)
class FollowerProgress:
    """What the leader knows of one follower since its epoch began.

    `end_address`: what the follower has, flushed unless its topic asks for less. `caught_up_ms`: when it last
    had all that the leader had. `asked_ms` and `leader_end_address`: its last fetch, and what the leader had
    then: a follower that asks for that address now had caught up at that time (KIP-16). `broker_epoch`:
    which registration of the follower asked last.
    """

    end_address: int = UNKNOWN_ADDRESS
    caught_up_ms: float = -inf
    asked_ms: float = -inf
    leader_end_address: int = UNKNOWN_ADDRESS
    broker_epoch: int = UNKNOWN_EPOCH

    def asked(self, address: int, leader_end_address: int, now_ms: float, broker_epoch: int) -> None:
        if address >= leader_end_address:
            self.caught_up_ms = now_ms
        elif self.leader_end_address != UNKNOWN_ADDRESS and address >= self.leader_end_address:
            self.caught_up_ms = max(self.caught_up_ms, self.asked_ms)
        self.end_address = address
        self.asked_ms = now_ms
        self.leader_end_address = leader_end_address
        self.broker_epoch = broker_epoch


class InSyncReplicas:
    """The replicas of one partition as its leader sees them in one epoch; `broker_id` is the leader itself.

    `epoch_start`: where the leader's log ended when the epoch began. `high_watermark`: what this replica knew
    of it then. `min_in_sync`: below so many the high watermark stands still; never more than there are
    replicas. `elr`: the eligible leader replicas. `now_ms`: by a clock that nobody sets; each follower gets
    time to catch up from then on.
    """

    __slots__ = (
        "_counted",
        "_followers",
        "_seen",
        "_seen_elr",
        "_stands_still",
        "broker_id",
        "elr",
        "epoch_start",
        "high_watermark",
        "is_below_min",
        "min_in_sync",
        "proposed",
        "replicas",
        "stored",
    )

    def __init__(
        self,
        broker_id: int,
        replicas: Sequence[int],
        in_sync: Sequence[int],
        elr: Sequence[int] = (),
        *,
        min_in_sync: int,
        epoch_start: int,
        high_watermark: int,
        now_ms: float,
    ) -> None:
        self.broker_id = broker_id
        self.epoch_start = epoch_start
        self.high_watermark = high_watermark
        self.stored = tuple(in_sync)
        self.elr = tuple(elr)
        self.proposed: tuple[int, ...] | None = None
        self._followers: dict[int, FollowerProgress] = {}
        self.saw(replicas, in_sync, elr, min_in_sync, now_ms)

    def saw(
        self,
        replicas: Sequence[int],
        in_sync: Sequence[int],
        elr: Sequence[int],
        min_in_sync: int,
        now_ms: float,
    ) -> None:
        """Notes what a watch delivered in this epoch. It may be older than what this leader has stored since,
        so its in-sync set counts beside the stored one, and replaces nothing.
        """
        self.replicas = tuple(replicas)
        self.min_in_sync = min_in_sync
        self._seen, self._seen_elr = tuple(in_sync), tuple(elr)
        before = self._followers
        self._followers = {
            replica: before.get(replica) or FollowerProgress(caught_up_ms=now_ms)
            for replica in (*self.replicas, *self.maximal, *self.elr)
            if replica != self.broker_id
        }
        self._count()

    @property
    def maximal(self) -> frozenset[int]:
        """All that may be in the in-sync set in ZooKeeper."""
        return frozenset((*self.stored, *(self.proposed or ()), *self._seen))

    def _count(self) -> None:
        """Works out what `advance` looks at each time."""
        self._counted = tuple(self._followers[each] for each in self.maximal if each != self.broker_id)
        self.is_below_min = len(self.stored) < min(self.min_in_sync, len(self.replicas))
        self._stands_still = self.is_below_min or bool(self.elr)

    # --- the high watermark ---

    def asked(
        self, replica: int, address: int, leader_end_address: int, now_ms: float, broker_epoch: int
    ) -> None:
        """Notes a fetch of this epoch by a follower whose log agrees with the leader's up to `address`."""
        self._followers[replica].asked(address, leader_end_address, now_ms, broker_epoch)

    def asked_again(self, replica: int, address: int, now_ms: float) -> None:
        """Notes that a follower has asked once more for the address that it asked for last, with nothing new
        in the leader's log since.
        """
        follower = self._followers.get(replica)
        if follower is not None and follower.end_address == address:
            follower.caught_up_ms = max(follower.caught_up_ms, now_ms)
            follower.asked_ms = max(follower.asked_ms, now_ms)

    def lost(self, replica: int, end_address: int = UNKNOWN_ADDRESS) -> None:
        """Notes that a follower's log does not agree with the leader's: nothing is known of it until it
        does. `end_address`: where it ends, if that is below the start of the leader's log.
        """
        follower = self._followers.get(replica)
        if follower is not None:
            follower.end_address = end_address

    def advance(self, own_address: int) -> bool:
        """Raises the high watermark to what all in-sync replicas have, `own_address` of it the leader's;
        returns whether it rose.
        """
        if self._stands_still:
            return False
        least = own_address
        for follower in self._counted:
            if follower.end_address < least:
                least = follower.end_address
        if least <= self.high_watermark:
            return False
        self.high_watermark = least
        return True

    @property
    def is_settled(self) -> bool:
        """Whether the high watermark has reached this leader's epoch: before that it may be lower than what
        the leader before has shown (KIP-207).
        """
        return self.high_watermark >= self.epoch_start

    def end_address(self, replica: int) -> int:
        """Returns what a follower has told that it has; `UNKNOWN_ADDRESS` for one that has told nothing."""
        follower = self._followers.get(replica)
        return UNKNOWN_ADDRESS if follower is None else follower.end_address

    def asked_ms(self, replica: int) -> float:
        """Returns when a follower is known to have asked last in this epoch; -inf if it has not."""
        follower = self._followers.get(replica)
        return -inf if follower is None else follower.asked_ms

    def lag_bytes(self, leader_end_address: int) -> dict[int, int]:
        """Returns what each follower lacks; all of it for one that has not asked yet."""
        return {
            replica: leader_end_address - max(0, follower.end_address)
            for replica, follower in self._followers.items()
        }

    def has_been_left(self, now_ms: float, silent_ms: float) -> bool:
        """Whether no other replica that can be elected has asked for so long: they may follow another
        leader."""
        able = [self._followers[each] for each in self._others]
        return bool(able) and all(
            now_ms - max(follower.asked_ms, follower.caught_up_ms) > silent_ms for follower in able
        )

    def others_suffice(self, live: Collection[int]) -> bool:
        """Whether one of the other replicas that are `live` can be elected, and they are as many as must be
        in sync, while this leader alone is too few.
        """
        needed = min(self.min_in_sync, len(self.replicas))
        others = [replica for replica in self.replicas if replica != self.broker_id and replica in live]
        return 1 < needed <= len(others) and not self._others.isdisjoint(others)

    @property
    def _others(self) -> frozenset[int]:
        """The other replicas that can be elected, as far as this leader knows."""
        return self.maximal.union(self.elr) - {self.broker_id}

    # --- changes of the set ---

    def stood_still(self, stood_ms: float, now_ms: float) -> None:
        """Notes that this leader did nothing for so long, and so heard of no follower: that time does not
        count.
        """
        for follower in self._followers.values():
            follower.caught_up_ms = min(now_ms, follower.caught_up_ms + stood_ms)
            follower.asked_ms = min(now_ms, follower.asked_ms + stood_ms)

    def wanted(
        self,
        now_ms: float,
        lag_max_ms: float,
        live: Collection[int],
        elr_below: int,
        stopping: Collection[int] = frozenset(),
    ) -> tuple[int, ...] | None:
        """Returns the in-sync set to propose; None to leave it as it is, or while a proposal is open. It is
        proposed as it is to end the eligibility of replicas: of the `unfit`, or of all if no fewer than
        `elr_below` are in sync.

        A live replica joins once it has reached the high watermark and the start of this leader's epoch. A
        replica leaves when it is dead, or has not caught up for `lag_max_ms`. One of those that stop does not
        join (KIP-841). It leaves by itself, and stays where nobody else could lead.
        """
        if self.proposed is not None:
            return None
        wanted = tuple(
            replica
            for replica in self.replicas
            if replica == self.broker_id
            or (
                replica in live
                and (replica in self.stored or replica not in stopping)
                and self._belongs(replica, now_ms, lag_max_ms)
            )
        )
        is_elr_wrong = bool(self.elr) and (len(self.stored) >= elr_below or bool(self.unfit))
        return None if set(wanted) == set(self.stored) and not is_elr_wrong else wanted

    def _belongs(self, replica: int, now_ms: float, lag_max_ms: float) -> bool:
        follower = self._followers[replica]
        if replica in self.stored:
            return now_ms - follower.caught_up_ms <= lag_max_ms
        has_asked = now_ms - follower.asked_ms <= lag_max_ms and follower.broker_epoch != UNKNOWN_EPOCH
        return has_asked and follower.end_address >= max(self.high_watermark, self.epoch_start)

    @property
    def unfit(self) -> frozenset[int]:
        """The eligible replicas that lack something below the high watermark after all: their logs were
        removed, or put back from an older copy."""
        ends = {replica: self.end_address(replica) for replica in self.elr}
        return frozenset(r for r, end in ends.items() if UNKNOWN_ADDRESS < end < self.high_watermark)

    @property
    def is_doubtful(self) -> bool:
        """Whether what a watch delivered is not what this leader has stored: the watch is late, or the
        controller took a dead broker out. Who reads ZooKeeper again knows, and tells by `has_stored`.
        """
        is_seen = set(self._seen) == set(self.stored) and set(self._seen_elr) == set(self.elr)
        return self.proposed is None and not is_seen

    def joining(self, wanted: Sequence[int]) -> dict[int, int]:
        """Returns the broker epochs in which the new members of a set have asked (KIP-903)."""
        return {
            replica: self._followers[replica].broker_epoch
            for replica in wanted
            if replica not in self.stored and replica != self.broker_id
        }

    def propose(self, wanted: tuple[int, ...]) -> None:
        """Counts a set from now on, since ZooKeeper may hold it at any moment."""
        self.proposed = wanted
        self._count()

    def has_stored(self, in_sync: Sequence[int], elr: Sequence[int], now_ms: float) -> None:
        """Ends the proposal: ZooKeeper holds `in_sync` and `elr`, which is what was proposed, or what was
        found there instead. A replica that has joined gets time to catch up.
        """
        for replica in set(in_sync) - set(self.stored):
            follower = self._followers.get(replica)
            if follower is not None:
                follower.caught_up_ms = max(follower.caught_up_ms, now_ms)
        self.stored, self.elr = tuple(in_sync), tuple(elr)
        self.proposed = None
        for replica in (*self.stored, *self.elr):
            if replica != self.broker_id:
                self._followers.setdefault(replica, FollowerProgress(caught_up_ms=now_ms))
        self._count()
