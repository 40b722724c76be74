"""The leader epochs of one log: where the batches of each leader begin (KIP-101, KIP-279).

A leader writes its epoch into each batch that it appends, and a copy keeps it. So an address and its epoch
name one batch for ever, and two logs agree up to the smaller of their ends in the largest epoch that both
have.
Pure: it reads no files.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from headrace.log.staging import StagedBatch

NO_EPOCH: Final = -1


class EpochStart(NamedTuple):
    """A leader's epoch, and the address of the first batch that has it."""

    epoch: int
    address: int


class EpochEnd(NamedTuple):
    """The address behind the last batch of a leader's epoch."""

    epoch: int
    end_address: int


UNKNOWN_EPOCH: Final = EpochEnd(NO_EPOCH, -1)  # the log cannot say where such an epoch ends


class LeaderEpochs:
    """Epochs and addresses, both ascending. `latest` is `NO_EPOCH` if no batch has one."""

    __slots__ = ("_addresses", "_epochs", "_last_address", "latest")

    def __init__(self, starts: Iterable[EpochStart] = ()) -> None:
        self._epochs: list[int] = []
        self._addresses: list[int] = []
        self._last_address = -1
        for epoch, address in starts:
            if epoch < 0 or (self._epochs and (epoch <= self._epochs[-1] or address <= self._addresses[-1])):
                raise ValueError(f"epoch {epoch} at {address} does not follow {self.starts()[-1:]}")
            self._epochs.append(epoch)
            self._addresses.append(address)
        self.latest = self._epochs[-1] if self._epochs else NO_EPOCH

    def note(self, epoch: int, address: int) -> bool:
        """Records the epoch of the batch at `address`, behind all that were noted. Returns False if a leader
        cannot have written it here.

        The field is not under a batch's checksum. If epochs descend, a single batch is taken for the wrong
        one: the one before, if its epoch begins and ends with it, else this one.
        """
        before, self._last_address = self._last_address, address
        if epoch == self.latest:
            return True
        if epoch > self.latest:
            if self._addresses[-1:] == [address]:  # retention has deleted all of the epoch before
                self._epochs[-1] = epoch
            else:
                self._epochs.append(epoch)
                self._addresses.append(address)
            self.latest = epoch
            return True
        was_single = self._addresses[-1:] == [before]
        if was_single and self._epochs[-2:-1] == [epoch]:
            del self._epochs[-1], self._addresses[-1]
            self.latest = epoch
        return False

    def note_all(self, batches: Sequence[StagedBatch]) -> None:
        """Records the epochs of batches that were written together."""
        last = batches[-1]
        if batches[0].leader_epoch == last.leader_epoch == self.latest:
            self._last_address = last.address
            return
        for batch in batches:
            self.note(batch.leader_epoch, batch.address)

    def end_of(self, epoch: int, end_address: int) -> EpochEnd:
        """Returns the largest epoch up to `epoch` that the log has, and where its batches end, as Apache
        Kafka answers OffsetForLeaderEpoch. `end_address`: the log's end.

        For an epoch below all that the log has: that epoch, and where the first later one begins (retention
        deleted it). `UNKNOWN_EPOCH` for one above all.
        """
        if epoch < 0 or epoch > self.latest:
            return UNKNOWN_EPOCH
        at = bisect_right(self._epochs, epoch)
        if at == 0:
            return EpochEnd(epoch, self._addresses[0])
        end = self._addresses[at] if at < len(self._epochs) else end_address
        return EpochEnd(self._epochs[at - 1], end)

    def at(self, address: int) -> int:
        """Returns the epoch of the batch at `address`; `NO_EPOCH` before the first start."""
        at = bisect_right(self._addresses, address)
        return self._epochs[at - 1] if at else NO_EPOCH

    def truncate(self, address: int) -> None:
        """Forgets the epochs that begin at `address` or behind it: the log was cut there. `at` may be called
        meanwhile, by another thread.
        """
        while self._addresses and self._addresses[-1] >= address:
            del self._addresses[-1], self._epochs[-1]
        self.latest = self._epochs[-1] if self._epochs else NO_EPOCH
        self._last_address = -1

    def forget_before(self, address: int) -> None:
        """Forgets what lies before `address`, the log's new start."""
        at = bisect_right(self._addresses, address) - 1
        if at < 0:
            return
        del self._epochs[:at], self._addresses[:at]
        self._addresses[0] = address

    def starts(self) -> tuple[EpochStart, ...]:
        return tuple(self)

    def __iter__(self) -> Iterator[EpochStart]:
        return iter(list(map(EpochStart, self._epochs, self._addresses)))

    def __len__(self) -> int:
        return len(self._epochs)
