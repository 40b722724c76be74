"""SaslHandshake: offered, and always refused, as by Apache Kafka on a listener without SASL.

Brokers ask nobody for a name. If the connection is closed instead, a Java client that is set to SASL takes
that for a firewall's work or a passing fault: it tries again, for ever, and its user looks at the network.
"""

from __future__ import annotations

from headrace.broker.bodies import Tree
from headrace.broker.state import BrokerState
from headrace.wire.errors import ErrorCode
from headrace.wire.messages import Request


def refuse(_state: BrokerState, _request: Request) -> Tree:
    return {"error_code": ErrorCode.ILLEGAL_SASL_STATE, "mechanisms": ()}
