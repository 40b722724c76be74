"""Real clients against real brokers: each writes 100,000 records with every codec, idempotently, and reads
its own and others', all of them, once and in order: in small fetches, from inside a batch, from a time.

The topics are written once and shared by all tests of this file.
"""

import bisect
from dataclasses import dataclass

import pytest

from fix_clients import CLIENT_NAMES, RealClients, read_all
from fix_datacenter import Datacenter
from fix_samples import CODECS, Got, Read, check_rows, make_samples

pytestmark = pytest.mark.real_client

COUNT = 100_000
PIECE = 400
"""How many records a read from the middle returns."""
SMALL_FETCH_BYTES = 5_000
"""Far below a batch: every fetch brings one batch, in several reads of a socket."""
SEGMENTS_MIN = 8

SAMPLES = make_samples(COUNT)


@dataclass(frozen=True)
class Published:
    """A topic that one client wrote, and what that client read from it."""

    topic: str
    rows: list[Got]
    times_given: bool

    def batch_starts(self) -> list[int]:
        """Places in `rows` where a batch begins: its offset skips the bytes of the one before."""
        return [0] + [
            place for place in range(1, COUNT) if self.rows[place].offset != self.rows[place - 1].offset + 1
        ]


class Shelf:
    """Writes each topic at its first use, and reads it back with the client that wrote it."""

    def __init__(self, bootstrap: str, clients: RealClients) -> None:
        self._bootstrap = bootstrap
        self._clients = clients
        self._published: dict[tuple[str, str], Published] = {}

    def take(self, name: str, codec: str) -> Published:
        if (name, codec) not in self._published:
            client = self._clients[name]
            topic = f"matrix-{name}-{codec}"
            client.produce(self._bootstrap, topic, SAMPLES, codec=codec)
            rows = read_all(client, self._bootstrap, topic, COUNT)
            check_rows(rows, SAMPLES, times=client.sets_times)
            self._published[name, codec] = Published(topic, rows, client.sets_times)
        return self._published[name, codec]


@pytest.fixture(scope="module")
def shelf(datacenter: Datacenter, real_clients: RealClients) -> Shelf:
    return Shelf(datacenter.bootstrap, real_clients)


every_client = pytest.mark.parametrize("name", CLIENT_NAMES)
every_codec = pytest.mark.parametrize("codec", CODECS)


@every_client
@every_codec
def test_a_client_reads_all_it_wrote(name: str, codec: str, shelf: Shelf, datacenter: Datacenter) -> None:
    published = shelf.take(name, codec)
    assert len(datacenter.segments(published.topic)) >= SEGMENTS_MIN, (
        "the topic lies in too few segments to tell"
    )


@pytest.mark.parametrize("writer", CLIENT_NAMES)
@every_codec
def test_a_client_reads_what_another_client_wrote(
    writer: str, codec: str, shelf: Shelf, datacenter: Datacenter, real_clients: RealClients
) -> None:
    # Over the five codecs every client meets each of the other three as a reader.
    turn = CLIENT_NAMES.index(writer) + 1 + CODECS.index(codec) % 3
    reader = real_clients[CLIENT_NAMES[turn % len(CLIENT_NAMES)]]
    published = shelf.take(writer, codec)
    rows = reader.read(datacenter.bootstrap, Read(published.topic, COUNT))
    assert rows == published.rows


@every_client
@every_codec
def test_small_fetches(
    name: str, codec: str, shelf: Shelf, datacenter: Datacenter, real_clients: RealClients
) -> None:
    published = shelf.take(name, codec)
    rows = real_clients[name].read(
        datacenter.bootstrap, Read(published.topic, COUNT, fetch_bytes=SMALL_FETCH_BYTES)
    )
    assert rows == published.rows


@every_client
@every_codec
def test_seeks_into_a_batch(
    name: str, codec: str, shelf: Shelf, datacenter: Datacenter, real_clients: RealClients
) -> None:
    published = shelf.take(name, codec)
    starts = published.batch_starts()
    here, following = starts[len(starts) // 2], starts[len(starts) // 2 + 1]
    rows = published.rows
    inside, last = rows[(here + following) // 2].offset, rows[following - 1].offset
    places = {
        rows[here].offset: here,
        inside: (here + following) // 2,
        last: following - 1,
        # What a client commits when it has read the whole batch, and any address of the batch's bytes.
        last + 1: following,
        rows[following].offset - 1: following,
    }
    for offset, first in places.items():
        got = real_clients[name].read(datacenter.bootstrap, Read(published.topic, PIECE, offset=offset))
        assert got == rows[first : first + PIECE], f"read from {offset}"


@every_client
@every_codec
def test_reads_from_a_time(
    name: str, codec: str, shelf: Shelf, datacenter: Datacenter, real_clients: RealClients
) -> None:
    published = shelf.take(name, codec)
    times = [row.timestamp_ms for row in published.rows]
    for place in (0, COUNT // 3, COUNT - PIECE):
        moment = times[place] if place == 0 else times[place - 1] + 1
        first = bisect.bisect_left(times, moment)
        piece = published.rows[first : first + PIECE]
        got = real_clients[name].read(
            datacenter.bootstrap, Read(published.topic, len(piece), timestamp_ms=moment)
        )
        assert got == piece, f"read from the time {moment}"
