"""Fetch sessions (KIP-227): ids and epochs that nobody was given, sessions of others, partitions twice, many.

headrace's brokers grant consumers no session: session id 0 in each answer makes them name all partitions each
time. The checks hold for a broker that grants some, too: not more than `SESSIONS_MAX`, each to one client.
"""

from __future__ import annotations

import random
from typing import Final
from uuid import UUID

from fix_broker import RawClient
from fuzzing import sessions
from fuzzing.values import integer, mutate
from fuzzing.world import TOPICS, World
from headrace.wire import fetch
from headrace.wire.batch import hop
from headrace.wire.errors import ErrorCode
from headrace.wire.primitives import NO_UUID

CONNECTIONS: Final = 5
REQUESTS: Final = 80
FLOOD: Final = 400
"""Requests for new sessions that are sent at once, before an answer is read."""
VERSIONS: Final = (7, 11, 12, 13, 15, 17)
SESSIONS_MAX: Final = 1_000
"""As Apache Kafka's max.incremental.fetch.session.cache.slots."""
WAITS_MS: Final = (0, 0, 0, 1, 20)
ANSWER_WAIT_MAX_S: Final = 60.0
HONEST_RECORDS_MIN: Final = 3
REFUSALS: Final = (ErrorCode.FETCH_SESSION_ID_NOT_FOUND, ErrorCode.INVALID_FETCH_SESSION_EPOCH)


class Attack:
    """One client's requests, and the sessions that were granted to anybody."""

    def __init__(self, world: World, rng: random.Random, granted: set[int]) -> None:
        self._rng = rng
        self._names = (*TOPICS, sessions.TOPIC, "no-such-topic", "")
        self._ids = (*world.names.topic_ids, NO_UUID, UUID(int=rng.getrandbits(128)))
        self._granted = granted
        self._client = RawClient(world.address, timeout_s=ANSWER_WAIT_MAX_S)
        self.last = b""

    def close(self) -> None:
        self._client.close()

    def send_one(self) -> tuple[fetch.FetchRequest, int]:
        """Returns the request that was sent, and its version."""
        version = self._rng.choice(VERSIONS)
        request = self._request(version)
        self._send(request, version)
        return request, version

    def send_new_session(self) -> tuple[fetch.FetchRequest, int]:
        """A request for a new session, as a client begins."""
        parts = [fetch.FetchPartition(0, 0, 1)]
        topics = [fetch.FetchTopic(sessions.TOPIC, NO_UUID, parts)]
        request = fetch.FetchRequest(0, 1, 1, topics, session_epoch=0)
        self._send(request, 12)
        return request, 12

    def send_broken(self, world: World) -> None:
        """A damaged request, on a connection of its own, which is then closed."""
        version = self._rng.choice(VERSIONS)
        frame = fetch.encode_request(
            self._request(version), version=version, correlation_id=1, client_id="odd"
        )
        self.last = frame[:4] + mutate(self._rng, frame[4:])
        with RawClient(world.address) as client:
            client.send(len(self.last[4:]).to_bytes(4, "big") + self.last[4:])

    def check_answer(self, request: fetch.FetchRequest, version: int) -> None:
        """Reads the answer, and compares it with what was asked."""
        _, response = fetch.decode_response(self._client.receive(), version=version)
        if response.session_id:
            self._granted.add(response.session_id)
            assert len(self._granted) <= SESSIONS_MAX, f"{len(self._granted)} sessions were granted"
        if response.error_code:
            assert response.error_code in REFUSALS, f"{response.error_code} for {request}"
            assert not response.topics, f"a refusal with partitions: {response} for {request}"
            return
        is_full = request.session_epoch in (0, -1)
        assert is_full or request.session_id in self._granted, f"a session of nobody was served: {request}"
        if response.session_id:
            return  # what is in an incremental answer depends on the answers before
        asked = [part.partition for topic in request.topics for part in topic.partitions]
        found = [part.partition for topic in response.topics for part in topic.partitions]
        assert found == asked, f"asked for {asked}, answered {found}: {request}"
        self._check_records(request, response)

    @staticmethod
    def _check_records(request: fetch.FetchRequest, response: fetch.FetchResponse) -> None:
        """Records, where there are some, begin with the batch that holds the offset."""
        parts = [part for topic in request.topics for part in topic.partitions]
        results = [part for topic in response.topics for part in topic.partitions]
        for part, result in zip(parts, results, strict=True):
            if not isinstance(result.records, memoryview) or not len(result.records):
                continue
            assert result.error_code == 0, f"records beside an error: {result}"
            header = next((header for _, header in hop(result.records)), None)
            assert header is not None, f"not one whole batch: {result}"
            place = (header.address, header.next_offset)
            assert place[0] <= part.fetch_offset < place[1], f"{part} is answered with the batch at {place}"

    def _send(self, request: fetch.FetchRequest, version: int) -> None:
        self.last = fetch.encode_request(
            request, version=version, correlation_id=self._client.next_id(), client_id="odd"
        )
        self._client.send(self.last)

    def _request(self, version: int) -> fetch.FetchRequest:
        rng = self._rng
        session_id = rng.choice((0, 0, 1, 77, -1, 2**31 - 1, rng.getrandbits(31), *self._granted))
        topics = [self._topic(version) for _ in range(rng.choice((0, 1, 1, 2, 5)))]
        if topics and rng.random() < 0.3:
            topics += [topics[0]] * rng.choice((1, 1, 20))
        return fetch.FetchRequest(
            max_wait_ms=rng.choice(WAITS_MS),
            min_bytes=rng.choice((0, 1, 1, 2**31 - 1, -1)),
            max_bytes=rng.choice((0, 1, 1 << 16, 1 << 20, -1)),
            topics=topics,
            session_id=session_id,
            session_epoch=rng.choice((0, 0, 1, 2, -1, -1, -7, 2**31 - 1)),
            forgotten=tuple(self._forgotten() for _ in range(rng.choice((0, 0, 1, 3, 20)))),
        )

    def _topic(self, version: int) -> fetch.FetchTopic:
        rng = self._rng
        parts = [
            fetch.FetchPartition(
                rng.choice((0, 0, 1, 2, 7, -1, 2**31 - 1)),
                rng.choice((0, 0, 1, 500, -1, integer(rng, 64))),
                rng.choice((0, 1, 1 << 16, 2**31 - 1, -1)),
            )
            for _ in range(rng.choice((0, 1, 2, 30)))
        ]
        if parts and rng.random() < 0.4:
            parts += [parts[0]] * rng.choice((1, 20))
        if version >= fetch.TOPIC_IDS_FROM:
            return fetch.FetchTopic("", rng.choice(self._ids), parts)
        return fetch.FetchTopic(rng.choice(self._names), NO_UUID, parts)

    def _forgotten(self) -> fetch.ForgottenTopic:
        rng = self._rng
        parts = [rng.choice((0, 1, 7, -1)) for _ in range(rng.choice((0, 1, 50)))]
        return fetch.ForgottenTopic(rng.choice(self._names), rng.choice(self._ids), parts)


def run(world: World, rng: random.Random) -> list[str]:
    """Returns the last requests in hex."""
    granted: set[int] = set()
    reader = sessions.SessionReader(world.address, random.Random(rng.random()))
    reader.start()
    attacks = [Attack(world, rng, granted) for _ in range(CONNECTIONS)]
    try:
        for _ in range(REQUESTS):
            waiting = [(attack, *attack.send_one()) for attack in attacks]
            for attack, request, version in waiting:
                attack.check_answer(request, version)
            if rng.random() < 0.3:
                rng.choice(attacks).send_broken(world)
        sent = [attacks[0].send_new_session() for _ in range(FLOOD)]
        for request, version in sent:
            attacks[0].check_answer(request, version)
    finally:
        last = [attack.last[:4096].hex() for attack in attacks]
        for attack in attacks:
            attack.close()
        fault = reader.finish()
    assert fault is None, f"the honest reader with a session: {fault}"
    assert reader.records_read >= HONEST_RECORDS_MIN, f"it read {reader.records_read} records"
    return last
