"""A broker that is to be made again with an empty disk, while others of its cluster lack what it has.

With both away, what they hold is on fewer disks than one apply takes away. The apply that took the other one
away may have been interrupted, or may have failed, so the cluster is asked (`client.in_sync.lack_of`). Owns
for how long a deletion waits.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

from headrace.coordination.errors import CoordinationError
from headrace.provider.clusters import PLAN_TIMEOUT_S
from headrace.provider.draining import DRAIN_TIMEOUT_DEFAULT_S, cluster_admin
from headrace.provider.problems import Problem, ResourceError, join_some
from headrace.provider.replacing import BEGIN_MAX_S
from headrace.provider.values import Values

if TYPE_CHECKING:
    from headrace.client.in_sync import Lack

logger = logging.getLogger(__name__)


def others_lack(state: Values, deleted_topics: Collection[str]) -> Lack | None:
    """Returns who lacks what the broker has in sync; None if nobody does, or if the cluster does not answer.
    `deleted_topics`: the ids of topics that the same plan deletes."""
    from headrace.client.errors import ClientError
    from headrace.client.in_sync import lack_of

    try:
        with cluster_admin(state, timeout_s=PLAN_TIMEOUT_S) as admin:
            topics = admin.topics()
            survey = admin.replicas()
    except (ClientError, CoordinationError) as error:
        logger.warning("who lacks replicas of %s is not known: %s", state["name"], error)
        return None
    deleted = {name for name, topic in topics.items() if str(topic.topic_id) in deleted_topics}
    found = lack_of(survey, int(state["broker_id"]), deleted)
    return found if found.partitions else None


def described(lack: Lack) -> str:
    """Returns who lacks what, as a clause."""
    ids = ", ".join(map(str, lack.brokers))
    who = (
        f"broker {ids} of its cluster has" if len(lack.brokers) == 1 else f"brokers {ids} of its cluster have"
    )
    names = join_some(f"{topic}-{number}" for topic, number in sorted(lack.partitions))
    return f"{who} not all replicas in sync: of {names}"


class Patience:
    """How long a deletion waits for the others: `drain_timeout_s` while they fetch, `BEGIN_MAX_S` while one
    of them is not there. `is_made`: whether this apply makes a broker just now: for that one it waits."""

    def __init__(
        self, state: Values, is_made: Callable[[int], bool], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._name = state["name"]
        self._timeout_s = float(state.get("drain_timeout_s") or DRAIN_TIMEOUT_DEFAULT_S)
        self._is_made = is_made
        self._clock = clock
        self._begun_s = clock()
        self._gone_s: float | None = None

    def check(self, lack: Lack) -> None:
        """Raises `ResourceError` once the time is up."""
        now_s = self._clock()
        if any(not self._is_made(each) for each in lack.gone):
            self._gone_s = now_s if self._gone_s is None else self._gone_s
        else:
            self._gone_s = None
        if self._gone_s is not None and now_s - self._gone_s >= BEGIN_MAX_S:
            gone = ", ".join(map(str, lack.gone))
            raise self._refusal(lack, f" (broker {gone} is not there)")
        if now_s - self._begun_s >= self._timeout_s:
            raise self._refusal(lack, f" after {self._timeout_s:g} s (drain_timeout_s)")

    def _refusal(self, lack: Lack, why: str) -> ResourceError:
        text = (
            f"It would be made again with an empty disk, but {described(lack)}{why}. With both away, what "
            f"they hold would be on too few disks. Take the change of {self._name} back, and apply: the "
            "other one can be made, started or drained then. Make the change again once `headrace brokers "
            "list` shows nothing out of sync. To make it all the same, set allow_data_loss = true and apply "
            "that first."
        )
        return ResourceError(Problem(f"Broker {self._name} is not destroyed yet", text))
