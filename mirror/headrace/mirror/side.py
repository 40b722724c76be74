"""One cluster of a mirror, as locating asks it: where logs begin and end, what lies at an address.

Owns its connections, and how long a broker that does not answer may keep the questions to others waiting.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final, NamedTuple
from uuid import UUID

from headrace.audit.batches.raw_reader import RawReader
from headrace.client.admin import EARLIEST, LATEST, Admin
from headrace.client.calls import fetch_call, leader_epochs_call
from headrace.client.errors import BrokerError, BrokerGoneError, ClientError, NetworkError
from headrace.client.network import Network
from headrace.log.epochs import EpochEnd
from headrace.mirror.discovery import check_is_mirror
from headrace.replication import gaps
from headrace.replication.gaps import AcceptedGap
from headrace.replication.pull import REFUSED, DamagedBatchError, Fetched
from headrace.wire.errors import ErrorCode
from headrace.wire.fetch import FetchPartition, FetchRequest, FetchTopic
from headrace.wire.primitives import NO_UUID

logger = logging.getLogger(__name__)

CALL_TIMEOUT_MS: Final = 10_000
SILENT_PAUSE_S: Final = 30.0
"""How long a broker that did not answer is not asked: all other copies wait for each question to it."""
RESUMES_MAX: Final = 1_000  # addresses behind damage that are remembered
RESUME_MAX_S: Final = 60.0
"""For how long: batches in the damage may have been restored, and the gap that is offered is too large."""


class Bounds(NamedTuple):
    """The addresses [start, end) that a partition holds."""

    start: int
    end: int


class MirrorSide:
    """The source cluster or the target cluster of a mirror; blocking calls, from one thread.

    `silent_until_s`: of brokers that do not answer, when each is asked again; several sides may share it.
    """

    def __init__(
        self, bootstrap: str, *, client_id: str, silent_until_s: dict[int, float] | None = None
    ) -> None:
        self._made_with = bootstrap, client_id
        self.admin = Admin(bootstrap, client_id=client_id, timeout_ms=CALL_TIMEOUT_MS)
        self._network = Network(bootstrap, client_id=client_id, request_timeout_ms=CALL_TIMEOUT_MS)
        self._raw = RawReader(bootstrap, client_id)
        # (topic, partition, address): the one behind, and until when that is believed.
        self._resumes: dict[tuple[str, int, int], tuple[int, float]] = {}
        self._silent_until_s = {} if silent_until_s is None else silent_until_s

    def beside(self) -> MirrorSide:
        """Returns another side of the same cluster, for another thread."""
        bootstrap, client_id = self._made_with
        return MirrorSide(bootstrap, client_id=client_id, silent_until_s=self._silent_until_s)

    def close(self) -> None:
        self.admin.close()
        self._network.close()
        self._raw.close()

    def bounds(self, topic: str, partitions: list[int]) -> dict[int, Bounds | ClientError]:
        """Returns the bounds of each partition that has a leader now, or why the leader did not tell them.
        Raises `ClientError`.
        """
        known = self.admin.topic(topic).partitions
        by_leader: dict[int, list[int]] = {}
        for partition in partitions:
            if partition in known and known[partition].leader >= 0:
                by_leader.setdefault(known[partition].leader, []).append(partition)
        found: dict[int, Bounds | ClientError] = {}
        for leader, led in by_leader.items():
            try:
                with self._asking(leader):
                    start = self.admin.list_offsets(topic, EARLIEST, partitions=led)
                    end = self.admin.list_offsets(topic, LATEST, partitions=led)
            except ClientError as error:
                found |= dict.fromkeys(led, error)
                continue
            found |= {each: Bounds(start[each].offset, end[each].offset) for each in led}
        return found

    def topic_id(self, topic: str) -> UUID:
        """Raises `ClientError`."""
        return self.admin.topic(topic).topic_id

    def epoch_ends(self, topic: str, epochs: Mapping[int, int]) -> dict[int, EpochEnd | ClientError]:
        """Returns where leader epochs end, by partition, or why the leader did not tell it; without those
        whose leader has moved.
        """
        by_leader: dict[int, dict[int, int]] = {}
        ends: dict[int, EpochEnd | ClientError] = {}
        for partition, epoch in epochs.items():
            try:
                leader = self._leader(topic, partition, time.monotonic() + CALL_TIMEOUT_MS / 1000)
            except ClientError as error:
                ends[partition] = error
            else:
                by_leader.setdefault(leader, {})[partition] = epoch
        for leader, wanted in by_leader.items():
            deadline_s = time.monotonic() + CALL_TIMEOUT_MS / 1000
            try:
                with self._asking(leader):
                    call = leader_epochs_call({topic: wanted})
                    response = self._network.send_and_wait(call, node_id=leader, deadline_s=deadline_s)
            except ClientError as error:
                ends |= dict.fromkeys(wanted, error)
                continue
            for result in (each for answer in response.topics for each in answer.partitions):
                if result.error_code == ErrorCode.NONE:
                    ends[result.partition] = EpochEnd(result.leader_epoch, result.end_offset)
                else:
                    self._network.request_update()
        return ends

    def accepted_gaps(self, topic: str) -> tuple[AcceptedGap, ...]:
        """Returns the accepted gaps of this cluster's copy of a topic. Raises `ClientError`, and
        `NotAMirrorError` if the topic is no copy, such as one that was made again by somebody else.
        """
        settings = self.admin.describe_configs(topic)
        check_is_mirror(topic, settings)
        setting = settings.get(gaps.SETTING)
        try:
            return gaps.parse((setting.value if setting is not None else None) or "")
        except ValueError as error:
            logger.error("topic %s: no gap counts as accepted, %s is invalid: %s", topic, gaps.SETTING, error)
            return ()

    def fetch(self, topic: str, partition: int, address: int, max_bytes: int) -> Fetched:
        """Fetches batches from the one at `address` on, at least one if a record is there.

        Raises `ClientError`, `DamagedBatchError` if the broker cannot read there.
        """
        deadline_s = time.monotonic() + CALL_TIMEOUT_MS / 1000
        part = FetchPartition(partition, address, max_bytes)
        request = FetchRequest(0, 0, max_bytes, [FetchTopic(topic, NO_UUID, [part])])
        leader = self._leader(topic, partition, deadline_s)
        with self._asking(leader):
            response = self._network.send_and_wait(fetch_call(request), node_id=leader, deadline_s=deadline_s)
        result = response.topics[0].partitions[0]
        code = ErrorCode(result.error_code)
        if code is not ErrorCode.NONE:
            self._network.request_update()
            if code is ErrorCode.CORRUPT_MESSAGE:
                raise DamagedBatchError(address, None, REFUSED)
            raise BrokerError(code, f"fetch of {topic}-{partition} at {address}")
        return Fetched(result.records or b"", result.log_start_offset, result.high_watermark)

    def readable_after(self, topic: str, partition: int, address: int, end: int) -> int | None:
        """Returns where the log can be read again behind damage at `address`; None if nothing says so before
        its `end`. Raises `ClientError`.
        """
        key = (topic, partition, address)
        known, until_s = self._resumes.get(key, (-1, 0.0))
        if time.monotonic() < until_s and self._raw.is_readable(topic, partition, known):
            return known
        found = self._raw.first_good_after(topic, partition, address, end) if end > address else None
        if len(self._resumes) >= RESUMES_MAX:
            self._resumes.clear()
        if found is not None:
            self._resumes[key] = found, time.monotonic() + RESUME_MAX_S
        return found

    @contextmanager
    def _asking(self, broker_id: int) -> Iterator[None]:
        """Around a question to one broker. Raises `NetworkError` at once if it did not answer lately."""
        left_s = self._silent_until_s.get(broker_id, 0.0) - time.monotonic()
        if left_s > 0:
            raise NetworkError(f"broker {broker_id} did not answer; it is asked again in {left_s:.0f} s")
        try:
            yield
        except BrokerGoneError:
            raise
        except NetworkError:
            self._silent_until_s[broker_id] = time.monotonic() + SILENT_PAUSE_S
            raise

    def _leader(self, topic: str, partition: int, deadline_s: float) -> int:
        self._network.add_topics([topic])
        while True:
            leader = self._network.cluster.leader(topic, partition)
            if leader is not None:
                return leader
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                raise NetworkError(f"{topic}-{partition} has no leader")
            self._network.request_update()
            self._network.poll(min(left_s, 0.1))
