"""A topic's number of replicas: how it is read, and changed in place.

Owns what a change is refused for; `headrace.reassignment` plans and makes the moves.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Final

from headrace.provider.attributes import Attribute
from headrace.provider.clusters import APPLY_TIMEOUT_S, PLAN_TIMEOUT_S, replica_admin
from headrace.provider.problems import INTERRUPTED, Problem, ResourceError, format_bytes
from headrace.provider.values import Values

if TYPE_CHECKING:
    from headrace.client.admin import Admin
    from headrace.client.cluster import TopicInfo
    from headrace.reassignment.moving import Progress

logger = logging.getLogger(__name__)

TIMEOUT_DEFAULT_S: Final = 3600
_PATH: Final = ("replication_factor",)

THROTTLE: Final = Attribute(
    name="replication_throttle",
    type="number",
    optional=True,
    description="How many bytes a second each broker sends and fetches while a changed `replication_factor` "
    "copies replicas (KIP-73). Default: no bound.",
)
TIMEOUT_S: Final = Attribute(
    name="replication_timeout_s",
    type="number",
    default=TIMEOUT_DEFAULT_S,
    description="How long an apply waits until replicas that it adds are in sync, in seconds. The next apply "
    "continues.",
)


def factor_of(admin: Admin, name: str, topic: TopicInfo, expected: int | None) -> int:
    """Returns the topic's number of replicas; if its partitions differ, one that is not as `expected`.

    Replicas that are still being copied do not count, and those that will be removed do: a change that is
    not complete shows as drift. Raises `ClientError`.
    """
    under_way = admin.reassignments(name, list(topic.partitions)) if topic.partitions else {}
    found = set()
    for number, partition in topic.partitions.items():
        move = under_way.get((name, number))
        found.add(len(partition.replicas) - (len(move.adding) if move else 0))
    others = found - {expected}
    return min(others) if others else expected or 1


def factor_problems(planned: Values) -> list[Problem]:
    """Returns why the topic cannot have so many replicas; nothing if that is not known yet. Raises
    `ClientError`."""
    from headrace.reassignment.resizing import CannotResizeError, plan_of_resize

    name, factor = str(planned["name"]), int(planned["replication_factor"])
    with replica_admin(planned["bootstrap_servers"], timeout_s=PLAN_TIMEOUT_S) as admin:
        plan = plan_of_resize(admin.replicas(), name, factor)
    return [_cannot(name, factor, CannotResizeError(name, factor, plan))] if plan.stuck else []


def change_factor(planned: Values, stopping: threading.Event) -> None:
    """Returns once all partitions have the planned number of replicas, in sync. Raises `ResourceError` if
    they cannot, after `replication_timeout_s`, and on Ctrl-C; `ClientError`."""
    from headrace.reassignment.moving import ReassignmentError, UnfinishedError
    from headrace.reassignment.resizing import CannotResizeError, resize

    name, factor = str(planned["name"]), int(planned["replication_factor"])
    timeout_s = float(planned.get("replication_timeout_s") or TIMEOUT_DEFAULT_S)
    throttle = planned.get("replication_throttle")

    def report(progress: Progress) -> None:
        logger.info(
            "%s gets %d replicas: %d of %d partitions left, %s of %s copied",
            name,
            factor,
            progress.partitions_left,
            progress.partitions_total,
            format_bytes(progress.copied_bytes),
            format_bytes(progress.total_bytes),
        )

    def sleep(seconds: float) -> None:
        if stopping.wait(seconds):
            raise ResourceError(INTERRUPTED)

    try:
        with replica_admin(planned["bootstrap_servers"], timeout_s=APPLY_TIMEOUT_S) as admin:
            resize(
                admin,
                name,
                factor,
                timeout_s=timeout_s,
                throttle_bytes_per_s=None if throttle is None else int(throttle),
                report=report,
                sleep=sleep,
            )
    except UnfinishedError as error:
        text = f"After {timeout_s:g} s (replication_timeout_s): {error}. Apply again."
        raise ResourceError(Problem(f"Topic {name} has not {factor} replicas yet", text, _PATH)) from error
    except CannotResizeError as error:
        raise ResourceError(_cannot(name, factor, error)) from error
    except ReassignmentError as error:
        text = f"{error}. Apply again."
        raise ResourceError(Problem(f"Topic {name} has not {factor} replicas yet", text, _PATH)) from error


def _cannot(name: str, factor: int, error: Exception) -> Problem:
    return Problem(f"Topic {name} cannot have {factor} replicas", f"{error}.", _PATH)
