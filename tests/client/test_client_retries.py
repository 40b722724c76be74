"""The producer against brokers that lose, refuse and forget: retries, idempotence, its observer."""

from __future__ import annotations

import time

import pytest

from fix_client import MakeProducer, Recorder, StartCluster, values
from fix_fake_broker import LOSE_ANSWER, LOSE_REQUEST, Fault, refuse
from headrace.client import BatchIdentity, BatchObserver, Producer
from headrace.client.errors import (
    BrokerError,
    ClientError,
    DeliveryTimeoutError,
)
from headrace.client.faults import BatchFate, BatchInterceptor, DropPlan
from headrace.wire.apis import ApiKey
from headrace.wire.errors import ErrorCode

WAIT_S = 60


def test_a_lost_response_does_not_repeat_records(
    fake_cluster: StartCluster, fast_producer: MakeProducer
) -> None:
    cluster = fake_cluster()
    watcher = Recorder()
    sender = fast_producer(cluster, observer=watcher)
    cluster.next(ApiKey.PRODUCE, LOSE_ANSWER, LOSE_REQUEST, LOSE_ANSWER)
    offsets = [sender.send("t", b"%d" % i).result(WAIT_S).offset for i in range(3)]
    assert values(cluster.log()) == [b"0", b"1", b"2"]
    assert offsets == [record.offset for record in cluster.log().records()]
    assert len(watcher.of("closed")) == len(watcher.of("delivered")) == 3
    assert watcher.of("renumbered") == watcher.of("failed") == []


def test_a_retry_in_the_middle_of_five_in_flight_keeps_the_order(
    fake_cluster: StartCluster, fast_producer: MakeProducer
) -> None:
    cluster = fake_cluster()
    sender = fast_producer(cluster, batch_size_bytes=200, max_request_size_bytes=5000)
    sender.send("t", b"first").result(WAIT_S)
    cluster.next(ApiKey.PRODUCE, Fault(), refuse(ErrorCode.NOT_ENOUGH_REPLICAS), Fault(), LOSE_ANSWER)
    for i in range(60):
        sender.send("t", b"%03d" % i + b"x" * 50)
    sender.flush(WAIT_S)
    assert [value[:3] for value in values(cluster.log())[1:] if value] == [b"%03d" % i for i in range(60)]
    assert {header.producer_epoch for header in cluster.log().headers()} == {0}


@pytest.mark.parametrize("code", [ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.LEADER_NOT_AVAILABLE])
def test_a_leader_that_moves_is_followed(
    fake_cluster: StartCluster, fast_producer: MakeProducer, code: ErrorCode
) -> None:
    cluster = fake_cluster(brokers=2)
    sender = fast_producer(cluster)
    sender.send("t", b"1").result(WAIT_S)
    with cluster.lock:
        cluster.leaders["t", 0] = 2
    cluster.next(ApiKey.PRODUCE, refuse(code))
    sender.send("t", b"2").result(WAIT_S)
    assert values(cluster.log()) == [b"1", b"2"]
    assert [broker for broker, r in cluster.requests if r.api_key == ApiKey.PRODUCE][-1] == 2


def test_a_broker_that_restarts_is_found_again(
    fake_cluster: StartCluster, fast_producer: MakeProducer
) -> None:
    cluster = fake_cluster()
    sender = fast_producer(cluster)
    sender.send("t", b"1").result(WAIT_S)
    cluster.brokers[0].stop()
    future = sender.send("t", b"2")
    time.sleep(0.1)
    assert not future.done()
    cluster.brokers[0].start()
    future.result(WAIT_S)
    assert values(cluster.log()) == [b"1", b"2"]


def test_a_permanently_refused_batch_fails_and_later_ones_are_renumbered(
    fake_cluster: StartCluster, fast_producer: MakeProducer
) -> None:
    cluster = fake_cluster()
    watcher = Recorder()
    sender = fast_producer(cluster, observer=watcher, linger_ms=0)
    sender.send("t", b"1").result(WAIT_S)
    cluster.next(ApiKey.PRODUCE, Fault(code=ErrorCode.POLICY_VIOLATION, appends=False, delay_s=0.1))
    bad = sender.send("t", b"2")
    time.sleep(0.03)
    good = sender.send("t", b"3")
    with pytest.raises(BrokerError, match="POLICY_VIOLATION") as caught:
        bad.result(WAIT_S)
    assert caught.value.code is ErrorCode.POLICY_VIOLATION
    good.result(WAIT_S)
    assert values(cluster.log()) == [b"1", b"3"]
    [(old, new)] = watcher.of("renumbered")
    assert (old.producer_epoch, old.base_sequence) == (0, 2)
    assert (new.producer_epoch, new.base_sequence) == (1, 0)
    assert [identity.base_sequence for identity, _ in watcher.of("failed")] == [1]
    assert watcher.of("delivered")[-1][0] == new
    assert [(h.producer_epoch, h.base_sequence) for h in cluster.log().headers()] == [(0, 0), (1, 0)]


@pytest.mark.parametrize("code", [ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.UNKNOWN_PRODUCER_ID])
def test_a_broker_that_forgot_the_producer_gets_a_new_epoch(
    fake_cluster: StartCluster, fast_producer: MakeProducer, code: ErrorCode
) -> None:
    cluster = fake_cluster()
    watcher = Recorder()
    sender = fast_producer(cluster, observer=watcher)
    sender.send("t", b"1").result(WAIT_S)
    cluster.next(ApiKey.PRODUCE, refuse(code))
    sender.send("t", b"2").result(WAIT_S)
    assert [(h.producer_epoch, h.base_sequence) for h in cluster.log().headers()] == [(0, 0), (1, 0)]
    assert values(cluster.log()) == [b"1", b"2"]
    assert len(watcher.of("renumbered")) == 1


def test_a_fenced_producer_id_is_replaced(fake_cluster: StartCluster, fast_producer: MakeProducer) -> None:
    cluster = fake_cluster()
    sender = fast_producer(cluster)
    sender.send("t", b"1").result(WAIT_S)
    cluster.next(ApiKey.PRODUCE, refuse(ErrorCode.INVALID_PRODUCER_EPOCH))
    sender.send("t", b"2").result(WAIT_S)
    assert [h.producer_id for h in cluster.log().headers()] == [1001, 1002]
    assert values(cluster.log()) == [b"1", b"2"]


def test_used_up_epochs_end_in_a_new_producer_id(
    fake_cluster: StartCluster, fast_producer: MakeProducer
) -> None:
    cluster = fake_cluster()
    cluster.first_epoch = 32_767
    sender = fast_producer(cluster)
    sender.send("t", b"1").result(WAIT_S)
    cluster.next(ApiKey.PRODUCE, refuse(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER))
    sender.send("t", b"2").result(WAIT_S)
    assert [h.producer_id for h in cluster.log().headers()] == [1001, 1002]


def test_a_duplicate_is_a_success(fake_cluster: StartCluster, fast_producer: MakeProducer) -> None:
    cluster = fake_cluster()
    sender = fast_producer(cluster)
    cluster.next(ApiKey.PRODUCE, Fault(code=ErrorCode.DUPLICATE_SEQUENCE_NUMBER))
    assert sender.send("t", b"1").result(WAIT_S).offset == -1
    assert values(cluster.log()) == [b"1"]


def test_without_idempotence_nothing_is_numbered(
    fake_cluster: StartCluster, fast_producer: MakeProducer
) -> None:
    cluster = fake_cluster()
    watcher = Recorder()
    sender = fast_producer(cluster, acks=1, observer=watcher)
    cluster.next(ApiKey.PRODUCE, LOSE_REQUEST)
    sender.send("t", b"1").result(WAIT_S)
    assert cluster.requests_of(ApiKey.INIT_PRODUCER_ID) == []
    assert cluster.requests_of(ApiKey.PRODUCE)[0].body.acks == 1
    assert cluster.log().headers()[0].producer_id == -1
    assert watcher.of("closed")[0][0].base_sequence == -1


def test_a_delivery_timeout_names_its_cause(fake_cluster: StartCluster, fast_producer: MakeProducer) -> None:
    cluster = fake_cluster()
    watcher = Recorder()
    sender = fast_producer(cluster, delivery_timeout_ms=300, request_timeout_ms=100, observer=watcher)
    sender.send("t", b"1").result(WAIT_S)
    cluster.next(ApiKey.PRODUCE, *[refuse(ErrorCode.NOT_ENOUGH_REPLICAS)] * 500)
    with pytest.raises(DeliveryTimeoutError, match="NOT_ENOUGH_REPLICAS") as caught:
        sender.send("t", b"2").result(WAIT_S)
    assert not caught.value.maybe_appended
    with cluster.lock:
        cluster.script.clear()
    sender.send("t", b"3").result(WAIT_S)
    assert values(cluster.log()) == [b"1", b"3"]
    assert [error for _, error in watcher.of("failed")] == [caught.value]


def test_a_timeout_after_lost_responses_sets_maybe_appended(
    fake_cluster: StartCluster, fast_producer: MakeProducer
) -> None:
    cluster = fake_cluster()
    sender = fast_producer(cluster, delivery_timeout_ms=300, request_timeout_ms=100)
    sender.send("t", b"1").result(WAIT_S)
    cluster.next(ApiKey.PRODUCE, *[LOSE_ANSWER] * 500)
    with pytest.raises(DeliveryTimeoutError) as caught:
        sender.send("t", b"2").result(WAIT_S)
    assert caught.value.maybe_appended
    with cluster.lock:
        cluster.script.clear()
    sender.send("t", b"3").result(WAIT_S)
    assert values(cluster.log()) == [b"1", b"2", b"3"]


@pytest.mark.parametrize("code", [ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.KAFKA_STORAGE_ERROR])
def test_a_leader_that_ends_may_have_appended_what_it_refuses(
    fake_cluster: StartCluster, fast_producer: MakeProducer, code: ErrorCode
) -> None:
    """It answers so when followers have copied the batch already. Another number would store it again."""
    cluster = fake_cluster()
    sender = fast_producer(cluster, linger_ms=0)
    sender.send("t", b"1").result(WAIT_S)
    cluster.next(
        ApiKey.PRODUCE,
        Fault(code=ErrorCode.POLICY_VIOLATION, delay_s=0.2),  # appended nevertheless
        Fault(code=code, delay_s=0.2),
    )
    bad = sender.send("t", b"2")
    time.sleep(0.03)
    good = sender.send("t", b"3")
    with pytest.raises(BrokerError, match="POLICY_VIOLATION"):
        bad.result(WAIT_S)
    good.result(WAIT_S)
    assert values(cluster.log()) == [b"1", b"2", b"3"]


def test_a_broker_that_never_responds_times_out_and_is_retried(
    fake_cluster: StartCluster, fast_producer: MakeProducer
) -> None:
    cluster = fake_cluster()
    sender = fast_producer(cluster, request_timeout_ms=150)
    sender.send("t", b"1").result(WAIT_S)
    cluster.next(ApiKey.PRODUCE, Fault(delay_s=5))
    sender.send("t", b"2").result(WAIT_S)
    assert values(cluster.log()) == [b"1", b"2"]


def test_no_producer_id_yet(fake_cluster: StartCluster, fast_producer: MakeProducer) -> None:
    cluster = fake_cluster()
    cluster.next(ApiKey.INIT_PRODUCER_ID, refuse(ErrorCode.COORDINATOR_NOT_AVAILABLE), LOSE_REQUEST)
    sender = fast_producer(cluster)
    sender.send("t", b"x").result(WAIT_S)
    assert len(cluster.requests_of(ApiKey.INIT_PRODUCER_ID)) == 3


def test_no_producer_id_ever(fake_cluster: StartCluster, fast_producer: MakeProducer) -> None:
    cluster = fake_cluster()
    cluster.next(ApiKey.INIT_PRODUCER_ID, refuse(ErrorCode.CLUSTER_AUTHORIZATION_FAILED))
    sender = fast_producer(cluster)
    with pytest.raises(BrokerError, match="CLUSTER_AUTHORIZATION_FAILED"):
        sender.send("t", b"x").result(WAIT_S)
    with pytest.raises(BrokerError, match="CLUSTER_AUTHORIZATION_FAILED"):
        sender.send("t", b"x")


def test_garbage_in_place_of_a_response_ends_only_the_connection(
    fake_cluster: StartCluster, fast_producer: MakeProducer
) -> None:
    cluster = fake_cluster()
    sender = fast_producer(cluster)
    sender.send("t", b"1").result(WAIT_S)
    cluster.next(ApiKey.PRODUCE, Fault(raw=b"\x00\x00\x00\x08garbage!"), Fault(raw=b"HTTP/1.1 400"))
    sender.send("t", b"2").result(WAIT_S)
    assert values(cluster.log()) == [b"1", b"2"]


def test_identities_are_those_in_the_log(fake_cluster: StartCluster, fast_producer: MakeProducer) -> None:
    cluster = fake_cluster(partitions=3)
    watcher = Recorder()
    sender = fast_producer(cluster, observer=watcher, batch_size_bytes=500)
    for i in range(200):
        sender.send("t", b"x" * 50, key=b"%d" % i, timestamp_ms=1000 + i)
    sender.flush(WAIT_S)
    in_logs = {
        (
            p,
            h.producer_id,
            h.producer_epoch,
            h.base_sequence,
            h.record_count,
            h.base_timestamp_ms,
            h.max_timestamp_ms,
        )
        for p in range(3)
        for h in cluster.log(p).headers()
    }
    assert {identity[1:8] for (identity,) in watcher.of("closed")} == in_logs
    assert {identity[1:8] for identity, _ in watcher.of("delivered")} == in_logs
    offsets = {(i.partition, offset) for i, offset in watcher.of("delivered")}
    assert offsets == {(p, h.base_offset) for p in range(3) for h in cluster.log(p).headers()}


def test_identities_are_announced_before_the_batch_is_sent(
    fake_cluster: StartCluster, fast_producer: MakeProducer
) -> None:
    cluster = fake_cluster()
    requests_seen = []

    class Watch(BatchObserver):
        def batch_closed(self, identity: BatchIdentity) -> None:
            requests_seen.append(len(cluster.requests_of(ApiKey.PRODUCE)))

    fast_producer(cluster, observer=Watch()).send("t", b"1").result(WAIT_S)
    assert requests_seen == [0]


@pytest.mark.parametrize(("count", "after", "linger_ms"), [(7, 0, 50), (7, 25, 50), (1, 3, 0), (60, 10, 0)])
def test_a_drop_plan_drops_exactly_its_count(
    fake_cluster: StartCluster, fast_producer: MakeProducer, count: int, after: int, linger_ms: float
) -> None:
    cluster = fake_cluster(partitions=2)
    plan = DropPlan("t", count, after)
    watcher = Recorder()
    sender = fast_producer(
        cluster, interceptor=plan, observer=watcher, linger_ms=linger_ms, batch_size_bytes=600
    )
    futures = [sender.send("t", b"%d" % i + b"x" * 40, key=b"%d" % (i % 9)) for i in range(300)]
    futures += [sender.send("other", b"x") for _ in range(20)]
    sender.flush(WAIT_S)
    stored = values(cluster.log(0)) + values(cluster.log(1))
    assert len(stored) == 300 - count
    assert plan.is_done
    assert sum(identity.record_count for identity in plan.dropped) == count
    assert all(future.exception() is None for future in futures)
    closed = [identity for (identity,) in watcher.of("closed") if identity.topic == "t"]
    assert sum(identity.record_count for identity in closed) == 300
    # Batches after a loss continue under another epoch: no log holds the lost numbers, all others are whole.
    delivered = [identity for identity, _ in watcher.of("delivered") if identity.topic == "t"]
    assert not set(plan.dropped) & set(delivered)
    assert sum(identity.record_count for identity in delivered) == 300 - count


def test_an_interceptor_that_sends_everything_changes_nothing(
    fake_cluster: StartCluster, fast_producer: MakeProducer
) -> None:
    cluster = fake_cluster()
    seen = []

    class Look(BatchInterceptor):
        def decide(self, identity: BatchIdentity, record_limit: int | None) -> BatchFate:
            seen.append((identity.record_count, record_limit))
            return BatchFate.SEND

    fast_producer(cluster, interceptor=Look()).send("t", b"x").result(WAIT_S)
    assert seen == [(1, None)]


def test_a_failed_sender_thread_fails_pending_and_later_sends(
    fake_cluster: StartCluster, fast_producer: MakeProducer, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(BatchInterceptor):
        def decide(self, identity: BatchIdentity, record_limit: int | None) -> BatchFate:
            raise RuntimeError("a bug")

    sender = fast_producer(fake_cluster(), interceptor=Broken())
    with pytest.raises(ClientError, match=r"sender thread failed.*a bug"):
        sender.send("t", b"1").result(WAIT_S)
    with pytest.raises(ClientError, match="sender thread failed"):
        sender.send("t", b"2")
    assert "the sender thread failed" in caplog.text


def test_a_broker_that_does_not_answer_keeps_no_producer_from_an_id(fake_cluster: StartCluster) -> None:
    cluster = fake_cluster(brokers=2)
    silent, leader = cluster.brokers
    cluster.leaders["t", 0] = leader.broker_id
    cluster.next(ApiKey.INIT_PRODUCER_ID, Fault(delay_s=60))
    with Producer(f"{silent.host}:{silent.port}", linger_ms=1) as sender:
        sender.send("t", b"v").result(timeout=10)
    assert len(cluster.requests_of(ApiKey.INIT_PRODUCER_ID)) == 2
