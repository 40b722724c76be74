"""InitProducerId (KIP-98): producer ids from blocks that ZooKeeper allocates to each broker."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import Final

from headrace.broker.bodies import Tree
from headrace.broker.promise import Promise
from headrace.broker.workers import Jobs
from headrace.wire.errors import ErrorCode
from headrace.wire.messages import Request

logger = logging.getLogger(__name__)

WAITING_MAX: Final = 10_000


class ProducerIds:
    """This broker's stock of ids. `allocate` may block: it runs on a control thread, one call at a time."""

    def __init__(self, control: Jobs, allocate: Callable[[], range]) -> None:
        self._control = control
        self._allocate = allocate
        self._stock: deque[range] = deque()
        self._next = 0
        self._waiting: deque[Promise[Tree]] = deque()
        self._is_allocating = False

    def handle(self, request: Request) -> Tree | Promise[Tree]:
        """Returns a new id with epoch 0, as Kafka does without a transactional id."""
        if request.body.transactional_id is not None:
            return _failed(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
        if self._stock:
            return self._next_id()
        if len(self._waiting) >= WAITING_MAX:
            return _failed(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        promise: Promise[Tree] = Promise()
        self._waiting.append(promise)
        self._restock()
        return promise

    def _next_id(self) -> Tree:
        block = self._stock[0]
        producer_id = block[self._next]
        self._next += 1
        if self._next == len(block):
            self._stock.popleft()
            self._next = 0
        if not self._stock:
            self._restock()
        return {"error_code": ErrorCode.NONE, "producer_id": producer_id, "producer_epoch": 0}

    def _restock(self) -> None:
        if not self._is_allocating:
            self._is_allocating = True
            self._control.submit(self._allocate, self._restocked)

    def _restocked(self, block: range | None, error: Exception | None) -> None:
        self._is_allocating = False
        if block is not None:
            self._stock.append(block)
        else:
            logger.warning("no producer ids from ZooKeeper: %s", error)
        while self._waiting:
            if not self._stock:
                if block is not None:
                    return
                self._waiting.popleft().resolve(_failed(ErrorCode.COORDINATOR_NOT_AVAILABLE))
                continue
            self._waiting.popleft().resolve(self._next_id())


def _failed(code: ErrorCode) -> Tree:
    return {"error_code": code, "producer_id": -1, "producer_epoch": -1}
