"""A few simulated worlds keep all promises, and a seed repeats its world."""

from __future__ import annotations

from simulation.sim_world import simulate


def test_worlds_keep_their_promises() -> None:
    broken = {seed: verdict.problems[:3] for seed in range(1, 6) if (verdict := simulate(seed)).problems}
    assert not broken


def test_a_seed_repeats_its_world() -> None:
    assert simulate(3) == simulate(3)
