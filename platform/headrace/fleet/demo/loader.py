"""The demo's loads: Spark, kept warm, loads what is new (`python -m headrace.fleet.demo.loader`).

Owns the pace. A load itself is `headrace.warehouse`'s; in
production Airflow runs it by the hour.
"""

from __future__ import annotations

import argparse
import logging
import time
from typing import Final

from headrace.warehouse.api import load
from headrace.warehouse.loading import LoadResult
from headrace.warehouse.session import spark_conf, spark_session

from .told import tell, until_told_to_stop

PAUSE_S: Final = 1.0
# This JVM lives for a minute: the optimising compiler would cost it more than it gains.
SHORT_LIVED_JVM: Final = "-XX:TieredStopAtLevel=1"


def main() -> None:
    options = _options()
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    stop = until_told_to_stop()
    java_options = spark_conf(local=True)["spark.driver.extraJavaOptions"]
    spark = spark_session(
        "headrace demo", conf={"spark.driver.extraJavaOptions": f"{java_options} {SHORT_LIVED_JVM}"}
    )
    tell(spark="ready")
    rows = 0
    while True:
        is_last = stop.is_set()
        (result,) = load(
            spark,
            [options.topic],
            bootstrap=options.bootstrap,
            registry_url=options.registry,
            hdfs_url=options.hdfs_url,
            webhdfs_url=options.webhdfs_url,
            datacenter=options.datacenter,
        )
        if result.sequence is not None:
            rows += result.rows
            tell(rows=rows, dead_lettered=result.dead_lettered, load=_told(result))
        elif is_last:
            break
        stop.wait(PAUSE_S)
    tell(done=True)
    spark.stop()


def _told(result: LoadResult) -> dict[str, object]:
    return {
        "readable_ms": int(time.time() * 1000),
        "sequence": result.sequence,
        "rows": result.rows,
        "files": result.files,
        "seconds": round(result.seconds, 1),
        "ranges": [(each.partition, each.from_address, each.to_address) for each in result.ranges],
    }


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m headrace.fleet.demo.loader", description=__doc__)
    parser.add_argument("--datacenter", required=True)
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--registry", required=True)
    parser.add_argument("--hdfs-url", required=True)
    parser.add_argument("--webhdfs-url", required=True)
    parser.add_argument("--topic", required=True)
    return parser.parse_args()


if __name__ == "__main__":
    main()
