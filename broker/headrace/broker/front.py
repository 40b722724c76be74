"""The front listener: behind a TCP balancer, the whole cluster looks like one virtual node.

A producer that knows only the balancer's address may be connected to any broker; that broker passes each
batch on to its partition's leader, over one ordered connection a leader, so keys keep their order. Consumers
connect to brokers directly: here they are told so.
"""

from __future__ import annotations

from typing import Any, Final

from headrace.broker.core import Connection
from headrace.broker.handlers import api_versions, cluster, fetch, metadata, produce, produce_plain
from headrace.broker.handlers.init_producer_id import ProducerIds
from headrace.broker.handlers.produce import Passing, ProduceJob
from headrace.broker.peers import ANSWER_WAIT_MS, Address, Lost, Peers
from headrace.broker.promise import Promise
from headrace.broker.service import Api, BrokerService
from headrace.broker.state import BrokerState
from headrace.wire import produce as produce_wire
from headrace.wire.apis import ApiKey
from headrace.wire.errors import ErrorCode, WireError
from headrace.wire.messages import Request, decode_request
from headrace.wire.primitives import NO_UUID
from headrace.wire.produce import ProducePartition, ProduceRequest, ProduceTopic

VIRTUAL_NODE_ID: Final = 1_000_000_000  # the same behind every broker's front listener; no broker has it
PASS_VERSION: Final = 9
CLIENT_ID: Final = "headrace-front"
# A leader whose disk stalls must say so before the link to it is given up, with all that is in flight there.
PASSED_TIMEOUT_MAX_MS: Final = ANSWER_WAIT_MS - 5_000

# What producers are told when a leader could not be asked, and when it may have stored what it was sent. All
# clients try again after these two; librdkafka takes NETWORK_EXCEPTION in an answer for final.
NOT_THERE: Final = ErrorCode.LEADER_NOT_AVAILABLE
FATE_UNKNOWN: Final = ErrorCode.REQUEST_TIMED_OUT

Tree = dict[str, Any]


class FrontService(BrokerService):
    """Serves producers. `advertised` is the balancer's address, as clients are to see it."""

    def __init__(
        self, state: BrokerState, producer_ids: ProducerIds, advertised: Address, peers: Peers
    ) -> None:
        super().__init__(state, producer_ids)
        self._advertised = advertised
        self._peers = peers
        self._apis = {
            ApiKey.METADATA: Api(0, 13, self._metadata_of_one_node),
            ApiKey.FIND_COORDINATOR: Api(0, 6, self._find_coordinator),
            ApiKey.API_VERSIONS: Api(0, 4, lambda _state, _request: api_versions.answer(self.spoken())),
            ApiKey.INIT_PRODUCER_ID: Api(0, 5, lambda _state, request: producer_ids.handle(request)),
            ApiKey.DESCRIBE_CLUSTER: Api(0, 2, self._describe_cluster),
        }

    def handle(self, connection: Connection, frame: memoryview, *, owned: bool) -> None:
        """Serve one request. Raises `WireError` for what must end the connection."""
        api_key = int.from_bytes(frame[:2], "big")
        if api_key == ApiKey.PRODUCE:
            version, correlation_id = (
                int.from_bytes(frame[2:4], "big"),
                int.from_bytes(frame[4:8], "big", signed=True),
            )
            state = self._state
            if not produce_plain.serve(state, connection, frame, version, correlation_id, owned=owned):
                request = decode_request(frame)
                produce.handle(state, connection, request, owned=owned, pass_on=self._pass_on)
                produce_plain.learn(state, connection, frame, request)
        elif api_key == ApiKey.FETCH:
            fetch.refuse(connection, decode_request(frame), ErrorCode.INVALID_REQUEST)
        else:
            super().handle(connection, frame, owned=owned)

    # one virtual node

    def _node(self) -> Tree:
        host, port = self._advertised
        return {"host": host, "port": port, "rack": self._state.datacenter}

    def _metadata_of_one_node(self, state: BrokerState, request: Request) -> Tree | Promise[Tree]:
        answer = metadata.handle(state, request)
        if not isinstance(answer, Promise):
            return self._as_one_node(answer)
        promise: Promise[Tree] = Promise()
        answer.then(lambda tree: promise.resolve(self._as_one_node(tree)))
        return promise

    def _as_one_node(self, tree: Tree) -> Tree:
        for topic in tree["topics"]:
            for partition in topic["partitions"]:
                if partition["error_code"] is ErrorCode.NONE:
                    partition["leader_id"] = VIRTUAL_NODE_ID
                # Epochs are the real leaders': through the balancer no client can act on them.
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

    # passing on

    def _pass_on(self, job: ProduceJob, body: ProduceRequest, passings: list[Passing]) -> None:
        """Send each leader its partitions of a request, in one request of ours."""
        by_leader: dict[int, list[Passing]] = {}
        for passing in passings:
            by_leader.setdefault(passing.leader, []).append(passing)
        for leader, theirs in by_leader.items():
            self._pass_to(leader, job, body, theirs)

    def _pass_to(self, leader: int, job: ProduceJob, body: ProduceRequest, passings: list[Passing]) -> None:
        broker = self._state.view.brokers.get(leader)
        if broker is None:
            _settle_all(job, passings, NOT_THERE, f"broker {leader} is not alive")
            return
        topics = [
            ProduceTopic(each.topic, NO_UUID, [ProducePartition(each.part.partition, each.part.records)])
            for each in passings
        ]
        request = ProduceRequest(None, body.acks, min(body.timeout_ms, PASSED_TIMEOUT_MAX_MS), topics)
        frame = produce_wire.encode_request(
            request, version=PASS_VERSION, correlation_id=0, client_id=CLIENT_ID
        )
        if body.acks == produce.ACKS_NONE:
            self._peers.ask((broker.host, broker.port), frame, None)
            return

        def done(answer: memoryview | Lost) -> None:
            if isinstance(answer, Lost):
                _settle_all(job, passings, FATE_UNKNOWN if answer.was_sent else NOT_THERE, answer.reason)
            else:
                _settle_by(job, passings, answer)

        if not self._peers.ask((broker.host, broker.port), frame, done):
            _settle_all(job, passings, NOT_THERE, f"broker {leader} does not keep up: try again")


def _settle_all(job: ProduceJob, passings: list[Passing], code: ErrorCode, message: str) -> None:
    for passing in passings:
        job.note(passing.place, passing.batch, code)
        job.settle(passing.place, code, -1, message)


def _settle_by(job: ProduceJob, passings: list[Passing], answer: memoryview) -> None:
    """The leader's results, in the order they were asked for."""
    try:
        _, response = produce_wire.decode_response(answer, version=PASS_VERSION)
        results = [result for topic in response.topics for result in topic.partitions]
        if len(results) != len(passings):
            raise WireError(f"{len(results)} results for {len(passings)} partitions")
    except WireError as error:
        _settle_all(job, passings, FATE_UNKNOWN, str(error))
        return
    for passing, result in zip(passings, results, strict=True):
        job.note(passing.place, passing.batch, ErrorCode(result.error_code))
        job.settle_as(passing.place, result)
