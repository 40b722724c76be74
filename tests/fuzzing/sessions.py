"""An honest reader of several partitions with a Fetch session (KIP-227), as Java's consumer keeps one.

A broker may grant a session or not: the reader lives with both, and with a session that the broker forgot.
What it reads must be every record once, in order.
"""

from __future__ import annotations

import random
import threading
import time
from typing import Final

from fix_broker import RawClient, batches_of
from fuzzing.batches import honest_batch
from fuzzing.honest import ANSWER_WAIT_MAX_S
from headrace.wire import fetch
from headrace.wire.batch import hop
from headrace.wire.errors import ErrorCode
from headrace.wire.primitives import NO_UUID

TOPIC: Final = "sessions-9d41"
"""A name that no generated request holds."""
PARTITIONS: Final = 4
VERSION: Final = 12
"""The last one that names topics by name."""
FORGOTTEN_SHARE: Final = 0.1
"""How often a partition is left out of the session, or taken in again."""
MAX_BYTES: Final = 1 << 20
LOST: Final = (ErrorCode.FETCH_SESSION_ID_NOT_FOUND, ErrorCode.INVALID_FETCH_SESSION_EPOCH)


class Session:
    """What a client knows of its session: the next request, from the offsets that it wants."""

    def __init__(self) -> None:
        self.session_id = 0
        self._epoch = 0
        self._known: dict[int, int] = {}  # partition → offset, as the broker has it

    def request(self, wanted: dict[int, int], max_wait_ms: int) -> fetch.FetchRequest:
        """A full request at first, afterwards what changed."""
        changed = {part: offset for part, offset in wanted.items() if self._known.get(part) != offset}
        gone = [part for part in self._known if part not in wanted]
        if self._epoch == 0:
            changed, gone = wanted, []
        self._known = dict(wanted)
        parts = [fetch.FetchPartition(part, offset, MAX_BYTES) for part, offset in changed.items()]
        return fetch.FetchRequest(
            max_wait_ms=max_wait_ms,
            min_bytes=1,
            max_bytes=MAX_BYTES,
            topics=[fetch.FetchTopic(TOPIC, NO_UUID, parts)] if parts else [],
            session_id=self.session_id,
            session_epoch=self._epoch,
            forgotten=(fetch.ForgottenTopic(TOPIC, NO_UUID, gone),) if gone else (),
        )

    def answered(self, response: fetch.FetchResponse) -> bool:
        """Whether the response is to be read; else the session is begun again."""
        if response.error_code in LOST:
            self.session_id = self._epoch = 0
            return False
        assert response.error_code == 0, f"an honest Fetch got {ErrorCode(response.error_code).name}"
        self.session_id = response.session_id
        self._epoch = self._epoch + 1 if response.session_id else 0
        return True


class SessionReader(threading.Thread):
    """Runs until `finish`."""

    def __init__(self, address: str, rng: random.Random) -> None:
        super().__init__(daemon=True)
        self._address = address
        self._rng = rng
        self._ending = threading.Event()
        self._fault: str | None = None
        self.records_read = 0

    def run(self) -> None:
        try:
            with (
                RawClient(self._address, timeout_s=ANSWER_WAIT_MAX_S) as writer,
                RawClient(self._address, timeout_s=ANSWER_WAIT_MAX_S) as reader,
            ):
                ends = {part: writer.list_offset(TOPIC, part, -1)[0] for part in range(PARTITIONS)}
                session = Session()
                left_out = -1
                while not self._ending.wait(0.005):
                    if self._rng.random() < FORGOTTEN_SHARE:
                        left_out = self._rng.randrange(-1, PARTITIONS)
                    parts = [part for part in ends if part != left_out]
                    self._exchange(writer, reader, session, ends, parts)
        except (OSError, EOFError, AssertionError, TimeoutError) as error:
            self._fault = f"{type(error).__name__}: {error}"

    def _exchange(
        self,
        writer: RawClient,
        reader: RawClient,
        session: Session,
        ends: dict[int, int],
        parts: list[int],
    ) -> None:
        """Writes a record to one of the partitions, and reads until it is there, and nothing else."""
        part = self._rng.choice(parts)
        sent = honest_batch(b"%d at %d" % (part, ends[part]), int(time.time() * 1000))
        written = writer.produce(TOPIC, part, sent)
        assert written.error_code == 0, f"an honest record was refused: {written}"
        deadline = time.monotonic() + ANSWER_WAIT_MAX_S
        before = ends[part]
        while ends[part] == before:
            assert time.monotonic() < deadline, f"the record at {before} of partition {part} does not come"
            request = session.request({each: ends[each] for each in parts}, max_wait_ms=1_000)
            reader.send(
                fetch.encode_request(
                    request, version=VERSION, correlation_id=reader.next_id(), client_id="honest"
                )
            )
            _, response = fetch.decode_response(reader.receive(), version=VERSION)
            if session.answered(response):
                self._take(response, part, sent, ends)

    def _take(self, response: fetch.FetchResponse, part: int, sent: bytes, ends: dict[int, int]) -> None:
        for topic in response.topics:
            for result in topic.partitions:
                assert result.error_code == 0, f"an honest reader got {result}"
                if not result.records:
                    continue
                got = bytes(batches_of(result))
                at = ends[result.partition]
                assert result.partition == part, f"partition {result.partition} has {got.hex()}"
                assert [header.address for _, header in hop(got)] == [at], f"not one batch at {at}"
                assert got[16:] == sent[16:], f"the record at {at} of partition {part} reads as {got.hex()}"
                ends[part] = at + len(got)
                self.records_read += 1

    def finish(self) -> str | None:
        """Stops after the exchange that is under way; returns what went wrong."""
        self._ending.set()
        self.join(ANSWER_WAIT_MAX_S + 10)
        return "no answer" if self.is_alive() else self._fault
