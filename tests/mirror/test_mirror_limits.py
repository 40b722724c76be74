"""A target whose limits are smaller than what the source holds."""

from __future__ import annotations

from fix_audit import StartMirror, wait_for
from fix_broker import StartCluster
from fix_copies import assert_same
from headrace.client import Admin, Producer


def test_a_batch_that_is_larger_than_the_targets_limit_is_copied(
    broker_cluster: StartCluster, start_mirror: StartMirror
) -> None:
    east, analysis = broker_cluster(datacenter="east"), broker_cluster(datacenter="analysis")
    with Admin(east.bootstrap) as admin:
        admin.create_topic("large", 1, config={"max.message.bytes": "4000000"})
    with Producer(east.bootstrap, max_request_size_bytes=4_000_000) as producer:
        producer.send("large", b"x" * 2_000_000).result(30)
        producer.send("large", b"y").result(30)
    mirror = start_mirror(east, analysis)
    wait_for(lambda: len(mirror.partitions()) == 1, mirror.output)
    assert_same(mirror, "large", 0)


def test_requests_fit_into_a_small_limit_of_the_target(
    broker_cluster: StartCluster, start_mirror: StartMirror
) -> None:
    """Each batch fits, and the mirror's requests of 8 MiB did not: nothing was ever copied."""
    east = broker_cluster(datacenter="east")
    analysis = broker_cluster(1, {"socket.request.max.bytes": "1500000"}, datacenter="analysis")
    with Admin(east.bootstrap) as admin:
        admin.create_topic("many", 1)
    with Producer(east.bootstrap) as producer:
        for _ in range(8):
            producer.send("many", b"x" * 800_000).result(30)
    mirror = start_mirror(east, analysis)
    wait_for(lambda: len(mirror.partitions()) == 1, mirror.output)
    assert_same(mirror, "many", 0)
    with Admin(east.bootstrap) as admin:
        admin.create_topic("larger", 1, config={"max.message.bytes": "4000000"})
    with Producer(east.bootstrap, max_request_size_bytes=4_000_000) as producer:
        producer.send("larger", b"x" * 2_000_000).result(30)
    problem = "socket.request.max.bytes may be too small"
    wait_for(
        lambda: any(problem in str(each["reason"]) for each in mirror.partitions().values()), mirror.output
    )
