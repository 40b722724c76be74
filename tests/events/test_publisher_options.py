"""What a publisher refuses before it has a connection: nothing is counted, and nothing is left behind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headrace.events import EventPublisher, InvalidEventError, ReportError
from headrace.events.schemas import read_schema

NOBODY = "127.0.0.1:1"


def publisher(folder: Path, **changed: Any) -> EventPublisher:
    settings: dict[str, Any] = {
        "datacenter": "east",
        "service": "web",
        "server": "host-1",
        "bootstrap": NOBODY,
        "registry_url": f"http://{NOBODY}",
        "state_dir": folder,
    }
    return EventPublisher(**{**settings, **changed})


@pytest.mark.parametrize(
    ("option", "problem"),
    [
        ({"bootstrap": "host:port"}, "'host:port' is not a broker address"),
        ({"service": ""}, "service is ''; expected 1 to 255 characters that can be printed"),
        ({"datacenter": "east\n"}, r"datacenter is 'east\\n'; expected"),
        ({"server": "s" * 256}, "server is 's+"),
        ({"spool_bytes": 2**28 + 1}, "spool_bytes is 268435457; at most 268435456 are kept"),
    ],
)
def test_an_option_that_is_refused_leaves_nothing_behind(
    tmp_path: Path, option: dict[str, str], problem: str
) -> None:
    """The audit sets reports with such names aside; a journal would be taken for that of a dead publisher."""
    with pytest.raises(ValueError, match=problem):
        publisher(tmp_path, **option)
    assert list(tmp_path.rglob("*.*")) == []


@pytest.mark.parametrize("topic", ["orders/eu", "page view", "", "t" * 250, "seiten\u00e4nderung"])
def test_a_name_that_no_topic_can_have_is_refused_before_it_is_counted(tmp_path: Path, topic: str) -> None:
    """The audit sets a report aside that names such a topic, with what it says of all others."""
    made = publisher(tmp_path, schemas={topic: read_schema("page-view.avsc")})
    with pytest.raises(InvalidEventError, match="is not a topic name: use 1 to 249 characters"):
        made.publish(topic, {})
    assert made._reporter._counts.changed() == []
    with pytest.raises(ReportError):
        made.close(0)


def test_a_tally_is_not_final_while_an_event_may_still_be_taken_back(tmp_path: Path) -> None:
    """It would be taken out of the next tally, whose negative count no audit takes."""
    options = {"delivery_timeout_ms": 30_100, "max_block_ms": 600_000}
    made = publisher(tmp_path, producer_options=options)
    assert made._reporter._idle_final_s > 600
    with pytest.raises(ReportError):
        made.close(0)
