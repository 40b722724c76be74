"""The DAGs of a topic, made from its load schedule: one loads, one seals.

Owns the tasks and schedules of both; the operators own what a task does. Loads of one topic, backfills
included, run one at a time; should Airflow still start two, the commit log keeps every record exactly once.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import Any, Final

from airflow.sdk import DAG, AssetOrTimeSchedule, CronTriggerTimetable, Param, TriggerRule, task, task_group

from headrace.airflow.assets import loaded_asset, sealed_asset
from headrace.airflow.database import SPARK_POOL as SPARK_POOL
from headrace.airflow.operators import LoadTopicOperator
from headrace.airflow.sealing import DUE_TASK, SEAL_TASK, SealHourOperator, check_sealed, days_due
from headrace.airflow.sensors import AuditCompleteSensor
from headrace.warehouse.schedule import LoadSchedule

# Seals also run without a load: an hour becomes due by time alone when a topic has no new events.
SEAL_SCHEDULE: Final = "5 * * * *"
TAG_MAX_CHARS: Final = 100
"""Airflow's bound. A topic's name may be longer."""
OWNERS_MAX_CHARS: Final = 2_000
"""Airflow's bound of a DAG's owners, which are those of all its tasks, beside each other."""
OTHER_OWNERS: Final = "others"
_TIME: Final = {"type": ["null", "string"], "format": "date-time"}

# A load ends before the first record of that time or later. So only backfills end at their interval's end: a
# client whose clock is ahead would keep all that lies behind its records from the scheduled loads.
_UNTIL: Final = (
    "{{ params.until or (data_interval_end.isoformat() "
    "if dag_run.run_type == 'backfill' and data_interval_end else '') }}"
)


def load_id(topic: str) -> str:
    return f"load-{topic}"


def seal_id(topic: str) -> str:
    return f"seal-{topic}"


def owners_of_tasks(schedules: Iterable[LoadSchedule]) -> dict[str, str]:
    """Returns the owner of each topic's task in a DAG of all topics: its own for as many owners as a DAG may
    have, `OTHER_OWNERS` for the others. With more, PostgreSQL refuses the DAG, and all others of its file.
    """
    shown, left_chars = {OTHER_OWNERS}, OWNERS_MAX_CHARS - len(OTHER_OWNERS)
    owners = {}
    for schedule in schedules:
        cost_chars = 0 if schedule.owner in shown else len(f", {schedule.owner}")
        if cost_chars <= left_chars:
            shown.add(schedule.owner)
            left_chars -= cost_chars
        owners[schedule.topic] = schedule.owner if schedule.owner in shown else OTHER_OWNERS
    return owners


def dags_of(schedules: Iterable[LoadSchedule], *, starts_paused: bool = True) -> dict[str, DAG]:
    """Returns both DAGs of every topic, by id. With `starts_paused` a user must unpause them."""
    made = [
        make(schedule, starts_paused=starts_paused) for schedule in schedules for make in (load_dag, seal_dag)
    ]
    return {dag.dag_id: dag for dag in made}


def load_dag(schedule: LoadSchedule, *, starts_paused: bool = True) -> DAG:
    """Returns `load-<topic>`: a load that continues where the last one ended."""
    with DAG(
        load_id(schedule.topic),
        description=f"Loads new records of {schedule.topic} into hourly Parquet files in HDFS, exactly once.",
        doc_md=_LOAD_DOC.format(schedule=schedule, seal=seal_id(schedule.topic)),
        schedule=_every(schedule.schedule) if schedule.schedule else None,
        catchup=False,
        is_paused_upon_creation=starts_paused,
        max_active_runs=1,
        params={
            "until": Param(
                None,
                **_TIME,
                title="Until",
                description="Load only records before this time; empty: no limit.",
            ),
            "dry_run": Param(
                False, type="boolean", title="Dry run", description="Print the plan without loading anything."
            ),
            "made_again": Param(
                None,
                type=["null", "string"],
                pattern="^((new|copy)(:[0-9,]+)? ?)+$",
                title="Made again",
                description="Of a topic that was deleted and made again: its log is a new one (new), or a "
                "copy of the one that is loaded (copy), or each of some partitions (new:0 copy:1,2). Empty: "
                "such a load fails.",
            ),
        },
        default_args=_defaults(schedule),
        tags=["headrace", "load", schedule.topic[:TAG_MAX_CHARS]],
    ) as dag:
        LoadTopicOperator(
            task_id="load",
            topic=schedule.topic,
            root=schedule.output,
            until=_UNTIL,
            dry_run="{{ params.dry_run }}",
            made_again="{{ params.made_again or '' }}",
            outlets=[loaded_asset(schedule.topic, schedule.output)],
            pool=SPARK_POOL,
            # Limits all runs of this DAG: max_active_runs does not count backfill runs.
            max_active_tis_per_dag=1,
        )
    return dag


def seal_dag(schedule: LoadSchedule, *, starts_paused: bool = True) -> DAG:
    """Returns `seal-<topic>`: seals closed hours that the audit proves complete, and fails for others."""
    with DAG(
        seal_id(schedule.topic),
        description=f"Seals the hours of {schedule.topic} that the audit proves complete.",
        doc_md=_SEAL_DOC.format(schedule=schedule, load=load_id(schedule.topic)),
        schedule=AssetOrTimeSchedule(
            timetable=_every(SEAL_SCHEDULE),
            assets=[loaded_asset(schedule.topic, schedule.output)],
        ),
        catchup=False,
        is_paused_upon_creation=starts_paused,
        max_active_runs=1,
        params={
            "from": Param(None, **_TIME, title="From", description="Only hours at or after this time."),
            "to": Param(None, **_TIME, title="To", description="Only hours before this time."),
        },
        default_args=_defaults(schedule),
        tags=["headrace", "seal", schedule.topic[:TAG_MAX_CHARS]],
    ) as dag:
        due = task(task_id=DUE_TASK)(days_due)(
            topic=schedule.topic,
            root=schedule.output,
            grace_s=schedule.grace.total_seconds(),
            since="{{ params['from'] or '' }}",
            until="{{ params['to'] or '' }}",
        )

        @task_group(group_id="day", prefix_group_id=False)
        def day(hours: list[str]) -> None:
            decided = AuditCompleteSensor(
                task_id="audit",
                topic=schedule.topic,
                hours=hours,
                until="decided",
                delay=schedule.audit_delay,
                timeout=schedule.audit_wait,
                map_index_template="{{ task.hours[0][:10] }}",
            )
            decided >> SealHourOperator(
                task_id=SEAL_TASK,
                topic=schedule.topic,
                hours=hours,
                root=schedule.output,
                completeness=schedule.completeness,
                delay=schedule.audit_delay,
                outlets=[sealed_asset(schedule.topic, schedule.output)],
                map_index_template="{{ task.hours[0][:10] }}",
                # An hour on which the audit has no verdict in time keeps no other hour of its day unsealed.
                trigger_rule=TriggerRule.ALL_DONE,
            )

        every_hour_sealed = task(task_id="every_hour_sealed", trigger_rule=TriggerRule.ALL_DONE, retries=0)(
            check_sealed
        )
        day.expand(hours=due) >> every_hour_sealed(topic=schedule.topic, delay=schedule.audit_delay)
    return dag


def _every(cron: str) -> CronTriggerTimetable:
    # Unpausing or triggering a DAG must not also run the intervals that its schedule missed. For the same
    # reason the DAGs have no start date.
    return CronTriggerTimetable(cron, timezone="UTC", run_immediately=timedelta())


def _defaults(schedule: LoadSchedule) -> dict[str, Any]:
    return {"owner": schedule.owner, "retries": schedule.retries, "retry_delay": schedule.retry_delay}


_LOAD_DOC: Final = """
Loads `{schedule.topic}` from the analysis brokers into
`{schedule.output}/{schedule.topic}/hourly/dt=YYYY-MM-DD/hour=HH`. Each run continues where the last load
ended. A run may be repeated, killed, or run twice at once: every record is stored exactly once.

Manual runs: `until` loads only records before a time, `dry_run` prints the plan without loading anything. A
backfill loads up to the end of each of its intervals, without loading anything twice.
`{seal}` runs after each load. Contact for this topic: {schedule.owner}.
"""

_SEAL_DOC: Final = """
Seals hours of `{schedule.topic}` once the audit proves them complete (required share of events:
{schedule.completeness}). An hour is due {schedule.grace} after its end, and again after each change. The
asset `{schedule.topic}` gets an event for each sealed hour, with the hour as its partition key.

A run fails if an hour that is due cannot be sealed, and shows the audit's findings. It runs after each run of
`{load}`, and once an hour. Manual runs: `from` and `to` select the hours.
"""
