"""Short simulated worlds keep all promises, a seed repeats its world, and a broken rule is found."""

from __future__ import annotations

import shutil
from collections import Counter
from typing import Final

import pytest

from headrace.broker.leadership.administration import LeadershipAdmin
from headrace.log import producers
from headrace.log.producers import ProducerStates
from simulation.mutants import MUTANTS
from simulation.sim_clients import TOPIC
from simulation.sim_world import World, simulate

WORLDS: Final = 200
TROUBLED_MS: Final = 3_500.0
KINDS_MIN: Final = 14
ACKNOWLEDGED_MIN: Final = 3_000
REPEATED: Final = (3, 24)
PACKED: Final = range(201, 241)


def test_worlds_keep_their_promises() -> None:
    faults: Counter[str] = Counter()
    acknowledged = 0
    broken: dict[int, list[str]] = {}
    for seed in range(1, WORLDS + 1):
        verdict = simulate(seed, TROUBLED_MS)
        faults.update(verdict.faults)
        acknowledged += verdict.acknowledged
        if verdict.problems:
            broken[seed] = verdict.problems[:3]
    assert not broken, "`make simulate SEED=… TROUBLED_MS=3500` repeats a world"
    assert len(faults) >= KINDS_MIN and acknowledged >= ACKNOWLEDGED_MIN, (faults, acknowledged)


@pytest.mark.parametrize("seed", REPEATED)
def test_a_seed_repeats_its_world(seed: int) -> None:
    assert simulate(seed, TROUBLED_MS) == simulate(seed, TROUBLED_MS)


@pytest.mark.parametrize("name", MUTANTS)
def test_each_mutant_changes_what_is_there(name: str) -> None:
    with MUTANTS[name]():
        pass


def test_a_broken_rule_is_found() -> None:
    with MUTANTS["consumers-see-what-is-written"]():
        assert any(simulate(seed, TROUBLED_MS).problems for seed in range(1, 41))


def test_worlds_whose_producers_are_packed_at_once_keep_their_promises(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Retries are known, and nothing else is taken for one, however a broker remembers its producers."""
    packed, pack_silent = 0, ProducerStates.pack_silent

    def counted(states: ProducerStates, count_max: int) -> int:
        nonlocal packed
        done = pack_silent(states, count_max)
        packed += done
        return done

    monkeypatch.setattr(producers, "PACKED_AFTER_MS", 0)
    monkeypatch.setattr(ProducerStates, "pack_silent", counted)
    broken = {
        seed: verdict.problems[:3] for seed in PACKED if (verdict := simulate(seed, TROUBLED_MS)).problems
    }
    assert not broken and packed > len(PACKED)


def test_who_is_elected_while_its_predecessors_session_lives_does_not_lead() -> None:
    """A broker with an empty disk has read the topics, and is not registered yet: the preferred election that
    another one writes now sees the registration of the process before it (simulated world 85575).
    """
    world = World(1)
    with world.disks.in_place():
        try:
            world.prepare()
            clock, zookeeper = world.clock, world.zookeeper
            preferred = world.state()["leader"]
            for crashes in (1, 2):
                world.crash(world.brokers[preferred], is_reset=True)
                if crashes == 1:  # another one leads now, and it follows
                    zookeeper.expire(world.brokers[preferred].session.number)
                    clock.run_until(clock.now_ms + 1_000)
                else:
                    shutil.rmtree(world.folder_of(preferred))
                    world.disks.forget(world.folder_of(preferred))
                world.start(preferred)
                if crashes == 1:
                    clock.run_until(clock.now_ms + 3_000)
            leader = world.brokers[world.state()["leader"]]
            assert leader.number != preferred and preferred in world.state()["isr"]
            admin = LeadershipAdmin(
                leader.registry,
                lambda: leader.state.view,
                leader.state.offline_logs,
                leader.state.topic_config,
            )
            assert admin.elect_preferred(TOPIC, [0]) == {0: None}
            elected = world.state()
            assert elected["leader"] == preferred
            for _ in range(200):
                clock.run_until(clock.now_ms + 1)
                led = world.brokers[preferred].state.partitions.get(TOPIC, 0)
                assert led is None or led.leader_epoch > elected["leader_epoch"]
            assert world.state()["leader_epoch"] > elected["leader_epoch"]
        finally:
            shutil.rmtree(world.folder)
