"""Reads all segments of a data directory once in a while, slowly, and says which batches are not what was
written: an error in the log, and a list in `scrub.json`, which tells where the pass stands, too.

Reads the disk itself (O_DIRECT) where the file system can: the page cache would hide what the disk holds, and
a pass must not drop what consumers read. Changes no log, and needs nothing of the broker.
"""

from __future__ import annotations

import errno
import json
import logging
import mmap
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from headrace.log import checkpoint, index
from headrace.log.errors import LogError
from headrace.log.examine import BadRange, Examiner
from headrace.log.files import OpenFile, replace_file
from headrace.log.names import SEGMENT_SUFFIX, address_of, file_name
from headrace.process.clock import now_ms

logger = logging.getLogger(__name__)

STATE_FILE: Final = "scrub.json"
FINDINGS_MAX: Final = 1_000  # beyond, the later ones are left to a later pass: what was reported stays
MENDED_MAX: Final = FINDINGS_MAX  # whole again: their damage was reported, and this must be, too
CPU_SHARE_MAX: Final = 0.02  # of one core: segments of tiny batches cost more than their bytes
SAVE_INTERVAL_S: Final = 10.0
CONFIRM_WAIT_S: Final = 1.0  # a finding is read again: a write or a deletion may have been under way
ALIGNMENT_BYTES: Final = 4096
ADDRESS_MAX: Final = 2**63 - 1


class ScrubFinding(NamedTuple):
    """A bad range of addresses in a segment, and when it was found (wall clock in ms)."""

    partition: str
    segment: int
    start: int
    end: int
    cause: str
    found_ms: int


class DiskFile:
    """A segment file, read past the page cache if that is possible."""

    def __init__(self, path: Path) -> None:
        try:
            self._file = OpenFile(path, os.O_RDONLY | os.O_DIRECT)
            self._is_direct = True
        except OSError:
            self._file = OpenFile(path, os.O_RDONLY)
            self._is_direct = False
        self.size_bytes = os.fstat(self._file.fd).st_size

    @property
    def is_deleted(self) -> bool:
        """Whether the file has no name any more: reading on would only keep its bytes from being freed."""
        return os.fstat(self._file.fd).st_nlink == 0

    def read(self, size_bytes: int, position: int) -> bytes:
        """Raises `OSError`."""
        if self._is_direct:
            try:
                return self._read_past_cache(size_bytes, position)
            except OSError as error:
                if error.errno != errno.EINVAL:
                    raise
                # Some file systems open files so, but read them so only in larger blocks, or not at all.
                self._file, self._is_direct = OpenFile(self._file.path, os.O_RDONLY), False
        return os.pread(self._file.fd, size_bytes, position)

    def _read_past_cache(self, size_bytes: int, position: int) -> bytes:
        skipped = position % ALIGNMENT_BYTES
        wanted = -(-(skipped + size_bytes) // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        with mmap.mmap(-1, wanted) as buffer:
            count = os.preadv(self._file.fd, [buffer], position - skipped)
            return buffer[skipped : min(count, skipped + size_bytes)]


class Scrub:
    """One data directory. `rest(seconds)` waits, and returns whether the scrub must end.

    `rate_bytes_per_s`: what it reads at most; `interval_ms`: from the begin of one pass to that of the next.
    """

    def __init__(
        self,
        directory: Path,
        rate_bytes_per_s: int,
        interval_ms: int,
        rest: Callable[[float], bool],
        clock: Callable[[], int] = now_ms,
    ) -> None:
        self._directory = directory
        self._rate = rate_bytes_per_s
        self._interval_ms = interval_ms
        self._rest = rest
        self._clock = clock
        self._saved_s = 0.0
        self.place: tuple[str, int] | None = None  # the segment that comes next in the present pass
        self.pass_began_ms = 0
        self.pass_ended_ms = 0
        self.read_bytes = 0
        self.findings: list[ScrubFinding] = []
        self.mended: list[ScrubFinding] = []
        """What was a finding and is none any more: restored, or deleted by retention."""
        self._load()

    def run(self) -> None:
        """Makes one pass after the other, until `rest` ends it."""
        while True:
            if self.place is None:
                wait_ms = self.pass_began_ms + self._interval_ms - self._clock()
                if self.pass_began_ms and 0 < wait_ms <= self._interval_ms and self._rest(wait_ms / 1000):
                    return
                self.pass_began_ms = self._clock()
            if not self.one_pass():
                return
            if self._rest(0.0):
                return

    def one_pass(self) -> bool:
        """Reads what is left of the present pass; returns False if `rest` ended it before."""
        for partition, base in self._segments():
            self.place = (partition, base)
            if not self._scrub(partition, base):
                self._save()
                return False
            if time.monotonic() - self._saved_s > SAVE_INTERVAL_S:
                self._save()
        self.place = None
        self.pass_ended_ms = self._clock()
        self._keep([each for each in self.findings if self._path(each.partition, each.segment).exists()])
        self._save()
        return True

    def _path(self, partition: str, base: int) -> Path:
        return self._directory / partition / file_name(base, SEGMENT_SUFFIX)

    def _segments(self) -> Iterator[tuple[str, int]]:
        """Yields the segments from `place` on."""
        begin = self.place or ("", 0)
        for folder in sorted(path.parent.name for path in self._directory.glob("*/partition.json")):
            if folder < begin[0]:
                continue
            try:
                names = [path.name for path in (self._directory / folder).iterdir()]
            except FileNotFoundError:
                continue  # the topic was deleted
            bases = (address_of(name, SEGMENT_SUFFIX) for name in names)
            for base in sorted(base for base in bases if base is not None):
                if (folder, base) >= begin:
                    yield folder, base

    def _scrub(self, partition: str, base: int) -> bool:
        """Reads one segment; returns False if `rest` ended it before."""
        bad = self._read(partition, base)
        if bad:
            if self._rest(CONFIRM_WAIT_S):
                return False
            bad = self._read(partition, base)
        if bad is None:
            return False
        if not self._path(partition, base).exists():
            bad = []  # retention deleted it meanwhile
        self._note(partition, base, bad)
        return True

    def _read(self, partition: str, base: int) -> list[BadRange] | None:
        """Returns the bad ranges of a segment; `None` if `rest` ended it."""
        path = self._path(partition, base)
        try:
            file = DiskFile(path)
            end = base + file.size_bytes
            found = index.load(path.parent, base)
            if found is None:  # perhaps it is being written: what is durable does not change any more
                end = min(end, max(base, checkpoint.durable_address(path.parent)))
        except FileNotFoundError:
            return []
        except (OSError, LogError) as error:
            return [BadRange(base, base, f"it cannot be read: {error}")]
        starts = None if found is None else found.starts
        examiner = Examiner(file.read, base, end, starts, unproven=checkpoint.starts_in(path.parent))
        began_s = time.thread_time()
        for count in examiner.steps():
            self.read_bytes += count
            cpu_s = time.thread_time() - began_s
            if self._rest(max(count / self._rate, cpu_s / CPU_SHARE_MAX)):
                return None
            if file.is_deleted:
                return []
            began_s = time.thread_time()
        bad = examiner.bad
        if found is not None and found.end_address != end:
            bad.append(BadRange(min(end, found.end_address), found.end_address, f"the file ends at {end}"))
        return bad

    def _note(self, partition: str, base: int, bad: list[BadRange]) -> None:
        """Replaces what is known of one segment."""
        known = {
            (each.start, each.end): each
            for each in self.findings
            if (each.partition, each.segment) == (partition, base)
        }
        kept = [each for each in self.findings if (each.partition, each.segment) != (partition, base)]
        kept += [known[each.start, each.end] for each in bad if (each.start, each.end) in known]
        for each in bad:
            if (each.start, each.end) not in known:
                finding = ScrubFinding(partition, base, each.start, each.end, each.cause, self._clock())
                logger.error(
                    "%s: %s: addresses [%d, %d) are damaged: %s. `headrace log check` lists all damage; "
                    "restore the file from a replica, a mirror or a backup",
                    partition,
                    file_name(base, SEGMENT_SUFFIX),
                    each.start,
                    each.end,
                    each.cause,
                )
                kept.append(finding)
        self._keep(kept[:FINDINGS_MAX])
        if bad:
            self._save()

    def _keep(self, findings: list[ScrubFinding]) -> None:
        """Replaces the findings. Other threads read both lists: each is replaced as a whole."""
        still = {(each.partition, each.start, each.end) for each in findings}
        gone = [each for each in self.findings if (each.partition, each.start, each.end) not in still]
        mended = [each for each in self.mended if (each.partition, each.start, each.end) not in still]
        self.mended = [*mended, *(each._replace(found_ms=self._clock()) for each in gone)][-MENDED_MAX:]
        self.findings = findings

    # --- state ---

    def _load(self) -> None:
        try:
            values: dict[str, Any] = json.loads((self._directory / STATE_FILE).read_bytes())
            place = values["place"]
            at = None if place is None else (str(place[0]), int(place[1]))
            began_ms, ended_ms = int(values["pass_began_ms"]), int(values["pass_ended_ms"])
            findings = [_finding(each) for each in values["findings"]]
            mended = [_finding(each) for each in values.get("mended", ())]
        except FileNotFoundError:
            return
        except (OSError, ValueError, LookupError, TypeError, OverflowError, RecursionError) as error:
            logger.warning(
                "%s: %s cannot be read (%s): the scrub begins again", self._directory, STATE_FILE, error
            )
            return
        self.place, self.pass_began_ms, self.pass_ended_ms = at, began_ms, ended_ms
        self.findings, self.mended = findings[:FINDINGS_MAX], mended[:MENDED_MAX]

    def _save(self) -> None:
        self._saved_s = time.monotonic()
        values = {
            "place": self.place,
            "pass_began_ms": self.pass_began_ms,
            "pass_ended_ms": self.pass_ended_ms,
            "findings": [each._asdict() for each in self.findings],
            "mended": [each._asdict() for each in self.mended],
        }
        try:
            replace_file(self._directory / STATE_FILE, json.dumps(values).encode())
        except OSError as error:
            logger.warning("%s: the scrub's place was not saved: %s", self._directory, error.strerror)


def _finding(fields: dict[str, Any]) -> ScrubFinding:
    """Raises `ValueError`, `TypeError`, `LookupError` or `OverflowError` for what `_save` did not write."""
    segment, start, end, found_ms = (int(fields[field]) for field in ("segment", "start", "end", "found_ms"))
    if not 0 <= start <= end <= ADDRESS_MAX or not 0 <= found_ms <= ADDRESS_MAX:
        raise ValueError(f"no range of addresses: {start} to {end}, found at {found_ms}")
    return ScrubFinding(str(fields["partition"]), segment, start, end, str(fields["cause"]), found_ms)
