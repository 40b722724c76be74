"""Algorithm 1 and placement as pure functions: every partition covered once, even shares, the same result for
every member.
"""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.coordination.assignment import StreamId, assign, assign_streams
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


@given(
    st.sets(st.integers(0, 20), min_size=1, max_size=6), st.integers(1, 30), st.integers(0, 999), st.data()
)
def test_placement_is_balanced_distinct_and_repeatable(
    brokers: set[int], count: int, seed: int, data: st.DataObject
) -> None:
    factor = data.draw(st.integers(1, len(brokers)))
    placed = place_partitions(list(brokers), count, factor, seed)
    assert sorted(placed) == list(range(count))
    assert all(len(set(replicas)) == factor and set(replicas) <= brokers for replicas in placed.values())
    leaders = [replicas[0] for replicas in placed.values()]
    counts = [leaders.count(broker) for broker in brokers]
    assert max(counts) - min(counts) <= 1
    assert placed == place_partitions(sorted(brokers, reverse=True), count, factor, seed)
    more = place_partitions(list(brokers), 3, factor, seed, first=count)
    assert {**placed, **more} == place_partitions(list(brokers), count + 3, factor, seed)


def test_followers_of_one_leader_are_spread() -> None:
    placed = place_partitions([1, 2, 3, 4], 12, 2, seed=5)
    followers = {replicas[1] for replicas in placed.values() if replicas[0] == 1}
    assert followers == {2, 3, 4}


def test_too_few_brokers_are_counted_in_the_error() -> None:
    with pytest.raises(InvalidTopicError, match="replication factor 3 needs as many brokers; 2 are alive"):
        place_partitions([1, 2], 1, 3, seed=0)
    with pytest.raises(InvalidTopicError, match="at least 1"):
        place_partitions([1], 0, 1, seed=0)
