"""The fuzzer of `make fuzz` for a few rounds: the kept seeds, which found something once."""

from __future__ import annotations

import pytest

from fix_zookeeper import ZooKeeperServer
from fuzzing.__main__ import TARGETS, Tally, one_round
from fuzzing.honest import Seen
from fuzzing.world import World

KEPT = {
    "frames": (5, 2129361890),
    "records": (5, 2129361890),
    "readers": (5,),
    "log": (5,),
    "registry": (5, 2129361890),
    "znodes": (5,),
    "agent": (5,),
}
"""Seeds by target. One is added whenever `make fuzz` found something and that was mended."""


@pytest.mark.slow
@pytest.mark.parametrize("name", TARGETS)
def test_rounds_find_nothing(name: str, zookeeper_server: ZooKeeperServer) -> None:
    tally = Tally()
    with World(zookeeper_server) as world:
        for seed in KEPT[name]:
            one_round(world, name, seed, tally)
            assert not tally.findings, f"{name}, seed {seed}: {tally.findings[0]}"
    assert tally.rounds == len(KEPT[name])
    assert tally.honest_exchanges > 0


def test_a_broker_that_ends_is_a_finding(zookeeper_server: ZooKeeperServer) -> None:
    with World(zookeeper_server) as world:
        world.kill()
        assert "ended" in (world.trouble() or "")


def test_what_the_honest_client_saw() -> None:
    seen = Seen([0.001] * 98 + [0.2, 0.3], None)
    assert (seen.percentile_ms(0.5), seen.percentile_ms(1)) == (1.0, 300.0)
