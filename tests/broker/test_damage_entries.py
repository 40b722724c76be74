"""What a broker says in DescribeConfigs of what its disk holds: damage, and content between two addresses."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from headrace.broker.handlers.describe_configs import (
    CONTENT_BATCHES_MAX,
    RANGE_AS_BATCHES,
    _contents,
    _damage,
)
from headrace.broker.scrubber import Damage
from headrace.log.directory import partition_of
from headrace.log.scrub import ScrubFinding
from headrace.wire.log_contents import ContentRange


def found(folder: str) -> ScrubFinding:
    return ScrubFinding(folder, 0, 10, 20, "a wrong checksum", 1_700_000_000_000)


def test_damage_in_folders_that_were_moved_aside_hides_no_other() -> None:
    """One damaged file of a deleted topic, and no client got the settings of the broker any more."""
    known = Damage((found("t-0.0.stray"), found("t-1"), found("no-partition")), (found("t-0.1.deleted"),))
    entries = _damage(cast(Any, SimpleNamespace(damage=lambda: known)))
    assert [(each.setting.name, "checksum" in each.value) for each in entries] == [
        ("headrace.damage.t-1.10-20", True)
    ]


def test_each_range_has_a_name_of_its_own() -> None:
    """Of two damaged neighbours, which are one range, the second one was restored: both are news."""
    known = Damage((found("t-1"),), (found("t-1")._replace(end=30),))
    names = [each.setting.name for each in _damage(cast(Any, SimpleNamespace(damage=lambda: known)))]
    assert len(set(names)) == 2, "clients keep entries by name"


def test_whose_folder_it_is() -> None:
    assert partition_of("a-b-12") == ("a-b", 12)
    for name in ("t-0.0.stray", "t-", "-1", "t", "", "t-\u0663", "t-" + "9" * 200, "t--", "t-1.deleted"):
        assert partition_of(name) is None, name


def test_names_of_ranges_that_hold_nothing_cost_as_much_as_batches(tmp_path: Path) -> None:
    """Each of them lists a directory: thousands in one request would be seconds of a thread's time."""
    (tmp_path / "t-0").mkdir()
    names = [ContentRange("t", 0, at, at + 1).name for at in range(2_000)]
    answered = _contents(cast(Any, SimpleNamespace(data_dir=tmp_path)), names)
    assert [each.setting.name for each in answered] == names[: CONTENT_BATCHES_MAX // RANGE_AS_BATCHES]
