"""The record that takes back what a tier reported: its log went back, and is counted again. Values only.

The audit vouches for what a log holds now. A log that was cut, or that was cut and has grown again, no longer
holds what was counted of it. The auditor says from which address on its counts no longer hold; the store then
forgets them (`audit.store.fold`), and the report names the recount.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Final, NamedTuple

COPY_MADE_AGAIN: Final = "the copy was deleted and made again"
AUDITOR_ENDED: Final = "the auditor ended before its heartbeat"
"""The cause of a recount that is a precaution: nothing says that the log went back."""
SAID_AGAIN: Final = "the audit topic was deleted and made again, and may have lost an earlier recount"
"""The cause of a recount that is a precaution, too."""
_ASKED: Final = "asked for by "


@dataclass(frozen=True, slots=True)
class RecountRecord:
    """A tier counts a source partition again from `from_address` on; `audit-recount.avsc` has the fields."""

    schema_file: ClassVar[str] = "audit-recount.avsc"

    tier: str
    datacenter: str
    topic: str
    partition: int
    log_partition: int
    from_address: int
    counted_to_address: int
    cause: str
    topic_id: str = ""

    def key(self) -> str:
        """The key of the partition's tallies, so that all of them keep their order."""
        return f"{self.tier}/{self.topic}/{self.log_partition}"

    def to_avro(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_avro(cls, data: Mapping[str, Any]) -> RecountRecord:
        return cls(**{"topic_id": "", **{name: data[name] for name in cls.__slots__ if name in data}})


def asked_by(author: str) -> str:
    """Returns the cause of a recount that a person asked for: the log did not go back."""
    return f"{_ASKED}{author}"


def is_precaution(cause: str) -> bool:
    """Whether a recount says nothing about the log."""
    return cause in (AUDITOR_ENDED, SAID_AGAIN) or is_asked_for(cause)


def is_asked_for(cause: str) -> bool:
    """Whether a person asked for a recount."""
    return cause.startswith(_ASKED)


class Recount(NamedTuple):
    """A recount as the store keeps it: addresses [from, to) were counted before, and no longer held."""

    from_address: int
    to_address: int
    said_ms: int
    cause: str
