"""The error codes of groups' offsets, chosen by what real clients do after them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from headrace.broker.bodies import Tree
from headrace.broker.groups.offset_nodes import Offsets
from headrace.broker.handlers.offsets import OffsetService
from headrace.broker.promise import Promise
from headrace.coordination.errors import ZooKeeperUnavailableError
from headrace.wire.apis import ApiKey
from headrace.wire.errors import ErrorCode
from headrace.wire.messages import Request


def test_offsets_that_zookeeper_does_not_tell_now_are_asked_for_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Apache Kafka's consumer retries after this code. After COORDINATOR_NOT_AVAILABLE, in answer to an
    OffsetFetch, its poll raises a KafkaException.
    """
    promise: Promise[Offsets | Exception] = Promise()
    promise.resolve(ZooKeeperUnavailableError("no server answers"))
    store = SimpleNamespace(read=lambda *_: promise)
    coordinator = SimpleNamespace(refuse_offset_read=lambda _: ErrorCode.NONE)
    service = OffsetService(cast(Any, coordinator), cast(Any, store))
    for version in (7, 9):
        group = SimpleNamespace(group_id="g", topics=None)
        body = SimpleNamespace(group_id="g", topics=None, groups=[group])
        answers: list[Tree] = []
        request = Request(ApiKey.OFFSET_FETCH, version, 1, None, body)
        service.fetch(cast(Any, None), request).then(answers.append)
        found = answers[0]["groups"][0] if version == 9 else answers[0]
        assert found["error_code"] is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    [said] = caplog.messages
    assert said == "group 'g': its offsets are not read: no server answers"
