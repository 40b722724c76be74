"""The trigger that waits for the audit without holding a worker.

Owns the asynchronous wait; what the audit says is `headrace.airflow.proofs`'. It runs in the triggerer,
beside many others: reading the store happens in a thread.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from headrace.airflow.proofs import Proof, proofs_of, undecided


class AuditDecidedTrigger(BaseTrigger):
    """Fires once the audit has decided about every one of `hours`, or at `deadline_s` (seconds since 1970).

    Its event is {"decided": bool, "proofs": [Proof as JSON, …]}. A trigger that moves to another triggerer
    starts again and keeps its deadline.
    """

    def __init__(
        self,
        *,
        topic: str,
        hours: list[str],
        audit_store: str,
        delay_s: float,
        poll_interval_s: float,
        deadline_s: float,
    ) -> None:
        super().__init__()
        self.topic = topic
        self.hours = hours
        self.audit_store = audit_store
        self.delay_s = delay_s
        self.poll_interval_s = poll_interval_s
        self.deadline_s = deadline_s

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return (
            f"{type(self).__module__}.{type(self).__qualname__}",
            {
                "topic": self.topic,
                "hours": self.hours,
                "audit_store": self.audit_store,
                "delay_s": self.delay_s,
                "poll_interval_s": self.poll_interval_s,
                "deadline_s": self.deadline_s,
            },
        )

    async def run(self) -> AsyncIterator[TriggerEvent]:
        said = ""
        while True:
            proofs = await asyncio.to_thread(
                proofs_of, self.audit_store, self.topic, self.hours, delay=timedelta(seconds=self.delay_s)
            )
            waiting = undecided(proofs)
            left_s = self.deadline_s - time.time()
            if not waiting or left_s <= 0:
                yield TriggerEvent({"decided": not waiting, "proofs": [proof.to_json() for proof in proofs]})
                return
            if (now := _summary(waiting)) != said:
                said = now
                self.log.info("waiting for the audit of %s: %s", self.topic, now)
            await asyncio.sleep(min(self.poll_interval_s, left_s))


def _summary(waiting: list[Proof]) -> str:
    first = waiting[0]
    more = f", and {len(waiting) - 1} more hours" if len(waiting) > 1 else ""
    return f"{first.hour} is {first.status}: {first.words}{more}"
