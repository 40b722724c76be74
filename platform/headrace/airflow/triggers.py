"""The trigger that waits for the audit without occupying a worker.

Owns the asynchronous wait; the verdicts come from `headrace.airflow.proofs`. It shares the triggerer's event
loop with many others, so it reads the store in a thread.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from headrace.airflow.proofs import proofs_of, summary, undecided


class AuditDecidedTrigger(BaseTrigger):
    """Fires once the audit has a final verdict on all `hours`, or at `deadline_s` (seconds since 1970).

    Its event is {"decided": bool, "proofs": [Proof as JSON, …]}. A trigger that moves to another triggerer
    starts again, with the same deadline.
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
        names = ("topic", "hours", "audit_store", "delay_s", "poll_interval_s", "deadline_s")
        return (
            f"{type(self).__module__}.{type(self).__qualname__}",
            {name: getattr(self, name) for name in names},
        )

    async def run(self) -> AsyncIterator[TriggerEvent]:
        logged = ""
        while True:
            proofs = await asyncio.to_thread(
                proofs_of, self.audit_store, self.topic, self.hours, delay=timedelta(seconds=self.delay_s)
            )
            waiting = undecided(proofs)
            left_s = self.deadline_s - time.time()
            if not waiting or left_s <= 0:
                yield TriggerEvent({"decided": not waiting, "proofs": [proof.to_json() for proof in proofs]})
                return
            if (text := summary(waiting[:1], len(waiting))) != logged:
                logged = text
                self.log.info("waiting for the audit of %s: %s", self.topic, text)
            await asyncio.sleep(min(self.poll_interval_s, left_s))
