"""Algorithm 1 and placement as pure functions: every partition covered once, even shares, the same result for
every member.
"""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.coordination.assignment import StreamId, assign, assign_streams
from headrace.coordination.brokers import BrokerRegistration
from headrace.coordination.errors import InvalidTopicError
from headrace.coordination.placement import place_partitions

NAMES = st.text("abc-01", min_size=1, max_size=4)


@given(st.sets(NAMES, min_size=1), st.sets(st.integers(0, 60)), st.randoms())
def test_every_partition_exactly_once_and_evenly(
    members: set[str], partitions: set[int], chance: object
) -> None:
    shares = assign(members, partitions)
    assert sorted(p for share in shares.values() for p in share) == sorted(partitions)
    sizes = [len(share) for share in shares.values()]
    assert max(sizes) - min(sizes) <= 1
    assert set(shares) == members
    assert all(share == sorted(share) for share in shares.values())


@given(st.lists(NAMES, min_size=1, unique=True), st.lists(st.integers(0, 60), unique=True), st.data())
def test_the_order_of_members_and_partitions_does_not_matter(
    members: list[str], partitions: list[int], data: st.DataObject
) -> None:
    other_members = data.draw(st.permutations(members))
    other_partitions = data.draw(st.permutations(partitions))
    assert assign(members, partitions) == assign(other_members, other_partitions)


def test_the_papers_example_and_the_remainder() -> None:
    assert assign(["c2", "c1"], [3, 1, 0, 2]) == {"c1": [0, 1], "c2": [2, 3]}
    assert assign(["c1", "c2", "c3"], range(5)) == {"c1": [0, 1], "c2": [2, 3], "c3": [4]}
    assert assign(["c1", "c2", "c3"], [7]) == {"c1": [7], "c2": [], "c3": []}
    assert assign([], [1, 2]) == {}


@settings(max_examples=60)
@given(
    st.dictionaries(NAMES, st.dictionaries(st.sampled_from(["t", "u", "v"]), st.integers(1, 4)), max_size=5),
    st.dictionaries(st.sampled_from(["t", "u", "v"]), st.sets(st.integers(0, 12))),
)
def test_streams_cover_each_wanted_topic_once(
    subscriptions: dict[str, dict[str, int]], partitions: dict[str, set[int]]
) -> None:
    shares = assign_streams(subscriptions, partitions)
    given_out = sorted(pair for share in shares.values() for pair in share)
    wanted_topics = {topic for wanted in subscriptions.values() for topic in wanted}
    assert given_out == sorted((t, p) for t in wanted_topics for p in partitions.get(t, ()))
    for stream_id, share in shares.items():
        assert all(stream_id.stream < subscriptions[stream_id.member][topic] for topic, _ in share)


def test_a_stream_without_work_is_listed() -> None:
    assert assign_streams({"m": {"t": 2}}, {"t": [0]}) == {StreamId("m", 0): [("t", 0)], StreamId("m", 1): []}
    assert str(StreamId("host-1", 3)) == "host-1-3"


def cluster(racks: dict[int, tuple[str, str]]) -> dict[int, BrokerRegistration]:
    """Brokers by id, each with its rack ("" for its host) and its host."""
    return {
        broker: BrokerRegistration(broker, host, 9092, "east", rack) for broker, (rack, host) in racks.items()
    }


def alike(*brokers: int) -> dict[int, BrokerRegistration]:
    return cluster(dict.fromkeys(brokers, ("", "127.0.0.1")))


@given(
    st.dictionaries(
        st.integers(0, 30),
        st.tuples(st.sampled_from(["r1", "r2", "r3"]), st.sampled_from("abcd")),
        min_size=1,
        max_size=9,
    ),
    st.integers(1, 40),
    st.integers(0, 99),
    st.data(),
)
def test_placement_is_balanced_distinct_and_repeatable(
    racks: dict[int, tuple[str, str]], count: int, seed: int, data: st.DataObject
) -> None:
    brokers = cluster({broker: (rack, rack + host) for broker, (rack, host) in racks.items()})
    factor = data.draw(st.integers(1, len(brokers)))
    placed = place_partitions(brokers, count, factor, seed)
    assert sorted(placed) == list(range(count))
    for replicas in placed.values():
        assert len(set(replicas)) == factor and set(replicas) <= set(brokers)
        assert len({brokers[each].rack for each in replicas}) == min(
            factor, len({each.rack for each in brokers.values()})
        ), "as many racks as there can be"
    leaders = [replicas[0] for replicas in placed.values()]
    assert max(map(leaders.count, brokers)) - min(map(leaders.count, brokers)) <= 1
    assert placed == place_partitions(dict(reversed(brokers.items())), count, factor, seed)
    more = place_partitions(brokers, 3, factor, seed, first=count)
    assert {**placed, **more} == place_partitions(brokers, count + 3, factor, seed)


def test_replicas_share_a_host_only_if_they_must() -> None:
    """Two racks of two hosts with two brokers each; by default a host is a rack."""
    hosts = {broker: f"h{broker // 2}" for broker in range(8)}
    for racks in (["", "", "", ""], ["a", "a", "b", "b"]):
        brokers = cluster({broker: (racks[broker // 2], host) for broker, host in hosts.items()})
        for factor in (2, 3, 4):
            for replicas in place_partitions(brokers, 40, factor, seed=3).values():
                assert len({hosts[each] for each in replicas}) == factor
        assert all(
            len({hosts[each] for each in replicas}) == 4
            for replicas in place_partitions(brokers, 40, 6, seed=3).values()
        )


def test_followers_are_spread_evenly_too() -> None:
    placed = place_partitions(alike(1, 2, 3, 4, 5), 50, 3, seed=7)
    followers = [broker for replicas in placed.values() for broker in replicas[1:]]
    counts = [followers.count(broker) for broker in (1, 2, 3, 4, 5)]
    assert max(counts) - min(counts) <= 2


def test_followers_of_one_broker_are_spread() -> None:
    placed = place_partitions(alike(1, 2, 3, 4), 24, 2, seed=5)
    followers = {replicas[1] for replicas in placed.values() if replicas[0] == 1}
    assert followers == {2, 3, 4}, "a dead broker's load must not fall on one other broker"


def test_placement_needs_enough_brokers() -> None:
    with pytest.raises(InvalidTopicError, match="needs as many brokers; 2 are alive"):
        place_partitions(alike(1, 2), 1, 3, seed=0)
    with pytest.raises(InvalidTopicError, match="must be at least 1"):
        place_partitions(alike(1), 0, 1, seed=0)
