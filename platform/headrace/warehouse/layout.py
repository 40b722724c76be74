"""The paths of a topic below the warehouse's root. Pure; the only place that knows these paths.

    <root>/<topic>/hourly/dt=YYYY-MM-DD/hour=HH/<sequence>-<number>.parquet
                                                           the table, by hour of event time (UTC)
    <root>/<topic>/_log/<sequence>.json                    the commit log: a manifest per change
    <root>/<topic>/_log/<sequence>.state.json              the state that the log adds up to there
    <root>/<topic>/_sealed/YYYY-MM-DD-HH.v<version>.json   proofs that an hour is complete
    <root>/<topic>/_dead/<sequence>-<number>.parquet       records that could not be decoded
    <root>/<topic>/_staging/<change id>/                   a change until it is complete
    <root>/<topic>/_trash/<change id>/                     files that a change removed

Spark, Hive and other readers ignore names that begin with `_`, and make columns of the directories' names.
Until November 2026 an hour's directory was `hourly/YYYY/MM/DD/HH`; `move` renames such files.
"""

import re
from datetime import UTC, datetime
from typing import Final

from headrace.wire.topic_names import is_topic_name

HOUR_MS: Final = 3_600_000
HOUR_NUMBER_MAX: Final = 70_389_527
"""The last hour of the year 9999, in hours since the epoch."""
DEAD_HOUR: Final = -1
"""The hour number of staged rows that could not be decoded."""

TIME_MIN_US: Final = -62_135_596_800_000_000
TIME_MAX_US: Final = 253_402_300_799_999_999
"""The years 1 to 9999. Python, and most tools that read the table, fail at any other time."""
DAY_MIN: Final = -719_162
DAY_MAX: Final = 2_932_896
"""The same in days since the epoch."""

_SEQUENCE_DIGITS: Final = 20


class TopicNameError(ValueError):
    """The topic's name can't name a table of the warehouse."""


def can_be_table(topic: str) -> bool:
    """Whether a table of the warehouse can have this name."""
    return is_topic_name(topic) and not topic.startswith("_")


class TopicPaths:
    """The paths of one topic in one warehouse. `root` is a path in HDFS, such as `/data`."""

    def __init__(self, root: str, topic: str) -> None:
        if not can_be_table(topic):
            raise TopicNameError(
                f"{topic!r} can't be a table of the warehouse: use letters, digits, '.', '_' and '-', "
                "and don't begin with '_' (readers ignore such names)"
            )
        self.topic = topic
        self.base = f"{root.rstrip('/')}/{topic}"
        self.hourly = f"{self.base}/hourly"
        self.log = f"{self.base}/_log"
        self.sealed = f"{self.base}/_sealed"
        self.dead = f"{self.base}/_dead"
        self.staging = f"{self.base}/_staging"
        self.trash = f"{self.base}/_trash"

    def hour_dir(self, hour_ms: int) -> str:
        """Returns the directory of the hour that begins at `hour_ms`."""
        day, hour = hour_name(hour_ms).split("T")
        return f"{self.hourly}/dt={day}/hour={hour}"

    def older_hour_dir(self, hour_ms: int) -> str:
        """Returns the directory where an older headrace put this hour."""
        return f"{self.hourly}/{hour_name(hour_ms).replace('T', '/').replace('-', '/')}"

    def hour_of(self, path: str) -> int | None:
        """Returns the hour (start in ms) in whose directory, of whatever layout, a file lies; else None."""
        directory = path.rpartition("/")[0]
        if not directory.startswith(f"{self.hourly}/"):
            return None
        try:
            return parse_hour(directory.removeprefix(f"{self.hourly}/"))
        except ValueError:
            return None

    def moved(self, path: str, hour_ms: int) -> str:
        """Returns where a data file of this hour belongs today: its own path, except of older ones."""
        return f"{self.hour_dir(hour_ms)}/{path.rsplit('/', 1)[-1]}"

    def data_file(self, hour_ms: int, sequence: int, number: int) -> str:
        return f"{self.hour_dir(hour_ms)}/{padded(sequence)}-{number:05d}.parquet"

    def dead_file(self, sequence: int, number: int) -> str:
        return f"{self.dead}/{padded(sequence)}-{number:05d}.parquet"

    def manifest(self, sequence: int) -> str:
        return f"{self.log}/{padded(sequence)}.json"

    def state(self, sequence: int) -> str:
        return f"{self.log}/{padded(sequence)}.state.json"

    def seal(self, hour_ms: int, version: int) -> str:
        return f"{self.sealed}/{hour_name(hour_ms).replace('T', '-')}.v{version:03d}.json"

    def staged(self, change_id: str) -> str:
        return f"{self.staging}/{change_id}"

    def trashed(self, change_id: str) -> str:
        return f"{self.trash}/{change_id}"


def padded(sequence: int) -> str:
    """Returns the sequence number as file names have it."""
    return f"{sequence:0{_SEQUENCE_DIGITS}d}"


def hour_of(time_ms: int) -> int:
    """Returns the beginning of the hour that `time_ms` is in."""
    return time_ms - time_ms % HOUR_MS


def hour_name(hour_ms: int) -> str:
    """Returns `2026-11-20T18`, in UTC; the number of the hour if it is before the year 1 or after 9999."""
    if not TIME_MIN_US <= hour_ms * 1000 <= TIME_MAX_US:
        return f"hour {hour_ms // HOUR_MS}"
    # Not by strftime, which writes the year 999 with three digits.
    return datetime.fromtimestamp(hour_ms / 1000, UTC).isoformat()[: len("2026-11-20T18")]


def parse_hour(text: str) -> int:
    """Returns the beginning in ms of the hour `2026-11-20T18`.

    Accepts `:00`, `Z`, a space or `/` between the parts, and `dt=2026-11-20/hour=18`. Raises `ValueError`.
    """
    found = re.fullmatch(
        r"(?:dt=)?(\d{4})[-/](\d{2})[-/](\d{2})[T /-](?:hour=)?(\d{2})(?::00){0,2}(?:Z|\+00:00)?",
        text.strip(),
    )
    if found is None:
        raise ValueError(f"{text!r} is not an hour; write it as 2026-11-20T18 (UTC)")
    year, month, day, hour = map(int, found.groups())
    return round(datetime(year, month, day, hour, tzinfo=UTC).timestamp() * 1000)
