"""What a consumer has read of one log, by leader epochs: it notices when the log holds something else.

After an unclean election a log may have lost its end, and go on differently at offsets that were read before.
A Fetch names the leader epoch of the batch that was read last, and a leader whose log differs says where the
two part (KIP-320, KIP-595; brokers older than Fetch v12 do not). Pure.
"""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple

from headrace.wire.batch import BatchHeader, read_header
from headrace.wire.errors import CorruptBatchError
from headrace.wire.primitives import Buffer

NO_EPOCH: Final = -1
EPOCHS_MAX: Final = 64
"""How many leader epochs are remembered of a log: the latest ones that were read."""


class Claim(NamedTuple):
    """A leader says that its log does not hold what was read. `epoch`: its largest one up to the epoch read
    last, which ends there at `end_offset`. Without them it only says that it knows nothing of that.
    """

    epoch: int = NO_EPOCH
    end_offset: int = -1

    @property
    def is_precise(self) -> bool:
        return self.epoch >= 0 and self.end_offset >= 0


class ReadLineage:
    """The epochs and the last batch of what was read without a gap."""

    __slots__ = ("_last", "_starts", "claim")

    def __init__(self) -> None:
        self._last: BatchHeader | None = None
        self._starts: deque[tuple[int, int]] = deque(maxlen=EPOCHS_MAX)  # epochs, and where they were met
        self.claim: Claim | None = None
        """What a leader said; it is checked by reading the last batch again."""

    @property
    def epoch(self) -> int:
        """The leader epoch of what was read last; `NO_EPOCH` if it is not known."""
        return self._starts[-1][0] if self._starts else NO_EPOCH

    @property
    def last_offset(self) -> int | None:
        """The last offset of the batch that was read last."""
        return None if self._last is None else self._last.next_offset - 1

    def note(self, header: BatchHeader) -> None:
        """Adds the next batch."""
        self._last = header
        epoch, known = header.partition_leader_epoch, self.epoch
        if epoch == known:
            return
        if epoch < known:
            self._starts.clear()  # epochs never descend: one of the two is damaged, nobody knows which
        if epoch >= 0:
            self._starts.append((epoch, header.base_offset))

    def holds_last(self, records: Buffer) -> bool:
        """Whether `records` begin with the batch that was read last. The leader epoch is under no checksum:
        one that is damaged in the log would be unknown to its leader.
        """
        try:
            return read_header(records) == self._last
        except CorruptBatchError:
            return False

    def parting(self, claim: Claim, position: int) -> int:
        """Returns from where on what was read up to `position` is not in the log of a precise claim."""
        later = [start for epoch, start in self._starts if epoch > claim.epoch]
        return min(position, claim.end_offset, *later[:1])

    def before(self, offset: int) -> ReadLineage:
        """Returns what is known of the part before `offset`; its last batch only if that ends there."""
        kept = ReadLineage()
        if self._last is not None and self._last.next_offset == offset:
            kept._last = self._last
        kept._starts.extend(each for each in self._starts if each[1] < offset)
        return kept
