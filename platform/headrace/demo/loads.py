"""The demo's loads and seals: runs of Airflow's DAGs, triggered over its REST API.

Owns when a run is triggered and what came of it. A load itself is the DAG's business; what it has committed
is read from the commit log in HDFS.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple

from headrace.demo.outcome import Load
from headrace.fleet.airflow_client import AirflowClient, Run, RunFailedError
from headrace.fleet.airflow_units import USER, airflow_password, airflow_url
from headrace.site.errors import SiteError
from headrace.site.site import Site
from headrace.warehouse.commitlog import CommitLog
from headrace.warehouse.hdfs.client import HdfsClient
from headrace.warehouse.layout import TopicPaths
from headrace.warehouse.manifest import Manifest
from headrace.warehouse.options import DEFAULT_ROOT
from headrace.warehouse.seal import is_stale, seals

LOOK_INTERVAL_S: Final = 1.0
CAUSED_TIMEOUT_S: Final = 60.0
SEAL_TIMEOUT_S: Final = 600.0
# The kinds of changes that bring rows which were not there before.
BRINGING: Final = ("load", "replay")


def airflow_of(site: Site) -> AirflowClient:
    """A client of the site's own Airflow. Raises `SiteError` where there is none."""
    password = airflow_password(site)
    if password is None:
        raise SiteError(f"Airflow has never been started in {site.home}; start the site: `headrace up`")
    return AirflowClient(airflow_url(site), user=USER, password=password)


class Loads:
    """The runs of `load-<topic>` of one demo, one after the other while events arrive.

    `begin_at` is the number of the first change of the table that is this demo's. Raises `SiteError` and
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
        self._looked_at = -LOOK_INTERVAL_S
        self._is_running = self._took_all = False
        self.is_done = False

    def look(self, arrived: int, *, is_all: bool) -> None:
        """Asks how far things are, at most once a second; triggers a run when there is something to load.

        `arrived` events can be loaded by now; `is_all`: no more will come. `is_done` is true once all of them
        are loaded, or a run that began after the last one came has ended. Raises `RunFailedError`.
        """
        if self.is_done or self._clock() - self._looked_at < LOOK_INTERVAL_S:
            return
        self._looked_at = self._clock()
        self._manifests += self._log.manifests(self._begin_at + len(self._manifests))
        self.rows = sum(each.rows for each in self._manifests if each.kind in BRINGING)
        if self._is_running:
            assert self.last is not None
            run = self._airflow.run(self.last.dag_id, self.last.run_id)
            if run.state == "failed":
                raise RunFailedError(run, self._airflow.reasons(run))
            self._is_running = not run.has_ended
        elif self._took_all or (is_all and self.last is not None and self.rows >= arrived):
            self.is_done = True
        elif arrived > self.rows or is_all:
            if self.last is None:
                # It follows the loads; Airflow wakes only what is not paused.
                self._airflow.unpause(f"seal-{self.topic}")
            self.last = self._airflow.trigger(f"load-{self.topic}")
            self._is_running, self._took_all = True, is_all

    def committed(self) -> list[Load]:
        """The loads that brought something."""
        return [
            Load(
                each.committed_ms,
                {part.partition: (part.from_address, part.to_address) for part in each.ranges},
                len(each.files),
            )
            for each in self._manifests
            if each.kind in BRINGING
        ]


@contextmanager
def loads_of(site: Site, topic: str, begin_at: int) -> Iterator[Loads]:
    """The loads of a running site."""
    with airflow_of(site) as airflow, HdfsClient(site.webhdfs_url) as hdfs:
        yield Loads(airflow, CommitLog(hdfs, TopicPaths(DEFAULT_ROOT, topic)), begin_at)


class Sealing(NamedTuple):
    """What sealing came to: the hours (Unix ms) that have a seal which holds, and why others have none."""

    hours_ms: frozenset[int]
    refusal: str | None


def wait_for_seals(site: Site, topic: str, load: Run) -> Sealing:
    """Waits for the run of `seal-<topic>` that follows the run `load`. Raises `SiteError`."""
    refusal = None
    with airflow_of(site) as client:
        run = client.run_caused_by(f"seal-{topic}", load, timeout_s=CAUSED_TIMEOUT_S)
        try:
            client.wait(run, timeout_s=SEAL_TIMEOUT_S)
        except RunFailedError as error:
            refusal = "; ".join(error.reasons.values()) or str(error)
    with HdfsClient(site.webhdfs_url) as hdfs:
        paths = TopicPaths(DEFAULT_ROOT, topic)
        state = CommitLog(hdfs, paths).state()
        held = [hour for hour, seal in seals(hdfs, paths).items() if not is_stale(state, seal, hour)]
    return Sealing(frozenset(held), refusal)
