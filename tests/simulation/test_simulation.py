"""Short simulated worlds keep all promises, a seed repeats its world, and a broken rule is found."""

from __future__ import annotations

from collections import Counter
from typing import Final

import pytest

from simulation.mutants import MUTANTS
from simulation.sim_world import simulate

WORLDS: Final = 200
TROUBLED_MS: Final = 3_500.0
KINDS_MIN: Final = 14
ACKNOWLEDGED_MIN: Final = 3_000
REPEATED: Final = (3, 24)


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


def test_a_broken_rule_is_found() -> None:
    with MUTANTS["consumers-see-what-is-written"]():
        assert any(simulate(seed, TROUBLED_MS).problems for seed in range(1, 41))
