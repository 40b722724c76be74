"""The audit topics keep their records as long as the store promises its hours."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import cast

import pytest

from headrace.audit.store.upkeep import KEEP_DEFAULT_MS
from headrace.audit.topic.keeping import KEPT_LONGER_MS, keep_records
from headrace.client import Admin

DAY_MS = 24 * 3_600_000


ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("docs/terraform.md", "`keep_days`"),
        ("terraform/modules/analysis/README.md", "`audit_keep_days`"),
        ("terraform/modules/analysis/variables.tf", 'variable "audit_keep_days"'),
    ],
)
def test_who_sets_no_time_reads_how_long_the_store_keeps_an_hour(path: str, name: str) -> None:
    text = (ROOT / path).read_text()
    said = text[text.index(name) :][:200].splitlines()
    line = next(each for each in said if "keeps an hour" in each)
    assert re.search(rf"\b{KEEP_DEFAULT_MS // DAY_MS}\b", line) and "for ever" not in line, line


class Topics:
    """A cluster's topics, and the settings that were changed."""

    def __init__(self, settings: dict[str, dict[str, str]]) -> None:
        self.settings = settings

    def topic_settings(self, topics: Iterable[str], names: Iterable[str]) -> dict[str, dict[str, str]]:
        assert set(names) == {"retention.ms", "retention.bytes"}
        return {topic: dict(self.settings[topic]) for topic in topics if topic in self.settings}

    def alter_configs(self, topic: str, changes: Mapping[str, str | None]) -> None:
        self.settings[topic].update({name: value or "" for name, value in changes.items()})


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (str(7 * DAY_MS), str(30 * DAY_MS + KEPT_LONGER_MS)),
        (str(90 * DAY_MS), str(90 * DAY_MS)),
        ("-1", "-1"),
    ],
)
def test_only_a_shorter_time_is_made_longer(before: str, after: str) -> None:
    topics = Topics({"_audit": {"retention.ms": before, "retention.bytes": "-1"}})
    keep_records(cast(Admin, topics), ["_audit", "_audit_analysis"], 30 * DAY_MS)
    assert topics.settings["_audit"]["retention.ms"] == after


def test_a_limit_in_bytes_is_named(caplog: pytest.LogCaptureFixture) -> None:
    topics = Topics({"_audit": {"retention.ms": "-1", "retention.bytes": "1000"}})
    assert keep_records(cast(Admin, topics), ["_audit"], DAY_MS) == []
    assert "_audit keeps 1000 bytes a partition" in caplog.text
