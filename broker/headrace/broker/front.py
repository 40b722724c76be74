"""The front listener: behind a TCP balancer, the whole cluster looks like one virtual node.

A producer that knows only the balancer's address may be connected to any broker; that broker passes each
batch on to its partition's leader, over one ordered connection per client and leader: so keys keep their
order, and clients do not wait for one another.
Consumers connect to brokers directly; the front refuses their requests.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import groupby
from typing import Any, Final

from headrace.broker.bodies import Tree
from headrace.broker.core import ClientConnection
from headrace.broker.handlers import cluster, fetch_results, metadata
from headrace.broker.handlers.init_producer_id import ProducerIds
from headrace.broker.network.links import RESPONSE_WAIT_MAX_S, Lost, Sender
from headrace.broker.network.peers import Peers
from headrace.broker.produce.job import ACKS_LEADER, ACKS_NONE, PassedPartition, ProduceJob
from headrace.broker.promise import Promise
from headrace.broker.service import Api, BrokerService
from headrace.broker.state import BrokerState
from headrace.wire.apis import ApiKey
from headrace.wire.errors import ErrorCode
from headrace.wire.messages import Request, decode_request
from headrace.wire.produce import ProduceRequest, ProduceResponse

VIRTUAL_NODE_ID: Final = 1_000_000_000  # the same behind every broker's front listener; no broker has it
# Below the link's timeout, so that a leader whose disk stalls responds before its link is closed.
PASSED_TIMEOUT_MAX_MS: Final = int(RESPONSE_WAIT_MAX_S * 1000) - 5_000

# The errors for batches that cannot have reached their leader, and for those that the leader may have stored.
# All clients retry after both. NETWORK_EXCEPTION is not used, because librdkafka does not retry it.
NOT_SENT: Final = ErrorCode.LEADER_NOT_AVAILABLE
FATE_UNKNOWN: Final = ErrorCode.REQUEST_TIMED_OUT


class FrontService(BrokerService):
    """Serves producers. `advertised` is the balancer's address, as clients are to see it."""

    def __init__(
        self, state: BrokerState, producer_ids: ProducerIds, advertised: tuple[str, int], peers: Peers
    ) -> None:
        super().__init__(state, producer_ids, pass_on=self._pass_partitions_on)
        self._advertised = advertised
        self._peers = peers
        own = (ApiKey.API_VERSIONS, ApiKey.INIT_PRODUCER_ID, ApiKey.SASL_HANDSHAKE)
        self._apis = {key: api for key, api in self._apis.items() if key in own} | {
            ApiKey.METADATA: Api(0, 13, self._metadata_of_virtual_node),
            ApiKey.FIND_COORDINATOR: Api(0, 6, self._find_coordinator),
            ApiKey.DESCRIBE_CLUSTER: Api(0, 2, self._describe_cluster),
        }

    def _fetch(
        self, connection: ClientConnection, frame: memoryview, version: int, correlation_id: int
    ) -> None:
        connection.turn_left -= 1
        fetch_results.refuse(connection, decode_request(frame), ErrorCode.INVALID_REQUEST)

    # --- one virtual node ---

    def _node(self) -> Tree:
        host, port = self._advertised
        return {"host": host, "port": port, "rack": self._state.datacenter}

    def _metadata_of_virtual_node(
        self, state: BrokerState, request: Request
    ) -> Tree | Callable[[], Tree] | Promise[Any]:
        found = metadata.handle(state, request)
        if not isinstance(found, Promise):
            return self._of_virtual_node(found)
        promise: Promise[Any] = Promise()
        found.then(lambda made: promise.resolve(self._of_virtual_node(made)))
        return promise

    def _of_virtual_node(self, found: Tree | Callable[[], Tree]) -> Tree | Callable[[], Tree]:
        if callable(found):
            return lambda: self._as_virtual_node(found())
        return self._as_virtual_node(found)

    def _as_virtual_node(self, tree: Tree) -> Tree:
        for topic in tree["topics"]:
            for partition in topic["partitions"]:
                if partition["error_code"] is ErrorCode.NONE:
                    partition["leader_id"] = VIRTUAL_NODE_ID
                # Leader epochs are hidden: clients behind the balancer cannot use them.
                partition["leader_epoch"] = 0
                partition["replica_nodes"] = partition["isr_nodes"] = (VIRTUAL_NODE_ID,)
                partition["offline_replicas"] = ()
        return tree | {
            "brokers": [{"node_id": VIRTUAL_NODE_ID, **self._node()}],
            "controller_id": VIRTUAL_NODE_ID,
        }

    def _describe_cluster(self, state: BrokerState, request: Request) -> Tree:
        return cluster.describe(state, request) | {
            "controller_id": VIRTUAL_NODE_ID,
            "brokers": [{"broker_id": VIRTUAL_NODE_ID, "is_fenced": False, **self._node()}],
        }

    @staticmethod
    def _find_coordinator(state: BrokerState, request: Request) -> Tree:
        return cluster.no_coordinator(
            request, "consumers connect to the brokers directly, not through the balancer"
        )

    # --- passing on ---

    def _pass_partitions_on(
        self, job: ProduceJob, body: ProduceRequest, passed: list[PassedPartition], *, may_keep: bool
    ) -> None:
        """Sends each leader its partitions of a request, in one request of ours."""
        by_leader: dict[int, list[PassedPartition]] = {}
        for partition in passed:
            by_leader.setdefault(partition.leader, []).append(partition)
        for leader, its_partitions in by_leader.items():
            self._pass_to(leader, job, body, its_partitions, may_keep=may_keep)

    def _pass_to(
        self,
        leader: int,
        job: ProduceJob,
        body: ProduceRequest,
        passed: list[PassedPartition],
        *,
        may_keep: bool,
    ) -> None:
        broker = self._state.view.brokers.get(leader)
        if broker is None:
            _refuse_all(job, passed, NOT_SENT, f"broker {leader} is not alive")
            return
        # As the client has named them: one that it names by its id is none that is made again under its
        # name meanwhile. Each is named once: requests have a bound of topics and partitions.
        topics = [
            first.topic._replace(partitions=[first.part, *(each.part for each in others)])
            for _, (first, *others) in groupby(passed, key=lambda each: id(each.topic))
        ]
        # A leader ends the connection of a refused batch with acks=0. Here that is the link of all producers:
        # so their batches are passed on with acks=1, and a refusal ends the connection of its sender alone.
        acks = ACKS_LEADER if body.acks == ACKS_NONE else body.acks
        request = ProduceRequest(None, acks, min(body.timeout_ms, PASSED_TIMEOUT_MAX_MS), topics)

        def done(response: ProduceResponse | Lost) -> None:
            if isinstance(response, Lost):
                if body.acks == ACKS_NONE:
                    return
                code = FATE_UNKNOWN if response.was_sent else NOT_SENT
                _refuse_all(job, passed, code, response.problem)
            else:
                _complete_all(job, passed, response)

        sender = self._sender_of(job.connection)
        if not self._peers.send(broker.host, broker.port, request, done, sender, may_keep=may_keep):
            _refuse_all(job, passed, NOT_SENT, f"broker {leader} has too many requests in flight; retry")
        if job.connection.closed:  # meanwhile: its records were opened on a worker
            sender.close()

    def _sender_of(self, connection: ClientConnection) -> Sender:
        sender = connection.links
        if not isinstance(sender, Sender):
            sender = self._peers.sender()
            if not connection.closed:
                connection.links = sender
        return sender


def _refuse_all(job: ProduceJob, passed: list[PassedPartition], code: ErrorCode, message: str) -> None:
    for partition in passed:
        job.complete(partition.place, code, -1, message)


def _complete_all(job: ProduceJob, passed: list[PassedPartition], response: ProduceResponse) -> None:
    """Takes over the leader's results, which are in the order of our request."""
    results = [result for topic in response.topics for result in topic.partitions]
    if len(results) != len(passed):
        problem = f"{len(results)} results for {len(passed)} partitions"
        _refuse_all(job, passed, FATE_UNKNOWN, problem)
        return
    for partition, result in zip(passed, results, strict=True):
        job.complete_with(partition.place, result._replace(current_leader=None))
