"""DescribeCluster (KIP-700) and FindCoordinator (KIP-699): who is there, and who coordinates a group."""

from __future__ import annotations

from typing import Final

from headrace.broker.bodies import Tree
from headrace.broker.cluster import NO_BROKER
from headrace.broker.groups.coordinator import coordinator_for
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
                "broker_id": each.broker_id,
                "host": each.host,
                "port": each.port,
                "rack": each.datacenter,
                "is_fenced": False,
            }
            for each in sorted(state.view.brokers.values(), key=lambda broker: broker.broker_id)
        ],
    }


def find_coordinator(state: BrokerState, request: Request) -> Tree:
    body = request.body
    if hasattr(body, "coordinator_keys"):
        return {"coordinators": [_coordinator(state, body.key_type, key) for key in body.coordinator_keys]}
    return _coordinator(state, getattr(body, "key_type", GROUP), body.key)


def no_coordinator(request: Request, why: str) -> Tree:
    """Nobody coordinates what is asked for."""
    nobody: Tree = {
        "node_id": NO_BROKER,
        "host": "",
        "port": -1,
        "error_code": ErrorCode.COORDINATOR_NOT_AVAILABLE,
        "error_message": why,
    }
    body = request.body
    if hasattr(body, "coordinator_keys"):
        return {"coordinators": [{"key": key, **nobody} for key in body.coordinator_keys]}
    return nobody


def _coordinator(state: BrokerState, kind: int, key: str) -> Tree:
    nobody: Tree = {"key": key, "node_id": NO_BROKER, "host": "", "port": -1}
    if kind == TRANSACTION:
        return nobody | {
            "error_code": ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
            "error_message": "headrace has no transactions: send without a transactional id",
        }
    if kind != GROUP:
        return nobody | {
            "error_code": ErrorCode.INVALID_REQUEST,
            "error_message": f"coordinator type {kind} is unknown",
        }
    broker_id = coordinator_for(key, state.view.brokers)
    if broker_id is None:
        return nobody | {
            "error_code": ErrorCode.COORDINATOR_NOT_AVAILABLE,
            "error_message": "no broker is registered",
        }
    broker = state.view.brokers[broker_id]
    return {
        "key": key,
        "node_id": broker_id,
        "host": broker.host,
        "port": broker.port,
        "error_code": ErrorCode.NONE,
        "error_message": None,
    }
