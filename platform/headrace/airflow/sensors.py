"""The sensor that waits until the audit knows about hours of a topic.

Owns when waiting ends and how. The audit's verdicts come from `headrace.airflow.proofs`.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, ClassVar, Final, Literal

from airflow.sdk import BaseSensorOperator, Context
from airflow.sdk.exceptions import AirflowFailException, AirflowSensorTimeout

from headrace.airflow.hook import HeadraceHook
from headrace.airflow.links import AuditReportLink
from headrace.airflow.proofs import DELAY_DEFAULT, Proof, proofs_of, refused, undecided

POLL_INTERVAL_DEFAULT: Final = timedelta(seconds=5)
TIMEOUT_DEFAULT: Final = timedelta(hours=1)
WORDS_MAX: Final = 10


class AuditCompleteSensor(BaseSensorOperator):
    """Waits until the audit has proven `hours` of `topic` complete.

    `hours` is a list of hours (ISO 8601), or one; templated, as `topic` is. A loss or a duplicate fails the
    task at once, in the audit's own words, and is not retried: waiting mends neither. `until="decided"` is
    satisfied by any final verdict, for a successor that deals with losses itself. `completeness` is the
    share of events that is enough; what is missing counts as on its way until `delay` has passed.
    Deferrable: by default it waits in the triggerer. Returns the proofs, as JSON.
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
                raise AirflowSensorTimeout(self._words(undecided(proofs)))
            time.sleep(self.poke_interval)

    def execute_complete(self, context: Context, event: dict[str, Any]) -> list[dict[str, Any]]:
        """The trigger's event: every verdict, or none in time."""
        proofs = [Proof.from_json(proof) for proof in event["proofs"]]
        if not event["decided"]:
            raise AirflowSensorTimeout(self._words(undecided(proofs)))
        return self._finish(proofs)

    def _proofs(self) -> list[Proof]:
        store = HeadraceHook(self.headrace_conn_id).installation.audit_store
        return proofs_of(store, self.topic, self._hours(), delay=self.delay)

    def _hours(self) -> list[str]:
        return [self.hours] if isinstance(self.hours, str) else list(self.hours)

    def _defer(self, deadline_s: float) -> None:
        from headrace.airflow.triggers import AuditDecidedTrigger

        self.defer(
            trigger=AuditDecidedTrigger(
                topic=self.topic,
                hours=self._hours(),
                audit_store=HeadraceHook(self.headrace_conn_id).installation.audit_store,
                delay_s=self.delay.total_seconds(),
                poll_interval_s=self.poke_interval,
                deadline_s=deadline_s,
            ),
            method_name="execute_complete",
        )

    def _finish(self, proofs: list[Proof]) -> list[dict[str, Any]]:
        bad = refused(proofs, self.completeness)
        for proof in proofs:
            self.log.info("%s, %s: %s", self.topic, proof.hour, proof.words or proof.status)
        if bad and self.until == "complete":
            raise AirflowFailException(self._words(bad))
        return [proof.to_json() for proof in proofs]

    def _words(self, proofs: list[Proof]) -> str:
        words = [f"{proof.hour} is {proof.status}: {proof.words}" for proof in proofs[:WORDS_MAX]]
        more = len(proofs) - len(words)
        return f"{self.topic}: " + "; ".join(words) + (f"; and {more} more hours" if more else "")
