"""Three brokers, three replicas: what was acknowledged is on all that are in sync, byte for byte."""

from __future__ import annotations

import signal

from fix_replicas import ReplicatedCluster, batch
from headrace.wire import fetch
from headrace.wire.errors import ErrorCode


def test_acks_all_is_stored_on_every_replica_byte_for_byte(replicas: ReplicatedCluster) -> None:
    topic = replicas.topic(1, 2, 3)
    for number in range(20):
        replicas.produce(topic, f"record {number}")
        leader = replicas.on_disk(1, topic)
        assert replicas.on_disk(2, topic) == replicas.on_disk(3, topic) == leader, "before it was answered"
    assert replicas.read(topic) == leader
    assert replicas.answer(2, topic) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert set(replicas.state(topic).isr) == {1, 2, 3}


def test_long_batches_are_on_every_replica_too_and_another_leader_goes_on_behind_them(
    replicas: ReplicatedCluster,
) -> None:
    """Followers append them on a thread, past the page cache."""
    topic = replicas.topic(1, 2, 3)
    for leader in (1, 2, 3, 1):
        replicas.elect(topic, leader)
        for number in range(3):
            replicas.produce(topic, f"{leader}{number}" * (100_000 * (1 + number) + number))
            replicas.produce(topic, "short")
        whole = replicas.on_disk(leader, topic)
        assert all(replicas.on_disk(each, topic) == whole for each in (1, 2, 3)), "before it was answered"
    replicas.brokers[2].kill()
    replicas.produce(topic, "x" * 700_000)
    replicas.brokers[2].start()
    replicas.wait_in_sync(topic, 1, 2, 3)
    assert replicas.wait_until_equal(topic, 1, 2, 3) == replicas.read(topic)


def test_another_leader_goes_on_and_followers_agree_with_it(replicas: ReplicatedCluster) -> None:
    topic = replicas.topic(1, 2, 3)
    replicas.produce(topic, "in epoch 0")
    replicas.elect(topic, 2)
    replicas.produce(topic, "in epoch 1")
    replicas.elect(topic, 3)
    replicas.produce(topic, "in epoch 2")
    assert replicas.wait_until_equal(topic, 1, 2, 3) == replicas.read(topic)
    assert replicas.answer(1, topic) is ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_a_killed_follower_leaves_the_set_and_joins_again_when_it_has_caught_up(
    replicas: ReplicatedCluster,
) -> None:
    topic = replicas.topic(1, 2, 3)
    replicas.brokers[3].kill()
    replicas.produce(topic, "while broker 3 is dead")
    replicas.wait_in_sync(topic, 1, 2)
    replicas.brokers[3].start()
    replicas.wait_in_sync(topic, 1, 2, 3)
    replicas.produce(topic, "afterwards")
    assert replicas.wait_until_equal(topic, 1, 2, 3) == replicas.read(topic)


def test_a_follower_that_stands_still_does_not_hold_up_the_others_for_ever(
    replicas: ReplicatedCluster,
) -> None:
    topic = replicas.topic(1, 2, 3, min_insync_replicas="2")
    replicas.brokers[2].send_signal(signal.SIGSTOP)
    try:
        replicas.produce(topic, "while broker 2 stands still")
        replicas.wait_in_sync(topic, 1, 3)
    finally:
        replicas.brokers[2].send_signal(signal.SIGCONT)
    replicas.wait_in_sync(topic, 1, 2, 3)
    assert replicas.wait_until_equal(topic, 1, 2, 3) == replicas.read(topic)


def test_too_few_replicas_refuse_acks_all_before_anything_is_appended(replicas: ReplicatedCluster) -> None:
    topic = replicas.topic(1, 2, min_insync_replicas="2")
    visible = replicas.read(topic)
    replicas.brokers[2].kill()
    try:
        replicas.wait_in_sync(topic, 1)
        replicas.wait_for(
            "acks=all is refused",
            lambda: replicas.try_to_produce(topic, "refused").error_code == ErrorCode.NOT_ENOUGH_REPLICAS,
        )
        before = replicas.on_disk(1, topic)
        refused = replicas.try_to_produce(topic, "refused")
        assert refused.error_code == ErrorCode.NOT_ENOUGH_REPLICAS
        assert "only the replicas [1] are in sync" in (refused.error_message or "")
        assert replicas.on_disk(1, topic) == before
        replicas.produce(topic, "acks=1 goes on", acks=1)
        assert replicas.read(topic) == visible, "consumers see no further than the high watermark"
        behind = len(before) + 1
        assert replicas.answer(1, topic, behind) is ErrorCode.NONE, "written, and not visible: no error"
    finally:
        replicas.brokers[2].start()
    replicas.produce(topic, "both are back")
    assert replicas.wait_until_equal(topic, 1, 2) == replicas.read(topic)


def test_what_a_deposed_leader_alone_had_is_cut_off(replicas: ReplicatedCluster) -> None:
    """An unclean election, made by hand: the new leader has not what the old one has acknowledged."""
    topic = replicas.topic(1, 2)
    replicas.brokers[2].kill()
    replicas.wait_in_sync(topic, 1)
    replicas.produce(topic, "on broker 1 alone, as long")
    lost = replicas.on_disk(1, topic)
    replicas.brokers[1].kill()
    replicas.elect(topic, 2, in_sync=(2,))
    replicas.brokers[2].start()
    replicas.elect(topic, 2, in_sync=(2,))
    replicas.produce(topic, "on broker 2 alone, as long")
    replicas.produce(topic, "and more")
    replicas.brokers[1].start()
    replicas.wait_in_sync(topic, 1, 2)
    assert replicas.wait_until_equal(topic, 1, 2) == replicas.read(topic)
    assert replicas.read(topic)[: len(lost)] != lost
    assert "has other batches from address" in replicas.brokers[1].output()


def test_consumers_go_on_at_their_offsets_with_another_leader(replicas: ReplicatedCluster) -> None:
    topic = replicas.topic(2, 1, 3)
    seen = b""
    for epoch, leader in enumerate((2, 1, 3, 2)):
        if epoch:
            replicas.elect(topic, leader)
        replicas.produce(topic, f"in epoch {epoch}")
        with replicas.client(leader) as client:
            found = client.fetch(topic, 0, len(seen))
            while found.records:
                seen += bytes(found.records)
                found = client.fetch(topic, 0, len(seen))
            assert found.error_code == 0
            assert client.list_offset(topic, 0, -1)[0] == len(seen)
    assert seen == replicas.wait_until_equal(topic, 1, 2, 3)


def test_with_memory_alone_acks_all_waits_for_no_disk_of_a_follower(replicas: ReplicatedCluster) -> None:
    topic = replicas.topic(1, 2, 3, headrace_acks_all="replicated")
    for number in range(10):
        replicas.produce(topic, f"record {number}")
    assert replicas.wait_until_equal(topic, 1, 2, 3) == replicas.read(topic)


def test_a_fetch_of_a_broker_that_is_no_replica_is_refused(replicas: ReplicatedCluster) -> None:
    topic = replicas.topic(1, 2)

    def ask(replica: int, epoch: int, replica_epoch: int = -1) -> ErrorCode:
        part = fetch.FetchPartition(0, 0, 1 << 20, current_leader_epoch=epoch)
        topic_id = replicas.registry.get(topic).topic_id
        request = fetch.FetchRequest(
            0, 1, 1 << 20, [fetch.FetchTopic("", topic_id, [part])], replica, replica_epoch=replica_epoch
        )
        with replicas.client(1) as client:
            client.send(fetch.encode_request(request, version=15, correlation_id=1, client_id="raw"))
            _, response = fetch.decode_response(client.receive(), version=15)
        return ErrorCode(response.topics[0].partitions[0].error_code)

    assert ask(3, 0) is ErrorCode.UNKNOWN_LEADER_EPOCH
    assert ask(3, -1) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert ask(2, 0, replica_epoch=1) is ErrorCode.NOT_LEADER_OR_FOLLOWER, "an older self of broker 2"
    replicas.elect(topic, 1)
    replicas.wait_for("epoch 0 is over", lambda: ask(2, 0) is ErrorCode.FENCED_LEADER_EPOCH)
    assert ask(2, 9) is ErrorCode.UNKNOWN_LEADER_EPOCH


def test_a_large_backlog_is_fetched_in_pieces(replicas: ReplicatedCluster) -> None:
    topic = replicas.topic(1, 2)
    replicas.brokers[2].kill()
    replicas.wait_in_sync(topic, 1)
    with replicas.client(1) as client:
        for _ in range(20):
            assert client.produce(topic, 0, batch("large", 900_000)).error_code == 0
    replicas.brokers[2].start()
    replicas.wait_in_sync(topic, 1, 2)
    assert len(replicas.wait_until_equal(topic, 1, 2)) > 18_000_000


def test_a_damaged_batch_of_the_leader_stops_its_partition_alone(replicas: ReplicatedCluster) -> None:
    bad, good = replicas.topic(1, 2), replicas.topic(1, 2)
    replicas.brokers[2].kill()
    replicas.wait_in_sync(bad, 1)
    start = len(replicas.on_disk(1, bad))
    for topic in (bad, good):
        for text in ("before", "hit", "behind"):
            replicas.produce(topic, text)
    (file,) = (replicas.brokers[1].data_dir / f"{bad}-0").glob("*.log")
    whole = file.read_bytes()
    size = (len(whole) - start) // 3
    at = start + 2 * size - 3

    def write(value: int) -> None:
        with file.open("r+b") as opened:
            opened.seek(at)
            opened.write(bytes([value]))

    write(whole[at] ^ 1)
    replicas.brokers[2].start()
    replicas.wait_until_equal(good, 1, 2)
    replicas.wait_in_sync(good, 1, 2)
    sound = whole[: start + size]
    replicas.wait_for("what is sound is copied", lambda: replicas.on_disk(2, bad) == sound)
    replicas.wait_for("it is said", lambda: "is damaged" in replicas.brokers[2].output())
    assert replicas.on_disk(2, bad) == sound and replicas.state(bad).isr == (1,)
    write(whole[at])
    replicas.wait_in_sync(bad, 1, 2)
    assert replicas.wait_until_equal(bad, 1, 2) == whole
