"""A slice of the drill's plants in tables' files: each kind is named by `verify`, or refused by the seal."""

from __future__ import annotations

import pytest

from drill import drill_files, drill_seals
from drill.drill_switches import SWITCHES
from drill.drill_truth import Outcome


@pytest.mark.parametrize("kind", drill_files.KINDS)
def test_verify_names_what_was_planted(kind: str) -> None:
    allowed = {(Outcome.NAMED, 0)}
    if kind in drill_files.KNOWN_MISSES:
        allowed.add((Outcome.MISSED, 0))
    assert {drill_files.run(kind, seed)[:2] for seed in (1, 2)} <= allowed


@pytest.mark.parametrize("kind", drill_seals.KINDS)
def test_no_hour_is_sealed_over_a_wrong_file_and_no_edited_seal_is_believed(kind: str) -> None:
    assert {drill_seals.run(kind, seed)[:2] for seed in (1, 2)} == {(Outcome.NAMED, 0)}


def test_without_their_check_edited_seals_are_missed() -> None:
    with SWITCHES["seals"]():
        found = {drill_seals.run(kind, 1)[:2] for kind in drill_seals.EDITS}
    assert found == {(Outcome.MISSED, 0)}
