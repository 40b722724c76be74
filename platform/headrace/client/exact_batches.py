"""Sending batches whose bytes are fixed: so often as it takes, and stored once.

`client.Producer` numbers batches itself. Here the caller numbers them, with a producer id of its own, and may
keep them on disk before they are sent: sent again by another process, they are the same batches, and brokers
store each sequence number of a producer once (KIP-98). Owns its connections.
"""

from __future__ import annotations

import time
from typing import Any, Final

from headrace.client.calls import Call, init_producer_id_call, produce_call
from headrace.client.errors import BrokerError, ClientError, NetworkError
from headrace.client.network import Network
from headrace.wire.errors import ErrorCode
from headrace.wire.primitives import NO_UUID
from headrace.wire.produce import ProducePartition, ProduceRequest, ProduceTopic

REQUEST_TIMEOUT_MS: Final = 30_000
SEND_MAX_S: Final = 60.0
PAUSE_S: Final = 0.2
ALL_REPLICAS: Final = -1
_STORED: Final = (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER)


class BatchSender:
    """Sends to one cluster, directly or through its balancer. One thread uses it."""

    def __init__(self, bootstrap: str, client_id: str) -> None:
        self._network = Network(bootstrap, client_id=client_id, request_timeout_ms=REQUEST_TIMEOUT_MS)

    def close(self) -> None:
        self._network.close()

    def new_producer_id(self) -> tuple[int, int]:
        """Returns a producer id that nobody has, and its epoch. Raises `ClientError`."""
        deadline_s = time.monotonic() + SEND_MAX_S
        while True:
            body = self._network.send_and_wait(init_producer_id_call(), deadline_s=deadline_s)
            if body.error_code == ErrorCode.NONE:
                return body.producer_id, body.producer_epoch
            error = BrokerError(body.error_code, "no producer id was assigned")
            if not error.retriable or time.monotonic() >= deadline_s:
                raise error
            self._network.poll(PAUSE_S)

    def send(self, topic: str, partition: int, data: bytes) -> None:
        """Returns once all in-sync replicas have the batch, from this call or an earlier one.

        Raises `ClientError`: it may be stored nevertheless; send the same bytes again.
        """
        deadline_s = time.monotonic() + SEND_MAX_S
        part = ProduceTopic(topic, NO_UUID, [ProducePartition(partition, data)])
        call = produce_call(ProduceRequest(None, ALL_REPLICAS, REQUEST_TIMEOUT_MS, [part]))
        while True:
            try:
                code = self._send(topic, partition, call, deadline_s)
            except ClientError as error:
                if not error.retriable or time.monotonic() >= deadline_s:
                    raise
            else:
                if code in _STORED:
                    return
                problem = BrokerError(code, f"{topic}-{partition}")
                if not problem.retriable or time.monotonic() >= deadline_s:
                    raise problem
            self._network.request_update()
            self._network.poll(PAUSE_S)

    def _send(self, topic: str, partition: int, call: Call, deadline_s: float) -> ErrorCode:
        self._network.add_topics([topic])
        while (leader := self._network.cluster.leader(topic, partition)) is None:
            if time.monotonic() >= deadline_s:
                raise NetworkError(f"{topic}-{partition} has no leader: {self._network.last_error}")
            self._network.request_update()
            self._network.poll(PAUSE_S)
        body: Any = self._network.send_and_wait(call, node_id=leader, deadline_s=deadline_s)
        return ErrorCode(body.topics[0].partitions[0].error_code)
