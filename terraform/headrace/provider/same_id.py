"""Another broker that runs under the id of a unit: a number given twice, or a successor made by hand.

What the cluster says of the id is then about that one: its replicas are not the unit's, and must not be moved
away because the unit goes.
"""

from __future__ import annotations

from headrace.coordination.errors import CoordinationError
from headrace.provider.clusters import PLAN_TIMEOUT_S, replica_admin
from headrace.provider.draining import registered_brokers
from headrace.provider.problems import Problem, ResourceError
from headrace.provider.values import Values


def other_broker(state: Values) -> str | None:
    """Returns the address of a broker that runs under the unit's id and is not the unit; None if there is
    none, or if nobody knows. Only where that one answers, and the unit's own address does not.
    """
    own = str(state["advertise"] or state["listen"])
    try:
        registered = registered_brokers(str(state["zookeeper"]))
    except CoordinationError:
        return None
    address = registered.get(int(state["broker_id"]), own)
    return None if address == own or _answers(own) or not _answers(address) else address


def check_free(planned: Values) -> None:
    """Raises `ResourceError` for a broker that is to be made under the id of one that runs."""
    address = other_broker(planned)
    if address is not None:
        broker_id = planned["broker_id"]
        text = (
            f"Broker {broker_id} of the ZooKeeper {planned['zookeeper']} runs at {address}; two brokers "
            "cannot have one id. Give this one another broker_id, or take that one away first."
        )
        raise ResourceError(Problem(f"Another broker has the id {broker_id}", text, ("broker_id",)))


def _answers(address: str) -> bool:
    # Imported here because the import is slow, and few requests need it.
    from headrace.client.errors import ClientError

    try:
        with replica_admin([address], timeout_s=PLAN_TIMEOUT_S) as admin:
            admin.describe_cluster()
    except ClientError:
        return False
    return True
