"""The demo's loads and seals: runs of Airflow's DAGs, triggered over its REST API.

Owns when a run is triggered, and what the runs have committed, which it reads from the commit log in HDFS.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple

from headrace.demo.outcome import DemoLoad
from headrace.fleet.airflow_client import AirflowClient, Run, RunFailedError
from headrace.fleet.airflow_units import airflow_of
from headrace.site.site import Site
from headrace.warehouse.commitlog import CommitLog
from headrace.warehouse.hdfs.client import HdfsClient
from headrace.warehouse.layout import TopicPaths
from headrace.warehouse.manifest import Manifest
from headrace.warehouse.options import DEFAULT_ROOT
from headrace.warehouse.seal import is_stale, seals

POLL_INTERVAL_S: Final = 1.0
SEAL_START_TIMEOUT_S: Final = 60.0
SEAL_TIMEOUT_S: Final = 600.0
# The kinds of changes that add rows to the table.
ADDING: Final = ("load", "replay")


class DemoLoads:
    """The runs of `load-<topic>` in one run of the demo, one after the other while events arrive.

    `begin_at`: the sequence number that the first change of this run will have. Methods raise `SiteError` and
    `HdfsError`.
    """

    def __init__(
        self,
        airflow: AirflowClient,
        log: CommitLog,
        begin_at: int,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.topic = log.paths.topic
        self.rows = 0
        self.last: Run | None = None
        self._airflow = airflow
        self._log = log
        self._manifests: list[Manifest] = []
        self._begin_at = begin_at
        self._clock = clock
        self._polled_at = -POLL_INTERVAL_S
        self._is_running = self._covers_all = False
        self.is_done = False

    def poll(self, arrived: int, *, is_all: bool) -> None:
        """Updates `rows` and `is_done`, at most once a second; triggers a run if there are events to load.

        `arrived` events can be loaded now; `is_all`: no more will arrive. `is_done` becomes true once all are
        loaded, or a run that was triggered after the last arrival has ended. Raises `RunFailedError`.
        """
        if self.is_done or self._clock() - self._polled_at < POLL_INTERVAL_S:
            return
        self._polled_at = self._clock()
        self._manifests += self._log.manifests(self._begin_at + len(self._manifests))
        self.rows = sum(manifest.rows for manifest in self._manifests if manifest.kind in ADDING)
        if self._is_running:
            assert self.last is not None
            run = self._airflow.run(self.last.dag_id, self.last.run_id)
            if run.state == "failed":
                raise RunFailedError(run, self._airflow.problems(run))
            self._is_running = not run.has_ended
        elif self._covers_all or (is_all and self.last is not None and self.rows >= arrived):
            self.is_done = True
        elif arrived > self.rows or is_all:
            if self.last is None:
                # Each load triggers this DAG through an asset, unless it is paused.
                self._airflow.unpause(f"seal-{self.topic}")
            self.last = self._airflow.trigger(f"load-{self.topic}")
            self._is_running, self._covers_all = True, is_all

    def committed(self) -> list[DemoLoad]:
        """Returns the committed loads that added rows."""
        return [
            DemoLoad(
                manifest.committed_ms,
                {part.partition: (part.from_address, part.to_address) for part in manifest.ranges},
                len(manifest.files),
            )
            for manifest in self._manifests
            if manifest.kind in ADDING
        ]


@contextmanager
def loads_of(site: Site, topic: str, begin_at: int) -> Iterator[DemoLoads]:
    """The loads of a running site; closes their connections at the end."""
    with airflow_of(site) as airflow, HdfsClient(site.webhdfs_url) as hdfs:
        yield DemoLoads(airflow, CommitLog(hdfs, TopicPaths(DEFAULT_ROOT, topic)), begin_at)


class Sealing(NamedTuple):
    """The hours (Unix ms) that have a valid seal, and the problem that keeps others from being sealed."""

    hours_ms: frozenset[int]
    problem: str | None


def wait_for_seals(site: Site, topic: str, load: Run) -> Sealing:
    """Waits for the run of `seal-<topic>` that the run `load` has triggered. Raises `SiteError`."""
    problem = None
    with airflow_of(site) as client:
        run = client.run_caused_by(f"seal-{topic}", load, timeout_s=SEAL_START_TIMEOUT_S)
        try:
            client.wait(run, timeout_s=SEAL_TIMEOUT_S)
        except RunFailedError as error:
            problem = "; ".join(error.problems.values()) or str(error)
    with HdfsClient(site.webhdfs_url) as hdfs:
        paths = TopicPaths(DEFAULT_ROOT, topic)
        state = CommitLog(hdfs, paths).state()
        valid = [hour for hour, seal in seals(hdfs, paths).items() if not is_stale(state, seal, hour)]
    return Sealing(frozenset(valid), problem)
