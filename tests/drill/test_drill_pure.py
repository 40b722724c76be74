"""A slice of the drill's simulated worlds: every kind, nothing missed, nothing false, nothing misplaced."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from drill.drill_planning import KINDS, KNOWN_MISSES, planned
from drill.drill_switches import SWITCHES
from drill.drill_truth import Score

WORLDS = 6


@pytest.fixture(autouse=True)
def quiet_logs() -> Iterator[None]:
    logging.disable(logging.ERROR)
    yield
    logging.disable(logging.NOTSET)


def scored(seeds: range, *kinds: str) -> Score:
    score = Score()
    for seed in seeds:
        world = planned(seed, kinds)
        world.run()
        score.add(world.plants, world.verdicts)
    return score


def test_the_audit_names_what_was_planted_and_nothing_else() -> None:
    score = scored(range(1, 1 + WORLDS))
    assert score.bad() <= KNOWN_MISSES.keys(), score.table()
    assert score.kinds.keys() == KINDS.keys()


def test_what_is_listed_as_a_known_miss_is_one() -> None:
    """A kind that is mended leaves the list."""
    for kind in KNOWN_MISSES:
        assert scored(range(1, 6), kind).bad() == {kind}


def test_a_seed_repeats_its_world() -> None:
    assert scored(range(7, 8)).to_json() == scored(range(7, 8)).to_json()


@pytest.mark.parametrize("check", [name for name in SWITCHES if name not in (None, "replicas", "seals")])
def test_without_a_check_the_drill_fails(check: str) -> None:
    with SWITCHES[check]():
        kinds = ("tail cut after it was copied", "lost in the client")
        if check == "digest":  # else the hours are not complete for other reasons
            kinds = ("altered in the copy", "altered on the way to the log")
        assert scored(range(1, 4), *kinds).bad()
