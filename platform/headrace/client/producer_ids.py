"""The producer id under which batches are numbered (InitProducerId, KIP-98). For the sender thread."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from headrace.client.backoff import Backoff
from headrace.client.calls import init_producer_id_call
from headrace.client.errors import BrokerError, ClientError
from headrace.client.informants import PATIENCE_S
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
        self._in_flight = 0
        self._asked_s = 0.0
        self._failures = 0
        self._not_before_s = 0.0

    @property
    def retry_at_s(self) -> float | None:
        """When to call `request` again; None if nothing is to be requested."""
        if self.current is not None:
            return None
        return self._asked_s + PATIENCE_S if self._in_flight else self._not_before_s

    def request(self) -> None:
        """Requests a new id, unless it has to wait, or a broker was asked a moment ago.

        Asks another broker if one does not answer: its connection may stand until the request's timeout.
        """
        self.current = None
        now_s = self._clock()
        if now_s < (self._asked_s + PATIENCE_S if self._in_flight else self._not_before_s):
            return
        node_id = self._network.any_ready()
        if node_id is None or (self._in_flight and self._network.is_silent(node_id)):
            return
        try:
            self._network.send(node_id, init_producer_id_call(), self._on_response)
            self._in_flight += 1
            self._asked_s = now_s
        except ClientError as error:
            self._on_refused(error)

    def _on_response(self, body: Any, error: ClientError | None) -> None:
        self._in_flight -= 1
        if self.current is not None:
            return  # another broker was faster
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
