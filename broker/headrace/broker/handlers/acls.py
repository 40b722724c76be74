"""DescribeAcls, CreateAcls, DeleteAcls: offered, and always refused, as by Apache Kafka without authorizer.

There is no access control. Programs that copy or show it, such as MirrorMaker 2, take SECURITY_DISABLED for
what it is, and go on; that the API is missing they call an error, at each turn.

Source: https://kafka.apache.org/protocol#The_Messages_DescribeAcls, KIP-140.
"""

from __future__ import annotations

from typing import Final

from headrace.broker.bodies import Tree
from headrace.broker.state import BrokerState
from headrace.wire.errors import ErrorCode
from headrace.wire.messages import Request

_REFUSED: Final[Tree] = {
    "error_code": ErrorCode.SECURITY_DISABLED,
    "error_message": "headrace has no access control: the network says who reaches its brokers",
}


def refuse_describe(_state: BrokerState, _request: Request) -> Tree:
    return {**_REFUSED, "resources": ()}


def refuse_create(_state: BrokerState, request: Request) -> Tree:
    return {"results": [_REFUSED for _ in request.body.creations]}


def refuse_delete(_state: BrokerState, request: Request) -> Tree:
    return {"filter_results": [{**_REFUSED, "matching_acls": ()} for _ in request.body.filters]}
