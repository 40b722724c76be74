"""DescribeCluster (KIP-700) and FindCoordinator (KIP-699): live brokers, and a group's coordinator.

DescribeCluster has fields of ours (`wire.own_fields`): what placement and an operator ask of a broker.
"""

from __future__ import annotations

from typing import Final

from headrace.broker.bodies import Tree
from headrace.broker.cluster import NO_BROKER
from headrace.broker.groups.coordinator import coordinator_for
from headrace.broker.handlers import allowed
from headrace.broker.state import BrokerState
from headrace.wire.errors import ErrorCode
from headrace.wire.messages import Request

GROUP: Final = 0
TRANSACTION: Final = 1


def describe(state: BrokerState, request: Request) -> Tree:
    return {
        "error_code": ErrorCode.NONE,
        "cluster_id": state.cluster_id,
        "controller_id": state.view.controller_id(),
        "brokers": [
            {
                "broker_id": broker.broker_id,
                "host": broker.host,
                "port": broker.port,
                "rack": broker.shown_rack,
                "is_fenced": False,
                "placement_rack": broker.rack,
                "broker_epoch": broker.epoch,
            }
            for _, broker in sorted(state.view.brokers.items())
        ],
        "drained_brokers": sorted(state.view.drained),
        "cluster_authorized_operations": allowed.answer(
            allowed.ON_CLUSTER, request.body, "include_cluster_authorized_operations"
        ),
    }


def find_coordinator(state: BrokerState, request: Request) -> Tree:
    body = request.body
    if hasattr(body, "coordinator_keys"):
        return {"coordinators": [_coordinator(state, body.key_type, key) for key in body.coordinator_keys]}
    return _coordinator(state, getattr(body, "key_type", GROUP), body.key)


def no_coordinator(request: Request, problem: str) -> Tree:
    """Returns a response that names no coordinator for any of the keys."""
    body = request.body
    if hasattr(body, "coordinator_keys"):
        return {"coordinators": [_unavailable(key, problem) for key in body.coordinator_keys]}
    return _unavailable(body.key, problem)


def _unavailable(key: str, problem: str, code: ErrorCode = ErrorCode.COORDINATOR_NOT_AVAILABLE) -> Tree:
    found: Tree = {"key": key, "node_id": NO_BROKER, "host": "", "port": -1}
    return found | {"error_code": code, "error_message": problem}


def _coordinator(state: BrokerState, kind: int, key: str) -> Tree:
    if kind == TRANSACTION:
        problem = "headrace has no transactions: send without a transactional id"
        return _unavailable(key, problem, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    if kind != GROUP:
        return _unavailable(key, f"coordinator type {kind} is unknown", ErrorCode.INVALID_REQUEST)
    broker_id = coordinator_for(key, state.view.brokers)
    if broker_id is None:
        return _unavailable(key, "no broker is registered")
    broker = state.view.brokers[broker_id]
    return {
        "key": key,
        "node_id": broker_id,
        "host": broker.host,
        "port": broker.port,
        "error_code": ErrorCode.NONE,
        "error_message": None,
    }
