"""Sealing as tasks: which hours are due, sealing them, and saying which could not be sealed.

Owns how a seal becomes an event of the topic's asset. What a seal is, is `headrace.warehouse.seal`'s;
whether an hour may be sealed, the audit's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar, Final

from airflow.sdk import BaseOperator, Context
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from headrace.airflow.hook import HeadraceHook
from headrace.airflow.hours import by_day, hour_key, parse_hour, window
from headrace.airflow.links import AuditReportLink
from headrace.airflow.proofs import DELAY_DEFAULT, Proof, proofs_of
from headrace.process.clock import now_ms
from headrace.warehouse.seal import Seal, due_hours, seal_hours

WORDS_MAX: Final = 10
DUE_TASK: Final = "hours_due"
SEAL_TASK: Final = "seal"


def days_due(*, topic: str, root: str, grace_s: float, since: str = "", until: str = "") -> list[list[str]]:
    """The hours to seal, grouped by day: closed, changed since their last seal, in the window."""
    start, end = window(since, until)
    due = [
        datetime.fromtimestamp(hour_ms / 1000, UTC)
        for hour_ms in due_hours(
            HeadraceHook().installation.webhdfs_url,
            topic,
            root=root,
            now_ms=now_ms(),
            grace_ms=round(grace_s * 1000),
        )
    ]
    chosen = [hour for hour in due if (start is None or hour >= start) and (end is None or hour < end)]
    return [[hour_key(hour) for hour in day] for day in by_day(chosen)]


class SealHourOperator(BaseOperator):
    """Seals those of `hours` of `topic` that the audit proves complete, and updates the topic's asset for
    them.

    Each sealed hour becomes one event of every asset among the task's outlets, with the hour as partition
    key; the event's extra holds, by hour, the seal: version, rows, counts and addresses. Hours that may not
    be sealed stay as they are. Sealing twice is harmless. Returns {"sealed": […], "unsealed": {hour: why}};
    a task that seals nothing is skipped, so that no asset changes.
    """

    template_fields: Sequence[str] = ("topic", "hours", "root")
    operator_extra_links: ClassVar = (AuditReportLink(),)
    ui_color = "#c7e5c4"

    def __init__(
        self,
        *,
        topic: str,
        hours: str | Sequence[str],
        root: str = "/data",
        completeness: float = 1.0,
        delay: timedelta = DELAY_DEFAULT,
        headrace_conn_id: str = HeadraceHook.default_conn_name,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.topic = topic
        self.hours = hours
        self.root = root
        self.completeness = completeness
        self.delay = delay
        self.headrace_conn_id = headrace_conn_id

    def execute(self, context: Context) -> dict[str, Any]:
        installation = HeadraceHook(self.headrace_conn_id).installation
        hours = [self.hours] if isinstance(self.hours, str) else list(self.hours)
        proofs = proofs_of(installation.audit_store, self.topic, hours, delay=self.delay)
        unsealed: dict[str, str] = {}
        enough: dict[int, Proof] = {}
        for proof in proofs:
            if proof.is_enough(self.completeness):
                enough[round(parse_hour(proof.hour).timestamp() * 1000)] = proof
                continue
            unsealed[proof.hour] = f"{proof.status}: {proof.words}"
            self.log.warning("%s, %s is not sealed: it is %s", self.topic, proof.hour, unsealed[proof.hour])
        made = seal_hours(
            installation.webhdfs_url,
            self.topic,
            {hour_ms: proof.full for hour_ms, proof in enough.items()},
            root=self.root,
        )
        seals: dict[str, dict[str, Any]] = {}
        for hour_ms, seal in sorted(made.items()):
            proof = enough[hour_ms]
            seals[proof.hour] = asset_extra(seal, proof)
            self.log.info(
                "%s, %s is sealed: version %s, %s rows", self.topic, proof.hour, seal.version, seal.rows
            )
        if not seals:
            raise AirflowSkipException(
                f"no hour of {self.topic} could be sealed: {said(unsealed, len(unsealed))}"
            )
        for asset in self.outlets:
            event = context["outlet_events"][asset]
            event.extra = {"hours": seals}
            event.add_partitions(list(seals))
        return {"sealed": list(seals), "unsealed": unsealed}


def asset_extra(seal: Seal, proof: Proof) -> dict[str, Any]:
    """What an asset event says of one sealed hour: small enough to keep for each of them."""
    return {
        "version": seal.version,
        "rows": seal.rows,
        "files": len(seal.files),
        "counts": proof.full["counts"],
        "addresses": proof.full["address_ranges"],
        "completeness": proof.arrived / proof.handed_over if proof.handed_over else 1.0,
    }


def check_sealed(*, topic: str, delay: timedelta = DELAY_DEFAULT, **context: Any) -> None:
    """Fails while an hour that was due is not sealed, in the audit's own words."""
    ti = context["ti"]
    days = ti.xcom_pull(task_ids=DUE_TASK)
    if days is None:
        raise AirflowFailException(f"{topic}: which hours are due is not known; see task {DUE_TASK}")
    sealed = {hour for each in ti.xcom_pull(task_ids=[SEAL_TASK]) if each for hour in each["sealed"]}
    left = [hour for day in days for hour in day if hour not in sealed]
    if left:
        store = HeadraceHook().installation.audit_store
        proofs = proofs_of(store, topic, left[:WORDS_MAX], delay=delay)
        unsealed = {proof.hour: f"{proof.status}: {proof.words}" for proof in proofs}
        what = "1 hour is" if len(left) == 1 else f"{len(left)} hours are"
        raise AirflowFailException(f"{topic}: {what} not sealed: {said(unsealed, len(left))}")


def said(unsealed: Mapping[str, str], count: int) -> str:
    """Hours and reasons in a line; `count` is how many hours there are."""
    words = [f"{hour} is {why}" for hour, why in list(unsealed.items())[:WORDS_MAX]]
    more = count - len(words)
    return "; ".join(words) + (f"; and {more} more hours" if more else "")
