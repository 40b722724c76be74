"""A topic that was deleted and made again: whether a partition's log is the one that is loaded.

Owns the comparison of logs with what loads noted of them, and the decision where another log is begun. A
mirror's copy that is made again holds the same bytes at the same addresses, so loads go on in it. Another log
has other bytes there, and an operator has to say that it shall be loaded. Pure, but for the reading of marks
through `TopicLogs`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from headrace.warehouse.lineage import Lineage
from headrace.warehouse.manifest import Manifest
from headrace.warehouse.plan import MADE_AGAIN, MadeAgain, PlanError, listed
from headrace.warehouse.topic_logs import UNREADABLE, TopicLogs

Kind = Literal["same", "empty", "copying", "other", "unknown"]
"""How a log compares with what is loaded.

- same: it holds the last batch that was loaded.
- empty: it holds nothing yet.
- copying: it holds what was loaded, up to its end, which comes before the last loaded address.
- other: it holds another batch where one was loaded, or ends there, or is gone.
- unknown: it holds nothing that a load noted.
"""


class TopicMadeAgainError(PlanError):
    """The topic was deleted and made again, and its log is not known to be the one that is loaded."""


@dataclass(frozen=True)
class Compared:
    """A log beside what is loaded. `common`: up to where it is the log that was loaded, an end of a load."""

    kind: Kind
    common: int = 0


@dataclass
class Marks:
    """What loads noted of a partition's log: the CRCs of batches, by the address behind each.

    `ends`: of the last batch of a load. `others`: within the first load; `start` is where that one began, and
    `first` the address behind its first batch, if that is known.
    """

    ends: dict[int, int] = field(default_factory=dict)
    others: dict[int, int] = field(default_factory=dict)
    start: int = 0
    first: int = 0


def noted_marks(manifests: Iterable[Manifest]) -> dict[int, Marks]:
    """Returns the marks of the logs that are loaded now, by partition."""
    found: dict[int, Marks] = {}
    for manifest, loaded in Lineage(manifests).present():
        if manifest.kind != "load":
            continue
        first = loaded.marks[0][0] if len(loaded.marks) > 1 else 0
        known = found.setdefault(loaded.partition, Marks(start=loaded.from_address, first=first))
        for address, crc in loaded.marks:
            (known.ends if address == loaded.to_address else known.others)[address] = crc
    return found


def compare(logs: TopicLogs, partition: int, end: int, marks: Marks) -> Compared:
    """Compares a log with what was loaded of the partition, up to address `end`. Raises `SourceError`."""
    log = logs.logs.get(partition)
    if log is None:
        return Compared("other")
    if log.earliest >= log.latest:
        return Compared("empty")
    is_other, common, last = False, 0, 0
    held = sorted(address for address in marks.ends if log.earliest < address <= log.latest)
    if held and held[-1] == end and logs.crc_before(partition, end) == marks.ends[end]:
        return Compared("same", end)
    # What is the same up to an address is the same before it, too: a search by halves.
    low, high = 0, len(held)
    while low < high:
        at = (low + high) // 2
        crc = logs.crc_before(partition, held[at])
        if crc == UNREADABLE:
            del held[at]
            high -= 1
        elif crc == marks.ends[held[at]]:
            common, low = held[at], at + 1
        else:
            is_other, high = True, at
    if common == 0:
        for address, crc in marks.others.items():
            found = (
                logs.crc_before(partition, address) if log.earliest < address <= log.latest else UNREADABLE
            )
            is_other = is_other or found not in (UNREADABLE, crc)
            if found == crc:
                common, last = marks.start, address
    # A copy has whole batches: of the same log it would hold the first one, at least.
    if is_other or (log.earliest == marks.start and log.latest < marks.first):
        return Compared("other", common)
    if common == end:
        return Compared("same", common)
    is_known = common > 0 or last > 0
    return Compared("copying" if is_known and log.latest < end else "unknown", common)


@dataclass(frozen=True)
class Said:
    """What an operator says of a topic that was made again. `partitions`: of some, in place of `what`."""

    what: MadeAgain | None = None
    partitions: Mapping[int, MadeAgain] = field(default_factory=dict)

    @classmethod
    def parsed(cls, words: Iterable[str]) -> Said:
        """Reads `new`, `copy`, or one of them for some partitions: `new:0,2`. Raises `ValueError`."""
        what: MadeAgain | None = None
        partitions: dict[int, MadeAgain] = {}
        for word in words:
            name, colon, numbers = word.partition(":")
            known = next((each for each in MADE_AGAIN if each == name), None)
            is_list = not colon or all(each.isascii() and each.isdigit() for each in numbers.split(","))
            if known is None or not is_list:
                raise ValueError(f"{word!r} is not new, copy, or one of them for partitions, as new:0,2")
            if colon:
                partitions.update(dict.fromkeys(map(int, numbers.split(",")), known))
            else:
                what = known
        return cls(what, partitions)

    def of(self, partition: int, *, by_number: bool = False) -> MadeAgain | None:
        """Returns what is said of a partition; `by_number`: only if its number is named."""
        return self.partitions.get(partition, None if by_number else self.what)

    @property
    def any_new(self) -> bool:
        """Whether it says of any partition that its log is a new one."""
        return "new" in (self.what, *self.partitions.values())


def decide(topic: str, ids: str, found: Mapping[int, Compared], said: Said) -> dict[int, int]:
    """Returns where the logs begin that are loaded in the place of others, by partition.

    `ids`: a sentence about the topic's ids. Raises `TopicMadeAgainError` where an operator has to say what a
    log is, or what was said is not true. A log that holds nothing yet is decided later.
    """
    begun: dict[int, int] = {}
    left: dict[Kind, list[int]] = {"copying": [], "other": [], "unknown": []}
    for partition, compared in sorted(found.items()):
        kind = compared.kind
        if kind in ("same", "empty") or (kind == "unknown" and said.of(partition) == "copy"):
            continue
        # A copy that is on its way gets there: only somebody who names it knows that this one does not.
        if said.of(partition, by_number=kind == "copying") == "new":
            begun[partition] = compared.common
        else:
            left[kind].append(partition)
    if not any(left.values()):
        return begun
    problems = [
        f"partition {listed(partitions)} {_PROBLEMS[kind]}" for kind, partitions in left.items() if partitions
    ]
    raise TopicMadeAgainError(f"{topic} {ids}. Nothing is loaded: {'; '.join(problems)}")


_PROBLEMS: Final[Mapping[Kind, str]] = {
    "copying": "is being copied again, and not yet up to what is loaded: wait, or, if it never gets there, "
    "repeat with --made-again new:N",
    "other": "has other batches than were loaded: repeat with --made-again new to load them, too (new:N of "
    "one partition)",
    "unknown": "cannot be compared: wait if it is being copied again; else repeat with --made-again new if "
    "it is another log, or with --made-again copy if it is the same one (copy:N of one partition)",
}
