"""What the controller decides about one partition. Pure: states and sets of brokers in, the new state out.

Every function returns the state itself when nothing is to change, so that a decision that was written is not
made again. In every state that comes out: the leader is in the in-sync set, the in-sync set and the eligible
leader replicas are parts of the replicas. A leader that was elected has a later epoch. So has a state that
lacks a replica of before: that one deletes its log, and if it comes back, the leader must not believe what it
knows of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field, replace

from headrace.coordination.topics import NO_LEADER, ElrBelow, PartitionState


@dataclass(frozen=True, slots=True)
class Brokers:
    """The brokers of a datacenter: `alive` are registered. `bounced` have registered again since the
    controller looked last, and count as having died and come back. `other_disks`: those of them that came
    back with another disk, each with its broker epoch: the transaction in which it registered.
    `stopping`: those that say that they stop. They lead on until they have given their partitions away, and
    are elected only if nobody else can be (KIP-841).
    """

    alive: Set[int]
    bounced: Set[int] = frozenset()
    other_disks: Mapping[int, int] = field(default_factory=dict)
    stopping: Set[int] = frozenset()

    def with_other_disks(self, more: Mapping[int, int]) -> Brokers:
        """Returns the same, with further brokers that have come back with other disks."""
        if not more:
            return self
        return replace(self, bounced=self.bounced | more.keys(), other_disks={**self.other_disks, **more})

    def empty_for(self, state: PartitionState) -> Set[int]:
        """Returns the brokers that came back without what they had of this partition. A partition that was
        created after a broker's registration is wholly on the disk that the broker has now."""
        return {broker for broker, epoch in self.other_disks.items() if state.created_zxid < epoch}


def elect(
    state: PartitionState,
    brokers: Brokers,
    elr_below: ElrBelow,
    *,
    unclean: bool,
    offline: Set[int] = frozenset(),
) -> PartitionState:
    """Returns the state after brokers died or returned. `offline`: those whose log of this partition is known
    to be offline.

    A broker that is dead or bounced leaves the in-sync set, unless none is left: the last members stay, since
    they may be the only ones with all that was acknowledged. A leader that went is followed by the first
    in-sync replica in the order of the replicas, also by one that bounced, and rather by one whose log is not
    offline; else by an eligible one; else, with `unclean`, by the first one alive: rather by one that had the
    partition than by one that a reassignment adds, which may have copied nothing yet. Of those that are equal
    in all this, one that stops comes last.
    """
    if state.replicas == state.isr == (state.leader,):
        return state  # nobody else can lead: it does as soon as it is back, with what it has
    empty = brokers.empty_for(state)
    held = tuple(r for r in state.isr if r in state.replicas and r not in empty)
    returned = tuple(r for r in held if r in brokers.alive)
    steady = tuple(r for r in returned if r not in brokers.bounced)
    if steady or returned:
        new = state.with_isr(steady or returned, elr_below, empty)
        if state.leader in steady:
            return new
        in_order = [r for r in state.replicas if r in new.isr]
        return _elected(new, min(in_order, key=lambda r: (r in offline, r in brokers.stopping)))
    able = [r for r in state.replicas if r in brokers.alive and r not in offline]
    eligible = [r for r in able if r in state.elr and r not in empty]
    if eligible:
        leader = min(eligible, key=lambda r: (r in brokers.bounced, r in brokers.stopping))
        return _elected(state.with_isr((leader,), elr_below, empty), leader)
    candidates = sorted(able, key=lambda r: (r in empty, r in state.adding, r in brokers.stopping))
    if unclean and candidates:
        return _elected(replace(state, isr=(candidates[0],), elr=()), candidates[0])
    waiting = replace(state, isr=held, elr=tuple(r for r in state.elr if r not in empty))
    return waiting if state.leader == NO_LEADER else _elected(waiting, NO_LEADER)


def is_unclean(before: PartitionState, after: PartitionState, brokers: Brokers) -> bool:
    """Whether an election made a leader of a replica that was neither in sync nor eligible, or that came back
    empty."""
    if after.leader == NO_LEADER or after.leader_epoch == before.leader_epoch:
        return False
    known = before.leader, *before.isr, *before.elr
    return after.leader in brokers.empty_for(before) or after.leader not in known


def without(
    state: PartitionState,
    broker_id: int,
    able: Set[int],
    elr_below: ElrBelow,
    unfit: Set[int] = frozenset(),
) -> PartitionState:
    """Returns the state after a broker left of its own accord, or its log went offline: if others that are in
    sync, or eligible, are `able` to lead; else as it is. `unfit`: it, if its log is damaged."""
    others = tuple(r for r in state.isr if r != broker_id and r in state.replicas)
    in_sync = [r for r in others if r in able]
    eligible = [r for r in state.elr if r != broker_id and r in state.replicas and r in able]
    if in_sync and broker_id in state.isr:
        new = state.with_isr(others, elr_below, unfit)
        return _elected(new, _first(state, in_sync)) if state.leader == broker_id else new
    if not in_sync and eligible and state.leader == broker_id:
        leader = _first(state, eligible)
        return _elected(state.with_isr((leader,), elr_below, unfit), leader)
    return state


def prefer(state: PartitionState, alive: Set[int]) -> PartitionState:
    """Returns the state led by its preferred leader, if that one is alive and in sync."""
    preferred = _targets(state)[0] if _targets(state) else NO_LEADER
    if preferred == state.leader or preferred not in alive or preferred not in state.isr:
        return state
    return _elected(state, preferred)


# --- reassignment ---


def reassign(state: PartitionState, targets: tuple[int, ...]) -> PartitionState:
    """Returns the state at the beginning of a reassignment to `targets`; an earlier one is replaced.

    The replicas are the targets, then those that will go (KIP-455). One that the earlier reassignment had
    added, and that may be needed until the end, is both: added, and to go. So it is no replica of before when
    this one is called off.
    """
    old = _before(state)
    removing = tuple(r for r in dict.fromkeys((*old, *state.isr, *state.elr)) if r not in targets)
    adding = tuple(r for r in (*targets, *removing) if r not in old)
    return _assigned(state, (*targets, *removing), adding, removing)


def cancel(state: PartitionState, alive: Set[int]) -> PartitionState:
    """Returns the state after a reassignment was called off: the replicas are those of before it."""
    old = _before(state)
    if not state.adding and not state.removing:
        return state
    return _settled(state, old, alive)


def complete(state: PartitionState, alive: Set[int]) -> PartitionState:
    """Returns the state at the end of a reassignment, once every target is in sync; before that as it is."""
    targets = _targets(state)
    if not (state.adding or state.removing) or not set(targets) <= set(state.isr):
        return state
    return _settled(state, targets, alive)


def _settled(state: PartitionState, replicas: tuple[int, ...], alive: Set[int]) -> PartitionState:
    isr = tuple(r for r in state.isr if r in replicas)
    candidates = tuple(r for r in isr if r in alive)
    elr = tuple(r for r in state.elr if r in replicas)
    settled = replace(_assigned(state, replicas), elr=elr)
    if state.leader in isr or (state.leader == NO_LEADER and isr and not candidates):
        return replace(settled, isr=isr)
    if not candidates:
        return state  # nobody who stays could lead
    return replace(_elected(settled, _first(settled, candidates)), isr=isr)


def _assigned(
    state: PartitionState,
    replicas: tuple[int, ...],
    adding: tuple[int, ...] = (),
    removing: tuple[int, ...] = (),
) -> PartitionState:
    """Returns the state with other replicas, in a later epoch if one of the present ones has gone."""
    epoch = state.leader_epoch + (not set(state.replicas) <= set(replicas))
    return replace(state, leader_epoch=epoch, replicas=replicas, adding=adding, removing=removing)


def _targets(state: PartitionState) -> tuple[int, ...]:
    return tuple(r for r in state.replicas if r not in state.removing)


def _before(state: PartitionState) -> tuple[int, ...]:
    return tuple(r for r in state.replicas if r not in state.adding)


def _first(state: PartitionState, candidates: Iterable[int]) -> int:
    """Returns the first candidate in the order of the replicas."""
    among = set(candidates)
    return next(r for r in state.replicas if r in among)


def _elected(state: PartitionState, leader: int) -> PartitionState:
    return replace(state, leader=leader, leader_epoch=state.leader_epoch + 1)
