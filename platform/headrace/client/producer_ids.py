"""The producer id under which batches are numbered (InitProducerId, KIP-98). For the sender thread."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from headrace.client.backoff import Backoff
from headrace.client.calls import init_producer_id_call
from headrace.client.errors import BrokerError, ClientError
from headrace.client.network import Network
from headrace.client.ordering import NO_PRODUCER
from headrace.wire.errors import ErrorCode


class ProducerIds:
    """Requests a producer id until a broker assigns one; calls `on_refused` after a final error."""

    def __init__(
        self,
        network: Network,
        *,
        idempotent: bool,
        backoff: Backoff,
        on_refused: Callable[[ClientError], None],
        clock: Callable[[], float],
        draw: Callable[[], float],
    ) -> None:
        self.current: tuple[int, int] | None = None if idempotent else (NO_PRODUCER, -1)
        """The id and its first epoch; None until one is assigned."""
        self._network = network
        self._backoff = backoff
        self._on_refused = on_refused
        self._clock = clock
        self._draw = draw
        self._in_flight = False
        self._failures = 0
        self._not_before_s = 0.0

    @property
    def retry_at_s(self) -> float | None:
        """When to call `request` again; None if nothing is to be requested or a request is in flight."""
        return self._not_before_s if self.current is None and not self._in_flight else None

    def request(self) -> None:
        """Requests a new id, unless a request is in flight or has to wait."""
        self.current = None
        if self._in_flight or self._clock() < self._not_before_s:
            return
        node_id = self._network.any_ready()
        if node_id is None:
            return
        try:
            self._network.send(node_id, init_producer_id_call(), self._on_response)
            self._in_flight = True
        except ClientError as error:
            self._on_refused(error)

    def _on_response(self, body: Any, error: ClientError | None) -> None:
        self._in_flight = False
        if error is None and body.error_code != ErrorCode.NONE:
            error = BrokerError(body.error_code, "no producer id was assigned")
        if error is None:
            self.current = (body.producer_id, body.producer_epoch)
            self._failures = 0
        elif error.retriable:
            self._failures += 1
            self._not_before_s = self._clock() + self._backoff.delay_s(self._failures, self._draw)
        else:
            self._on_refused(error)
