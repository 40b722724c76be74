"""The order of groups and files: which one begins next, and that the lists name files that are there."""

from __future__ import annotations

from pathlib import Path

import pytest

from run_order import HEAVY, HEAVY_AT_ONCE_MAX, ORDER, SHARING, group_of, next_group, place_of

ROOT = Path(__file__).parents[1]
NAMED = [file for files in SHARING for file in files]


@pytest.mark.parametrize("name", [*NAMED, *(each for place in (*ORDER, HEAVY) for each in place)])
def test_what_is_listed_is_there(name: str) -> None:
    assert (ROOT / name).exists() or name in {group_of(file) for file in NAMED}


def test_no_file_is_in_two_groups() -> None:
    assert len(set(NAMED)) == len(NAMED)


def test_a_group_keeps_its_own_order_and_stands_before_what_follows() -> None:
    names = ["tests/wire/test_a.py::test_a", f"{SHARING[1][1]}::test_b", f"{SHARING[0][1]}::test_c"]
    names += [f"{SHARING[0][0]}::test_d", f"{SHARING[0][1]}::test_e"]
    assert sorted(names, key=place_of) == [names[3], names[2], names[4], names[1], names[0]]


def test_only_so_much_that_is_heavy_runs_beside_each_other() -> None:
    heavy, light = list(HEAVY), "tests/wire/test_a.py"
    running = heavy[:HEAVY_AT_ONCE_MAX]
    waiting = [*heavy[HEAVY_AT_ONCE_MAX:], light]
    assert next_group(waiting, running[1:]) == waiting[0]
    assert next_group(waiting, [*running[1:], light]) == waiting[0]
    assert next_group(waiting, running) == light
    assert next_group(waiting[:-1], running) == waiting[0], "nobody is idle for that"
