"""The DAGs of a topic, made from its plan: one that loads, one that seals.

Owns the shape of both; what their tasks do is the operators'. Concurrent runs of one topic's load wait for
each other here (a backfill's too), and where Airflow fails to see to it, the commit log does.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import Any, Final

from airflow.sdk import (
    DAG,
    AssetOrTimeSchedule,
    CronTriggerTimetable,
    Param,
    TriggerRule,
    task,
    task_group,
)

from headrace.airflow.assets import loaded_asset, sealed_asset
from headrace.airflow.operators import LoadTopicOperator
from headrace.airflow.sealing import DUE_TASK, SEAL_TASK, SealHourOperator, check_sealed, days_due
from headrace.airflow.sensors import AuditCompleteSensor
from headrace.warehouse.schedule import LoadSchedule

SPARK_POOL: Final = "spark"
# Hours also become due by the mere passing of time, when a topic falls silent.
SEAL_SCHEDULE: Final = "5 * * * *"
_TIME: Final = {"type": ["null", "string"], "format": "date-time"}

# Runs of the schedule and of a backfill load up to the end of their interval; one by hand up to now.
_UNTIL: Final = (
    "{{ params.until or (data_interval_end.isoformat() "
    "if dag_run.run_type in ('scheduled', 'backfill') and data_interval_end else '') }}"
)


def load_id(topic: str) -> str:
    return f"load-{topic}"


def seal_id(topic: str) -> str:
    return f"seal-{topic}"


def dags_of(plans: Iterable[LoadSchedule], *, starts_paused: bool = True) -> dict[str, DAG]:
    """Both DAGs of every topic, by id. `starts_paused`: somebody switches them on."""
    made = [make(plan, starts_paused=starts_paused) for plan in plans for make in (load_dag, seal_dag)]
    return {dag.dag_id: dag for dag in made}


def load_dag(plan: LoadSchedule, *, starts_paused: bool = True) -> DAG:
    """`load-<topic>`: one load, from where the last one ended."""
    with DAG(
        load_id(plan.topic),
        description=f"Loads what is new of {plan.topic} into hourly Parquet in HDFS, exactly once.",
        doc_md=_LOAD_DOC.format(plan=plan, seal=seal_id(plan.topic)),
        schedule=_every(plan.schedule) if plan.schedule else None,
        catchup=False,
        is_paused_upon_creation=starts_paused,
        max_active_runs=1,
        params={
            "until": Param(
                None,
                **_TIME,
                title="Until",
                description="Load records before this time; empty: all there are.",
            ),
            "dry_run": Param(
                False, type="boolean", title="Dry run", description="Print the plan and load nothing."
            ),
        },
        default_args=_defaults(plan),
        tags=["headrace", "load", plan.topic],
    ) as dag:
        LoadTopicOperator(
            task_id="load",
            topic=plan.topic,
            root=plan.output,
            until=_UNTIL,
            dry_run="{{ params.dry_run }}",
            outlets=[loaded_asset(plan.topic, plan.output)],
            pool=SPARK_POOL,
            # Over all runs of this DAG: max_active_runs does not count those of a backfill.
            max_active_tis_per_dag=1,
        )
    return dag


def seal_dag(plan: LoadSchedule, *, starts_paused: bool = True) -> DAG:
    """`seal-<topic>`: seals closed hours that the audit proves complete, and fails for those it does not."""
    with DAG(
        seal_id(plan.topic),
        description=f"Seals the hours of {plan.topic} that the audit proves complete.",
        doc_md=_SEAL_DOC.format(plan=plan, load=load_id(plan.topic)),
        schedule=AssetOrTimeSchedule(
            timetable=_every(SEAL_SCHEDULE),
            assets=[loaded_asset(plan.topic, plan.output)],
        ),
        catchup=False,
        is_paused_upon_creation=starts_paused,
        max_active_runs=1,
        params={
            "from": Param(None, **_TIME, title="From", description="Only hours from this time on."),
            "to": Param(None, **_TIME, title="To", description="Only hours before this time."),
        },
        default_args=_defaults(plan),
        tags=["headrace", "seal", plan.topic],
    ) as dag:
        due = task(task_id=DUE_TASK)(days_due)(
            topic=plan.topic,
            root=plan.output,
            grace_s=plan.grace.total_seconds(),
            since="{{ params['from'] or '' }}",
            until="{{ params['to'] or '' }}",
        )

        @task_group(group_id="day", prefix_group_id=False)
        def day(hours: list[str]) -> None:
            decided = AuditCompleteSensor(
                task_id="audit",
                topic=plan.topic,
                hours=hours,
                until="decided",
                delay=plan.audit_delay,
                timeout=plan.audit_wait,
                map_index_template="{{ task.hours[0][:10] }}",
            )
            decided >> SealHourOperator(
                task_id=SEAL_TASK,
                topic=plan.topic,
                hours=hours,
                root=plan.output,
                completeness=plan.completeness,
                delay=plan.audit_delay,
                outlets=[sealed_asset(plan.topic, plan.output)],
                map_index_template="{{ task.hours[0][:10] }}",
            )

        every_hour_sealed = task(task_id="every_hour_sealed", trigger_rule=TriggerRule.ALL_DONE, retries=0)(
            check_sealed
        )
        day.expand(hours=due) >> every_hour_sealed(topic=plan.topic, delay=plan.audit_delay)
    return dag


def _every(cron: str) -> CronTriggerTimetable:
    # Unpausing a DAG, as triggering it does, must not run what its schedule has missed as well: so no start
    # date either, from which Airflow would count.
    return CronTriggerTimetable(cron, timezone="UTC", run_immediately=timedelta())


def _defaults(plan: LoadSchedule) -> dict[str, Any]:
    return {"owner": plan.owner, "retries": plan.retries, "retry_delay": plan.retry_delay}


_LOAD_DOC: Final = """
Loads `{plan.topic}` from the analysis brokers into `{plan.output}/{plan.topic}/hourly/YYYY/MM/DD/HH`, from
where the last load ended. It may be repeated, killed, or run twice at once: every record gets there once.

By hand: `until` bounds the load by record time, `dry_run` prints the plan and loads nothing. A backfill loads
up to the end of each of its intervals; what is loaded already is not loaded again.
`{seal}` follows each load. Ask {plan.owner} about this topic.
"""

_SEAL_DOC: Final = """
Seals the hours of `{plan.topic}` that are closed (ended {plan.grace} ago) and not sealed since their last
change, once the audit proves that they are complete (share of events that is enough: {plan.completeness}).
The asset `{plan.topic}` gets an event for each sealed hour, with the hour as its partition key.

A run fails, in the audit's own words, while an hour that is due cannot be sealed. It follows `{load}`, and
runs every hour besides. By hand: `from` and `to` choose the hours.
"""
