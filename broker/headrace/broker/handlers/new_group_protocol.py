"""ConsumerGroupHeartbeat (KIP-848): offered, and always refused, as by Apache Kafka without that protocol.

Groups have JoinGroup's protocol alone. If the API is not offered, librdkafka with `group.protocol=consumer`
asks for the coordinator again, for ever, and tells its user nothing. UNSUPPORTED_VERSION is the end for all
clients that know the API; franz-go goes on with JoinGroup.
"""

from __future__ import annotations

from typing import Final

from headrace.broker.bodies import Tree
from headrace.broker.state import BrokerState
from headrace.wire.errors import ErrorCode
from headrace.wire.messages import Request

PROBLEM: Final = "headrace has no groups of the new consumer protocol: set group.protocol=classic"


def refuse(_: BrokerState, request: Request) -> Tree:
    return {
        "throttle_time": 0,
        "error_code": ErrorCode.UNSUPPORTED_VERSION,
        "error_message": PROBLEM,
        "member_epoch": request.body.member_epoch,
        "heartbeat_interval": 0,
    }
