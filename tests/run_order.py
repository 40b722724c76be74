"""Which test files run in one process, and in which order groups and files start.

All tests of a file run in one of the test processes of `make test`, as do all files that share a costly
session fixture: the days with the demo's site; the running site, which has no Airflow; HDFS with Spark and
its brokers. The files of such a group run in the order in which they stand here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

DAYS: Final = (
    "tests/days/test_newcomer.py",
    "tests/days/test_reader.py",
    "tests/days/test_data_engineer.py",
    "tests/dags/test_airflow_end_to_end.py",
    "tests/dags/test_airflow_drill.py",
    "tests/days/test_operator.py",
    "tests/days/test_platform_engineer.py",
)
SITE: Final = (
    "tests/cli/test_cli_commands.py",
    "tests/cli/test_audit_drill.py",
    "tests/cli/test_topics_new.py",
    "tests/terraform/test_provider_site.py",
    "tests/kill/test_kill_units.py",
    "tests/kill/test_kill_loads.py",
)
SPARK: Final = (
    "tests/warehouse/test_job.py",
    "tests/hostile/test_readers_load.py",
    "tests/hostile/test_readers_schemas.py",
    "tests/hostile/test_readers_values.py",
    "tests/tables/test_pages_run.py",
    "tests/tables/test_tables.py",
    "tests/tables/test_evolution.py",
    "tests/tables/test_daily_active_users.py",
    "tests/warehouse/test_changed_files.py",
    "tests/warehouse/test_hive_paths.py",
    "tests/warehouse/test_load.py",
    "tests/warehouse/test_load_by_datacenter.py",
    "tests/warehouse/test_load_decoders.py",
    "tests/warehouse/test_load_without_partitions.py",
    "tests/warehouse/test_made_again.py",
    "tests/warehouse/test_refill.py",
    "tests/warehouse/test_repair_end_to_end.py",
    "tests/warehouse/test_source_peer.py",
    "tests/warehouse/test_source_spark.py",
    "tests/warehouse/test_hdfs_problems.py",
    # These need HDFS alone.
    "tests/backup/test_backup_hdfs.py",
    "tests/warehouse/test_commitlog.py",
    "tests/warehouse/test_from_source.py",
    "tests/warehouse/test_hdfs.py",
    "tests/warehouse/test_hdfs_page.py",
    "tests/warehouse/test_move.py",
    "tests/warehouse/test_sealed_rows.py",
    "tests/warehouse/test_versions.py",
)
SHARING: Final = (DAYS, SITE, SPARK)
_GROUPS: Final = {
    **dict.fromkeys(DAYS, "days"),
    **dict.fromkeys(SITE, "site"),
    **dict.fromkeys(SPARK, "spark"),
}
# What a session has one of, with the group whose files may use it.
SHARED: Final = {"demo_site": "days", "running_site": "site", "spark": "spark", "hdfs": "spark"}
# The order in which groups and files start; all others follow. The long ones are early, so that no process is
# alone with one in the end.
ORDER: Final = (
    ("days",),
    ("site",),
    ("spark",),
    ("tests/dags/test_airflow_environment.py",),
    ("tests/network/",),
    ("tests/backup/test_backup_site.py",),
    ("tests/test_lint.py",),
    ("tests/clients/",),
    ("tests/terraform/", "tests/hostile/", "tests/fleet/"),
    ("tests/audit/", "tests/broker/", "tests/client/", "tests/cli/", "tests/mirror/", "tests/bench/"),
)
# What keeps the processors busy: whole sites, with their JVMs. Tests that mostly wait run beside them.
HEAVY: Final = (
    "days",
    "site",
    "spark",
    "tests/dags/test_airflow_environment.py",
    "tests/network/",
)
HEAVY_AT_ONCE_MAX: Final = 2


def next_group(waiting: Sequence[str], running: Iterable[str]) -> str:
    """The group to begin next: the first that waits, but no heavy one while enough of them run."""
    heavy_count = sum(group.startswith(HEAVY) for group in running)
    if heavy_count < HEAVY_AT_ONCE_MAX:
        return waiting[0]
    return next((group for group in waiting if not group.startswith(HEAVY)), waiting[0])


def group_of(nodeid: str) -> str:
    """The group that a test's file belongs to, or the file itself."""
    file = nodeid.partition("::")[0]
    return _GROUPS.get(file, file)


def place_of(nodeid: str) -> tuple[int, int]:
    """Where a test stands among others: the place of its group, and its file's place in the group."""
    group, file = group_of(nodeid), nodeid.partition("::")[0]
    places = (place for place, groups in enumerate(ORDER) if group.startswith(groups))
    in_group = next((files.index(file) for files in SHARING if file in files), 0)
    return next(places, len(ORDER)), in_group
