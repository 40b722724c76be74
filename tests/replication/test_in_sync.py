"""The high watermark and the in-sync set, as the leader of one epoch decides them."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from headrace.coordination.topics import PartitionState
from headrace.replication.in_sync import UNKNOWN_ADDRESS, InSyncReplicas

LEADER, LAG_MAX_MS = 1, 1_000.0
ALL = (1, 2, 3)
EPOCH = 7  # of every broker's registration
NONE = 0  # are eligible that leave
MINIMA = st.integers(1, 3)


def leader(in_sync: tuple[int, ...] = ALL, *, min_in_sync: int = 1, start: int = 0) -> InSyncReplicas:
    return InSyncReplicas(
        LEADER, ALL, in_sync, min_in_sync=min_in_sync, epoch_start=start, high_watermark=start, now_ms=0.0
    )


def asked(replicas: InSyncReplicas, who: int, address: int, *, end: int = 1_000, now_ms: float = 0) -> None:
    replicas.asked(who, address, end, now_ms, EPOCH)


def test_the_least_address_of_the_in_sync_replicas_counts() -> None:
    replicas = leader()
    assert not replicas.advance(1_000), "nobody has asked yet"
    asked(replicas, 2, 400)
    asked(replicas, 3, 300)
    assert replicas.advance(1_000)
    assert replicas.high_watermark == 300
    assert not replicas.advance(1_000)
    asked(replicas, 3, 900)
    assert replicas.advance(350), "the leader's own disk is the slowest now"
    assert replicas.high_watermark == 350


def test_it_never_falls() -> None:
    replicas = leader()
    asked(replicas, 2, 400)
    asked(replicas, 3, 400)
    replicas.advance(400)
    asked(replicas, 3, 100)
    assert not replicas.advance(1_000)
    replicas.lost(2)
    assert not replicas.advance(1_000)
    assert replicas.high_watermark == 400


def test_a_follower_that_stops_does_not_join_and_need_not_leave() -> None:
    """KIP-841: it would have to leave again in a moment. Where it is in sync still, it leaves by itself."""
    replicas = leader((1, 2))
    for follower in (2, 3):
        asked(replicas, follower, 1_000)
    assert replicas.advance(1_000), "who stops, and is not in sync, holds nobody up"
    assert replicas.wanted(0, LAG_MAX_MS, ALL, NONE, {2, 3}) is None
    assert replicas.wanted(0, LAG_MAX_MS, ALL, NONE, {2}) == ALL
    assert replicas.wanted(0, LAG_MAX_MS, {1, 3}, NONE, {2}) == (1, 3), "it is gone"


def test_a_proposal_counts_beside_what_is_stored_until_its_outcome_is_known() -> None:
    replicas = leader((1, 2))
    asked(replicas, 2, 500)
    replicas.advance(500)
    asked(replicas, 3, 500)
    assert replicas.wanted(0, LAG_MAX_MS, ALL, NONE) == ALL
    replicas.propose(ALL)
    asked(replicas, 2, 900)
    assert not replicas.advance(900), "broker 3 may be in sync, and has 500"
    replicas.has_stored(ALL, (), 0)
    asked(replicas, 3, 900)
    assert replicas.advance(900)


def test_who_was_removed_counts_until_that_is_stored_and_seen() -> None:
    replicas = leader()
    asked(replicas, 2, 500, end=500)
    asked(replicas, 3, 100, end=500)
    replicas.advance(500)
    asked(replicas, 2, 900, end=900, now_ms=2_000)
    assert replicas.wanted(2_000, LAG_MAX_MS, ALL, NONE) == (1, 2)
    replicas.propose((1, 2))
    assert not replicas.advance(900)
    replicas.has_stored((1, 2), (), 2_000)
    assert not replicas.advance(900), "the watch has not told yet"
    replicas.saw(ALL, (1, 2), (), 1, 2_000)
    assert replicas.advance(900)
    assert replicas.high_watermark == 900


def test_below_the_minimum_it_stands_still() -> None:
    replicas = leader((1,), min_in_sync=2)
    assert replicas.is_below_min
    assert not replicas.advance(1_000)
    asked(replicas, 2, 1_000)
    replicas.propose((1, 2))
    assert not replicas.advance(1_000)
    replicas.has_stored((1, 2), (), 0)
    assert not replicas.is_below_min
    assert not InSyncReplicas(
        1, (1, 2), (1, 2), min_in_sync=3, epoch_start=0, high_watermark=0, now_ms=0
    ).is_below_min, "no more than there are replicas"


def test_it_stands_still_until_nobody_is_eligible_in_zookeeper() -> None:
    """min.insync.replicas was lowered: with one replica in sync the leader goes on, but not before those that
    left can no longer be elected."""
    replicas = leader((1,), min_in_sync=2)
    replicas.has_stored((1,), (2, 3), 0)
    replicas.saw(ALL, (1,), (2, 3), 2, 0)
    assert replicas.wanted(0, LAG_MAX_MS, ALL, 2) is None, "nothing is to change while too few are in sync"
    replicas.saw(ALL, (1,), (2, 3), 1, 0)
    assert not replicas.is_below_min and not replicas.advance(500)
    assert replicas.wanted(0, LAG_MAX_MS, ALL, 1) == (1,)
    replicas.propose((1,))
    assert not replicas.advance(500)
    replicas.has_stored((1,), (), 0)
    assert replicas.advance(500) and replicas.wanted(0, LAG_MAX_MS, ALL, NONE) is None


def test_an_eligible_replica_that_lacks_something_is_found_out() -> None:
    """Somebody removed its log, or put an older copy back, on the same disk."""
    replicas = InSyncReplicas(
        LEADER, ALL, (1,), (2, 3), min_in_sync=2, epoch_start=500, high_watermark=500, now_ms=0.0
    )
    asked(replicas, 2, 500)
    assert not replicas.unfit and replicas.wanted(0, LAG_MAX_MS, (1,), 2) is None, "3 has not asked yet"
    asked(replicas, 3, 499)
    assert replicas.unfit == {3} and replicas.wanted(0, LAG_MAX_MS, (1,), 2) == (1,)


def test_a_leader_that_is_alone_has_been_left_if_an_eligible_one_may_lead() -> None:
    alone = leader((1,), min_in_sync=2)
    assert not alone.has_been_left(9_000, 3_000), "nobody else can be elected"
    alone.has_stored((1,), (2,), 0)
    assert alone.has_been_left(9_000, 3_000)
    asked(alone, 2, 0, now_ms=8_000)
    assert not alone.has_been_left(9_000, 3_000)


def test_a_follower_joins_at_the_high_watermark_and_the_start_of_the_epoch() -> None:
    replicas = leader((1, 2), start=600)
    replicas.high_watermark = 500
    assert not replicas.is_settled
    asked(replicas, 3, 550)
    assert replicas.wanted(0, LAG_MAX_MS, ALL, NONE) is None
    asked(replicas, 3, 600)
    assert replicas.wanted(0, LAG_MAX_MS, ALL, NONE) == ALL
    assert replicas.wanted(0, LAG_MAX_MS, (1, 2), NONE) is None, "it is dead"
    replicas.asked(3, 600, 1_000, 0, -1)
    assert replicas.wanted(0, LAG_MAX_MS, ALL, NONE) is None, "nobody knows which registration asked"
    asked(replicas, 3, 600)
    replicas.lost(3)
    assert replicas.wanted(0, LAG_MAX_MS, ALL, NONE) is None, "its log does not agree"


def test_a_follower_that_reaches_what_the_leader_had_at_its_last_fetch_has_caught_up() -> None:
    replicas = leader()
    asked(replicas, 2, 900, end=900, now_ms=800)
    for now_ms, address in ((500, 100), (900, 500), (1_600, 900)):
        asked(replicas, 3, address, end=address + 400, now_ms=now_ms)
    assert replicas.wanted(1_750, LAG_MAX_MS, ALL, NONE) is None, "at 900 ms the leader had 900"
    assert replicas.wanted(1_850, LAG_MAX_MS, ALL, NONE) == (1, 3), "broker 2 has not asked since 800 ms"
    assert replicas.wanted(1_850, LAG_MAX_MS, (1, 2), NONE) == (1,), "broker 3 is dead"
    assert replicas.wanted(1_950, LAG_MAX_MS, ALL, NONE) == (1,)


def test_who_has_joined_gets_time() -> None:
    replicas = leader((1, 2))
    asked(replicas, 2, 500, end=500, now_ms=5_000)
    replicas.high_watermark = 100
    asked(replicas, 3, 200, end=500, now_ms=5_000)
    replicas.propose(ALL)
    replicas.has_stored(ALL, (), 5_000)
    assert replicas.wanted(5_900, LAG_MAX_MS, ALL, NONE) is None
    assert replicas.wanted(6_100, LAG_MAX_MS, ALL, NONE) == (1,)


def test_another_change_in_zookeeper_is_read() -> None:
    replicas = leader()
    assert not replicas.is_doubtful
    replicas.saw(ALL, (1, 2), (), 1, 0)
    assert replicas.is_doubtful, "the controller has removed broker 3, or the watch is late"
    replicas.propose(replicas.stored)
    assert not replicas.is_doubtful, "it is being read"
    replicas.has_stored((1, 2), (), 0)
    assert replicas.stored == (1, 2)
    assert not replicas.is_doubtful


class Elections(RuleBasedStateMachine):
    """Whoever is elected out of those that are in sync or eligible in ZooKeeper, at any moment, has all below
    the high watermark: the leader learns of its own changes late, and watches deliver old states.
    """

    @initialize(in_sync=st.sampled_from([(1,), (1, 2), (1, 3), ALL]), min_in_sync=MINIMA)
    def begin(self, in_sync: tuple[int, ...], min_in_sync: int) -> None:
        self.now_ms = 0.0
        self.min_in_sync, self.is_flushed = min_in_sync, True
        self.leader_end = 0
        self.has = dict.fromkeys(ALL, 0)
        self.stored = PartitionState(LEADER, 0, ALL, in_sync)
        self.history = [self.stored]
        self.replicas = leader(in_sync, min_in_sync=min_in_sync)
        self.highest = 0

    @rule(size=st.integers(1, 50))
    def append(self, size: int) -> None:
        self.leader_end += size
        self.has[LEADER] = self.leader_end

    @rule(replica=st.sampled_from([2, 3]), part=st.floats(0, 1))
    def follow(self, replica: int, part: float) -> None:
        self.has[replica] += int(part * (self.leader_end - self.has[replica]))
        self.replicas.asked(replica, self.has[replica], self.leader_end, self.now_ms, EPOCH)
        self.advance()

    @rule(ms=st.integers(1, 1_500))
    def wait(self, ms: int) -> None:
        self.now_ms += ms

    @rule(live=st.sampled_from([ALL, (1, 2), (1, 3), (1,)]))
    def propose(self, live: tuple[int, ...]) -> None:
        """As `InSyncChanges` does; the topic's setting may be newer to it than to the controller."""
        wanted = self.replicas.wanted(self.now_ms, LAG_MAX_MS, live, self.below(self.stored))
        if wanted is not None:
            known = replace(self.stored, isr=self.replicas.stored, elr=self.replicas.elr)
            self.expected, self.new = known, known.with_isr(wanted, self.below)
            self.replicas.propose(wanted)

    @rule()
    def write(self) -> None:
        """The write of a proposal reaches ZooKeeper, but its outcome is not known yet."""
        if self.replicas.proposed is not None and self.stored == self.expected:
            self.stored = self.new
            self.history.append(self.stored)

    @rule()
    def learn(self) -> None:
        if self.replicas.proposed is not None:
            self.write()
            self.replicas.has_stored(self.stored.isr, self.stored.elr, self.now_ms)
            self.advance()

    @rule(replica=st.sampled_from([2, 3]), min_in_sync=MINIMA, is_unfit=st.booleans())
    def controller_removes(self, replica: int, min_in_sync: int, is_unfit: bool) -> None:
        """By the setting that it knows. `is_unfit`: the broker has another disk."""
        isr = tuple(each for each in self.stored.isr if each != replica)
        unfit = {replica} if is_unfit else set()
        self.stored = self.stored.with_isr(isr, lambda _: min_in_sync, unfit)
        self.history.append(self.stored)

    @rule(min_in_sync=MINIMA, is_flushed=st.booleans())
    def configure(self, min_in_sync: int, is_flushed: bool) -> None:
        self.min_in_sync, self.is_flushed = min_in_sync, is_flushed

    @rule(back=st.integers(0, 3))
    def watch(self, back: int) -> None:
        seen = self.history[max(0, len(self.history) - 1 - back)]
        self.replicas.saw(ALL, seen.isr, seen.elr, self.min_in_sync, 0)
        self.advance()

    def below(self, _: PartitionState) -> int:
        return self.min_in_sync if self.is_flushed else 0

    def advance(self) -> None:
        self.replicas.advance(self.has[LEADER])

    @invariant()
    def whoever_is_elected_has_what_is_visible(self) -> None:
        if hasattr(self, "has"):
            assert self.replicas.high_watermark >= self.highest
            self.highest = self.replicas.high_watermark
            able = (*self.stored.isr, *self.stored.elr)
            assert all(self.has[replica] >= self.highest for replica in able)


TestElections = settings(max_examples=150, stateful_step_count=40, deadline=None)(Elections).TestCase


@given(st.lists(st.tuples(st.sampled_from([2, 3]), st.integers(0, 500)), max_size=30))
def test_lag_is_what_followers_lack(fetches: list[tuple[int, int]]) -> None:
    replicas = leader()
    last = {2: UNKNOWN_ADDRESS, 3: UNKNOWN_ADDRESS}
    for replica, address in fetches:
        asked(replicas, replica, address, end=500)
        last[replica] = address
    assert replicas.lag_bytes(500) == {each: 500 - max(0, address) for each, address in last.items()}
