"""An honest client on connections of its own: it produces records, reads them back, and takes times.

What it saw says whether the others' bytes hurt anybody: every record once, in order, and the longest answer.
"""

from __future__ import annotations

import threading
import time
from typing import Final, NamedTuple

from fix_broker import RawClient, batches_of
from fuzzing.batches import honest_batch
from headrace.wire.batch import hop

PAUSE_S: Final = 0.01
ANSWER_WAIT_MAX_S: Final = 60.0
LATENCY_MAX_MS: Final = 3000.0
"""Of an answer. Far above what is promised on a quiet machine: here, much else runs."""
TOPIC: Final = "honest-7f3a"
"""A name that no generated request holds: nobody else deletes it."""


class Seen(NamedTuple):
    """`latencies_s`: of each Produce with acks=all and each Fetch. `fault`: what went wrong, or None."""

    latencies_s: list[float]
    fault: str | None

    def percentile_ms(self, share: float) -> float:
        ordered = sorted(self.latencies_s)
        return 1000 * ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


class HonestClient(threading.Thread):
    """Runs from `start`, which returns once it is connected, until `finish`, and asks once at least.

    `reads_at`: the address to read at, if it is not the one to write to.
    """

    def __init__(
        self, address: str, topic: str = TOPIC, *, partition: int = 0, reads_at: str | None = None
    ) -> None:
        super().__init__(daemon=True)
        self._address = address
        self._reads_at = reads_at or address
        self._topic = topic
        self._partition = partition
        self._begun = threading.Event()
        self._ending = threading.Event()
        self._latencies_s: list[float] = []
        self._fault: str | None = None

    def start(self) -> None:
        super().start()
        self._begun.wait(ANSWER_WAIT_MAX_S)

    def run(self) -> None:
        try:
            with (
                RawClient(self._address, timeout_s=ANSWER_WAIT_MAX_S) as writer,
                RawClient(self._reads_at, timeout_s=ANSWER_WAIT_MAX_S) as reader,
            ):
                end, _ = reader.list_offset(self._topic, self._partition, -1)
                self._begun.set()
                is_over = False
                while not is_over:
                    end = self._exchange(writer, reader, end)
                    is_over = self._ending.wait(PAUSE_S)
        except (OSError, EOFError, AssertionError, TimeoutError) as error:
            self._fault = f"{type(error).__name__}: {error}"
        finally:
            self._begun.set()

    def _exchange(self, writer: RawClient, reader: RawClient, end: int) -> int:
        sent = honest_batch(b"honest %d" % end, int(time.time() * 1000))
        began_s = time.monotonic()
        written = writer.produce(self._topic, self._partition, sent)
        self._record(time.monotonic() - began_s)
        assert written.error_code == 0, f"an honest record was refused: {written}"
        began_s = time.monotonic()
        found = reader.fetch(self._topic, self._partition, end, max_wait_ms=10_000)
        self._record(time.monotonic() - began_s)
        got = bytes(batches_of(found))
        assert got[16:] == sent[16:], f"an honest record at {end} reads back as {got.hex()}"
        headers = [header for _, header in hop(got)]
        assert [header.address for header in headers] == [end], f"not one batch at {end}"
        return end + len(got)

    def _record(self, latency_s: float) -> None:
        """Counts what a client that does not wait for answers would have seen, too: one that asks every
        `PAUSE_S` would have asked during a long wait."""
        while latency_s > 0:
            self._latencies_s.append(latency_s)
            latency_s -= PAUSE_S

    def finish(self) -> Seen:
        """Stops after the exchange that is under way."""
        self._ending.set()
        self.join(ANSWER_WAIT_MAX_S + 10)
        fault = "no answer" if self.is_alive() else self._fault
        return Seen(self._latencies_s, fault)
