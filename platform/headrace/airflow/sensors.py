"""The sensor that waits for the audit's verdict on hours of a topic.

Owns when and how the wait ends. The verdicts come from `headrace.airflow.proofs`.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, ClassVar, Final, Literal

from airflow.sdk import BaseSensorOperator, Context
from airflow.sdk.exceptions import AirflowFailException, AirflowSensorTimeout

from headrace.airflow.hook import HeadraceHook
from headrace.airflow.hours import hour_list
from headrace.airflow.links import AuditReportLink
from headrace.airflow.proofs import DELAY_DEFAULT, Proof, proofs_of, refused, summary, undecided

POLL_INTERVAL_DEFAULT: Final = timedelta(seconds=5)
TIMEOUT_DEFAULT: Final = timedelta(hours=1)


class AuditCompleteSensor(BaseSensorOperator):
    """Waits until the audit has proven `hours` of `topic` complete.

    `hours` is one hour (ISO 8601) or a list; templated, like `topic`. A loss or a duplicate fails the task at
    once, with the audit's problems and without retries, because waiting repairs neither. With
    `until="decided"` any final verdict ends the wait, for successors that handle losses themselves.
    `completeness` is the required share of events; missing events count as late, not lost, until `delay` has
    passed. Deferrable: by default it waits in the triggerer. Returns the proofs, as JSON.
    """

    template_fields: Sequence[str] = ("topic", "hours")
    operator_extra_links: ClassVar = (AuditReportLink(),)
    ui_color = "#d7ecd9"

    def __init__(
        self,
        *,
        topic: str,
        hours: str | Sequence[str],
        until: Literal["complete", "decided"] = "complete",
        completeness: float = 1.0,
        delay: timedelta = DELAY_DEFAULT,
        headrace_conn_id: str = HeadraceHook.default_conn_name,
        deferrable: bool = True,
        poke_interval: timedelta | float = POLL_INTERVAL_DEFAULT,
        timeout: timedelta | float = TIMEOUT_DEFAULT,
        **kwargs: Any,
    ) -> None:
        super().__init__(poke_interval=poke_interval, timeout=timeout, **kwargs)
        self.topic = topic
        self.hours = hours
        self.until = until
        self.completeness = completeness
        self.delay = delay
        self.headrace_conn_id = headrace_conn_id
        self.deferrable = deferrable

    def execute(self, context: Context) -> list[dict[str, Any]]:
        deadline_s = time.time() + self.timeout
        while True:
            proofs = self._proofs()
            if not undecided(proofs):
                return self._finish(proofs)
            if self.deferrable:
                self._defer(deadline_s)
            if time.time() > deadline_s:
                raise AirflowSensorTimeout(f"{self.topic}: {summary(undecided(proofs))}")
            time.sleep(self.poke_interval)

    def execute_complete(self, context: Context, event: dict[str, Any]) -> list[dict[str, Any]]:
        """Continues with the trigger's event: all verdicts, or those at the timeout."""
        proofs = [Proof.from_json(proof) for proof in event["proofs"]]
        if not event["decided"]:
            raise AirflowSensorTimeout(f"{self.topic}: {summary(undecided(proofs))}")
        return self._finish(proofs)

    def _proofs(self) -> list[Proof]:
        store = HeadraceHook(self.headrace_conn_id).installation.audit_store
        return proofs_of(store, self.topic, hour_list(self.hours), delay=self.delay)

    def _defer(self, deadline_s: float) -> None:
        # Imported here because only deferring needs it.
        from headrace.airflow.triggers import AuditDecidedTrigger

        self.defer(
            trigger=AuditDecidedTrigger(
                topic=self.topic,
                hours=hour_list(self.hours),
                audit_store=HeadraceHook(self.headrace_conn_id).installation.audit_store,
                delay_s=self.delay.total_seconds(),
                poll_interval_s=self.poke_interval,
                deadline_s=deadline_s,
            ),
            method_name="execute_complete",
        )

    def _finish(self, proofs: list[Proof]) -> list[dict[str, Any]]:
        insufficient = refused(proofs, self.completeness)
        for proof in proofs:
            self.log.info("%s, %s: %s", self.topic, proof.hour, proof.problem_text or proof.status)
        if insufficient and self.until == "complete":
            raise AirflowFailException(f"{self.topic}: {summary(insufficient)}")
        return [proof.to_json() for proof in proofs]
