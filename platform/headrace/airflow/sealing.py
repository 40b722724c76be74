"""Sealing as tasks: finds the hours that are due, seals them, and fails for those that it could not seal.

Owns how a seal becomes an event of the topic's asset. `headrace.warehouse.seal` owns the seal itself, the
audit whether an hour may be sealed.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar, Final

from airflow.sdk import BaseOperator, Context
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from headrace.airflow.hook import HeadraceHook
from headrace.airflow.hours import by_day, hour_key, hour_list, parse_hour, window
from headrace.airflow.links import AuditReportLink
from headrace.airflow.proofs import (
    DELAY_DEFAULT,
    FORGOTTEN,
    HOURS_SHOWN_MAX,
    Proof,
    proofs_of,
    refused,
    summary,
)
from headrace.audit.findings import Status
from headrace.audit.times import is_named
from headrace.audit.topic.declarations import FROM_LOG, FROM_LOG_TEXT
from headrace.process.clock import now_ms
from headrace.warehouse.seal import NotSealedError, Seal, due_hours, seal_hours

log = logging.getLogger(__name__)

DAYS_MAX: Final = 500
"""Of one run, the last ones; later runs take the others. Airflow makes no more than 1,024 tasks of a list, so
one client with events of all times would keep a topic from being sealed.
"""
DUE_TASK: Final = "hours_due"
SEAL_TASK: Final = "seal"


def days_due(*, topic: str, root: str, grace_s: float, since: str = "", until: str = "") -> list[list[str]]:
    """Returns the hours to seal, by day: hours in the window that are closed and changed since their seal, of
    the last `DAYS_MAX` days.
    """
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
        if is_named(hour_ms)  # others belong to no day, and are never sealed
    ]
    selected = [hour for hour in due if (start is None or hour >= start) and (end is None or hour < end)]
    days = by_day(selected)
    if len(days) > DAYS_MAX:
        log.warning("%s: %s days are due; this run takes the last %s of them", topic, len(days), DAYS_MAX)
    return [[hour_key(hour) for hour in day] for day in days[-DAYS_MAX:]]


class SealHourOperator(BaseOperator):
    """Seals those `hours` of `topic` that the audit proves complete, and updates the topic's asset.

    Each sealed hour becomes one event of every asset among the task's outlets, with the hour as partition
    key; the event's extra has, by hour, the seal's version, rows, counts and addresses. Other hours stay
    unsealed. Sealing twice is harmless. Returns {"sealed": […], "unsealed": {hour: problem}}; a task that
    seals nothing is skipped, so that no asset is updated.
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
        proofs = proofs_of(installation.audit_store, self.topic, hour_list(self.hours), delay=self.delay)
        insufficient = [each for each in refused(proofs, self.completeness) if each.status != FORGOTTEN]
        for proof in insufficient:
            self.log.warning("%s: not sealed: %s", self.topic, summary([proof]))
        sufficient = {
            round(parse_hour(proof.hour).timestamp() * 1000): proof
            for proof in proofs
            if proof.may_be_sealed(self.completeness) or proof.status == FORGOTTEN
        }
        problems: dict[int, str] = {}
        try:
            made = seal_hours(
                installation.webhdfs_url,
                self.topic,
                {hour_ms: proof.proof_document for hour_ms, proof in sufficient.items()},
                root=self.root,
            )
        except NotSealedError as error:
            if not is_result(error, sufficient.keys(), context["ti"]):
                raise
            made, problems = error.sealed, error.problems
        seals: dict[str, dict[str, Any]] = {}
        for hour_ms, seal in sorted(made.items()):
            proof = sufficient[hour_ms]
            seals[proof.hour] = asset_extra(seal, proof)
            self.log.info(
                "sealed %s, %s: version %s, %s rows%s",
                *(self.topic, proof.hour, seal.version, seal.rows),
                f", {FROM_LOG_TEXT}" if FROM_LOG in proof.proof_document["counted_from"].values() else "",
            )
        if not seals:
            raise AirflowSkipException(f"no hour of {self.topic} could be sealed: {summary(insufficient)}")
        for asset in self.outlets:
            event = context["outlet_events"][asset]
            event.extra = {"hours": seals}
            event.add_partitions(list(seals))
        unsealed = {proof.hour: f"{proof.status}: {proof.problem_text}" for proof in insufficient}
        for hour_ms, problem in sorted(problems.items()):
            self.log.warning("not sealed: %s", problem)
            unsealed[sufficient[hour_ms].hour] = problem
        return {"sealed": list(seals), "unsealed": unsealed}


def is_result(error: NotSealedError, asked: Collection[int], ti: Any) -> bool:
    """Whether the seals that were made beside an error are the task's result. Else the task is repeated: then
    it may find the table at rest, and it finds these seals again.

    A sealed hour is due no more, so its asset event is of this task or of none: the last try tells what it
    has.
    """
    if not error.sealed:
        return False
    is_every_hour_judged = set(asked) == error.sealed.keys() | error.problems.keys()
    is_last_try = ti.try_number > ti.max_tries
    return is_every_hour_judged or bool(is_last_try)


def asset_extra(seal: Seal, proof: Proof) -> dict[str, Any]:
    """Returns the extra of a sealed hour's asset event; small, because Airflow keeps every event."""
    return {
        "version": seal.version,
        "rows": seal.rows,
        "files": len(seal.files),
        "counts": proof.proof_document["counts"],
        "counted_from": proof.proof_document["counted_from"],
        "addresses": proof.proof_document["address_ranges"],
        "completeness": proof.arrived / proof.handed_over if proof.handed_over else 1.0,
    }


def check_sealed(*, topic: str, delay: timedelta = DELAY_DEFAULT, **context: Any) -> None:
    """Fails if an hour that was due is not sealed, with the audit's problems."""
    ti = context["ti"]
    days = ti.xcom_pull(task_ids=DUE_TASK)
    if days is None:
        raise AirflowFailException(f"{topic}: the hours that are due are not known; see task {DUE_TASK}")
    # By number: of a cleared run Airflow also keeps the results of days that are due no more.
    pulled = ti.xcom_pull(task_ids=[SEAL_TASK], map_indexes=range(len(days)))
    results = [result for result in pulled if result]
    sealed = {hour for result in results for hour in result["sealed"]}
    left = [hour for day in days for hour in day if hour not in sealed]
    if left:
        store = HeadraceHook().installation.audit_store
        told = {hour: problem for result in results for hour, problem in result["unsealed"].items()}
        proofs = [
            # The audit has no problem with it: the warehouse has, or no seal vouches for what is forgotten.
            proof._replace(problem_text=told.get(proof.hour, f"see task {SEAL_TASK}"))
            if proof.status in (Status.COMPLETE, FORGOTTEN)
            else proof
            for proof in proofs_of(store, topic, left[:HOURS_SHOWN_MAX], delay=delay)
        ]
        what = "1 hour is" if len(left) == 1 else f"{len(left)} hours are"
        raise AirflowFailException(f"{topic}: {what} not sealed: {summary(proofs, len(left))}")
