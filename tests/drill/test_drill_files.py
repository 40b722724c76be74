"""A slice of the drill's plants in tables' files: `verify` names each kind, or it is a known miss."""

from __future__ import annotations

import pytest

from drill.drill_files import KINDS, KNOWN_MISSES, run
from drill.drill_truth import Outcome


@pytest.mark.parametrize("kind", KINDS)
def test_verify_names_what_was_planted(kind: str) -> None:
    allowed = {(Outcome.NAMED, 0)}
    if kind in KNOWN_MISSES:
        allowed.add((Outcome.MISSED, 0))
    assert {run(kind, seed) for seed in (1, 2)} <= allowed
