"""What a broker says in DescribeConfigs of the damage on its disk."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from headrace.broker.handlers.configs import _damage
from headrace.broker.scrubber import Damage
from headrace.log.directory import partition_of
from headrace.log.scrub import ScrubFinding


def found(folder: str) -> ScrubFinding:
    return ScrubFinding(folder, 0, 10, 20, "a wrong checksum", 1_700_000_000_000)


def test_damage_in_folders_that_were_moved_aside_hides_no_other() -> None:
    """One damaged file of a deleted topic, and no client got the settings of the broker any more."""
    known = Damage((found("t-0.0.stray"), found("t-1"), found("no-partition")), (found("t-0.1.deleted"),))
    entries = _damage(cast(Any, SimpleNamespace(damage=lambda: known)))
    assert [(setting.name, "checksum" in value) for setting, value, *_ in entries] == [
        ("headrace.damage.t-1.10", True)
    ]


def test_whose_folder_it_is() -> None:
    assert partition_of("a-b-12") == ("a-b", 12)
    for name in ("t-0.0.stray", "t-", "-1", "t", "", "t-\u0663", "t-" + "9" * 200, "t--", "t-1.deleted"):
        assert partition_of(name) is None, name
