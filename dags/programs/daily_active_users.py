"""Counts the distinct users of one day of page views with Spark, by datacenter, from its sealed hours.

A user is a signed-in member, else a client address. The result replaces an earlier one of the same day, in
`<output>/day=YYYY-MM-DD/`, with columns `datacenter`, `users`, `views`, `hours` (the number of sealed hours).
"""

from __future__ import annotations

import argparse
import json
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

from pyspark.sql import functions as f

from headrace.warehouse.commitlog import CommitLog
from headrace.warehouse.hdfs.client import HdfsClient
from headrace.warehouse.layout import TopicPaths
from headrace.warehouse.options import WarehouseOptions
from headrace.warehouse.session import spark_session
from headrace.warehouse.tables import spark_frame
from headrace.warehouse.versions import Wanted, choose


def main() -> None:
    options = arguments()
    start = datetime.fromisoformat(options.day).replace(tzinfo=UTC)
    first_ms, end_ms = (round(time.timestamp() * 1000) for time in (start, start + timedelta(days=1)))
    warehouse = WarehouseOptions(
        hdfs_url=options.hdfs_url,
        webhdfs_url=options.webhdfs_url,
        bootstrap=options.bootstrap,
        registry_url=options.registry_url,
        root=options.root,
    )
    with HdfsClient(warehouse.webhdfs_url) as hdfs:
        log = CommitLog(hdfs, TopicPaths(warehouse.root, options.topic))
        # As they were sealed: rows that came later count once their hour is sealed again.
        version = choose(log, Wanted(from_ms=first_ms, until_ms=end_ms))
    if not version.files:
        sys.exit(f"headrace warehouse: no hour of {options.topic} on {options.day} is sealed")
    spark = spark_session(f"daily active users {options.day}")
    views = spark_frame(spark, warehouse, version.files, version.schema)
    users = (
        views.groupBy(f.col("header.datacenter").alias("datacenter"))
        .agg(
            f.countDistinct(f.coalesce("member_id", "remote_host")).alias("users"),
            f.count("*").alias("views"),
        )
        .withColumn("hours", f.lit(len(version.hours)))
        .cache()
    )
    users.coalesce(1).write.mode("overwrite").parquet(
        f"{warehouse.hdfs_url}{options.output}/day={options.day}"
    )
    result = [row.asDict() for row in users.orderBy("datacenter").collect()]
    print(json.dumps(result))
    options.result.write_text(json.dumps(result))
    spark.stop()


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--day", required=True, help="YYYY-MM-DD, in UTC")
    parser.add_argument("--output", required=True, help="directory in HDFS")
    parser.add_argument("--root", default="/data", help="the warehouse's root in HDFS")
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--registry-url", required=True)
    parser.add_argument("--hdfs-url", required=True)
    parser.add_argument("--webhdfs-url", required=True)
    parser.add_argument("--result", type=Path, required=True)
    return parser.parse_args()


if __name__ == "__main__":
    main()
