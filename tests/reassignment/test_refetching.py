"""A replica that is fetched again: away from its broker, deleted there, and back."""

from __future__ import annotations

import shutil
from collections.abc import Mapping

import pytest

from fix_audit import wait_for
from fix_broker import BrokerCluster, StartCluster
from fix_cli import command_runner
from headrace.client import Admin, Producer
from headrace.client.cluster import BrokerAddress
from headrace.client.replica_admin import ReplicaAdmin
from headrace.client.replicas import ReplicaSurvey
from headrace.reassignment import refetching
from headrace.reassignment.moving import ReassignmentError, UnfinishedError
from headrace.reassignment.refetching import CannotRefetchError, refetch

TOPIC = "refetched"
TIMEOUT_S = 60.0


@pytest.fixture(scope="module")
def cluster(module_clusters: StartCluster) -> BrokerCluster:
    """Two brokers, with a topic of two replicas and one of one."""
    cluster = module_clusters(count=2)
    with Admin(cluster.bootstrap) as admin, Producer(cluster.bootstrap, linger_ms=0) as producer:
        admin.create_topic(TOPIC, 1, 2)
        admin.create_topic("alone", 1, 1)
        admin.create_topic("alike", 2, 1)
        for number in range(20):
            producer.send(TOPIC, b"%d" % number, partition=0).result(30)
    return cluster


def stored(cluster: BrokerCluster, broker_id: int) -> bytes:
    folder = cluster[broker_id].data_dir / f"{TOPIC}-0"
    return b"".join(path.read_bytes() for path in sorted(folder.glob("*.log")))


@pytest.mark.parametrize("role", ["follower", "leader"])
def test_a_replica_is_fetched_again_from_one_that_is_in_sync(cluster: BrokerCluster, role: str) -> None:
    with Admin(cluster.bootstrap) as admin, ReplicaAdmin(cluster.bootstrap) as replicas:
        leader = admin.topic(TOPIC).partitions[0].leader
        bad, sound = (leader, 3 - leader) if role == "leader" else (3 - leader, leader)
        [file] = (cluster[bad].data_dir / f"{TOPIC}-0").glob("*.log")
        data = bytearray(file.read_bytes())
        data[70] ^= 1
        file.write_bytes(data)
        size_bytes = refetch(replicas, (TOPIC, 0), bad, timeout_s=TIMEOUT_S)
        assert size_bytes == len(data)
        part = admin.topic(TOPIC).partitions[0]
    assert sorted(part.replicas) == sorted(part.isr) == [1, 2]
    assert stored(cluster, bad) == stored(cluster, sound) != bytes(data)


def test_what_was_interrupted_is_continued(cluster: BrokerCluster) -> None:
    with Admin(cluster.bootstrap) as admin, ReplicaAdmin(cluster.bootstrap) as replicas:
        assert not replicas.reassign({(TOPIC, 0): [1]})
        wait_for(lambda: admin.topic(TOPIC).partitions[0].replicas == (1,))
        wait_for(lambda: not replicas.replicas().reassignments)
        refetch(replicas, (TOPIC, 0), 2, timeout_s=TIMEOUT_S)
        assert admin.topic(TOPIC).partitions[0].replicas == (1, 2)


def test_a_replica_that_is_the_only_one_stays(
    cluster: BrokerCluster, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with Admin(cluster.bootstrap) as admin, ReplicaAdmin(cluster.bootstrap) as replicas:
        [only] = admin.topic("alone").partitions[0].replicas
        with pytest.raises(CannotRefetchError, match="no other replica of alone-0"):
            refetch(replicas, ("alone", 0), only, timeout_s=TIMEOUT_S)
        [holder] = admin.topic("alike").partitions[0].replicas
        with pytest.raises(
            CannotRefetchError, match=f"has no replica of alike-0, which is on brokers {holder}"
        ):
            refetch(replicas, ("alike", 0), 3 - holder, timeout_s=TIMEOUT_S)
        with pytest.raises(CannotRefetchError, match="broker 9 does not answer"):
            refetch(replicas, ("alone", 0), 9, timeout_s=TIMEOUT_S)
        with pytest.raises(CannotRefetchError, match="there is no partition alone-7"):
            refetch(replicas, ("alone", 7), only, timeout_s=TIMEOUT_S)
    run = command_runner(monkeypatch, capsys)
    done = run("brokers", "refetch", only, "alone", 0, "-b", cluster.bootstrap)
    assert done.exit_code == 1 and "no other replica of alone-0" in done.err


def test_a_broker_that_dies_before_it_has_deleted_its_replica_is_waited_for(cluster: BrokerCluster) -> None:
    """It would come back with its old replica, and nothing would have been fetched again."""

    class Dying(ReplicaAdmin):
        asked = 0

        def replicas(self, *, known: Mapping[int, BrokerAddress] | None = None) -> ReplicaSurvey:
            self.asked += 1
            if self.asked == 2:
                cluster[2].kill()
            return super().replicas(known=known)

    with Admin(cluster.bootstrap) as admin, ReplicaAdmin(cluster.bootstrap) as replicas:
        assert not replicas.reassign({(TOPIC, 0): [1]})
        wait_for(lambda: admin.topic(TOPIC).partitions[0].replicas == (1,))
        wait_for(lambda: not replicas.replicas().reassignments)
        wait_for(lambda: not (cluster[2].data_dir / f"{TOPIC}-0").exists())
        with Dying(cluster.bootstrap) as dying, pytest.raises(UnfinishedError, match="still has its old"):
            refetch(dying, (TOPIC, 0), 2, timeout_s=1.0)
        assert admin.topic(TOPIC).partitions[0].replicas == (1,)
        cluster[2].start()
        wait_for(lambda: not replicas.replicas().silent)
        refetch(replicas, (TOPIC, 0), 2, timeout_s=TIMEOUT_S)
        assert admin.topic(TOPIC).partitions[0].replicas == (1, 2)


def test_files_that_a_broker_has_kept_are_not_taken_for_fetched_again(
    cluster: BrokerCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was down when its replica went elsewhere, and deletes nothing that was there before its start."""
    monkeypatch.setattr(refetching, "DELETED_WAIT_MAX_S", 0.0)
    with Admin(cluster.bootstrap) as admin, ReplicaAdmin(cluster.bootstrap) as replicas:
        assert sorted(admin.topic(TOPIC).partitions[0].isr) == [1, 2]
        cluster[2].kill()
        wait_for(lambda: admin.topic(TOPIC).partitions[0].isr == (1,))
        assert not replicas.reassign({(TOPIC, 0): [1]})
        wait_for(lambda: admin.topic(TOPIC).partitions[0].replicas == (1,))
        cluster[2].start()
        wait_for(lambda: not replicas.replicas().silent)
        with pytest.raises(ReassignmentError, match=f"keeps the files: remove the folder {TOPIC}-0 from"):
            refetch(replicas, (TOPIC, 0), 2, timeout_s=TIMEOUT_S)
        shutil.rmtree(cluster[2].data_dir / f"{TOPIC}-0")
        refetch(replicas, (TOPIC, 0), 2, timeout_s=TIMEOUT_S)
        assert admin.topic(TOPIC).partitions[0].replicas == (1, 2)
    assert stored(cluster, 2) == stored(cluster, 1)
