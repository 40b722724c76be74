"""Whether this broker's disk, and ZooKeeper's data, are those that were there before: an older copy of either
must not pass for it.

A backup that was put back, or a disk that a host's snapshot turned back, holds logs that end early, and the
directory's id of the true one: as a member of the in-sync set its broker could lead without what was
acknowledged. So the directory has an age, which the broker counts up each minute, on the disk first and then
in ZooKeeper. A directory that is younger than ZooKeeper knows becomes another one, by its id: the controller
takes it out of the in-sync sets, as it does with an empty disk, and its logs follow the leaders'. Partitions
that have this replica alone keep it: nobody else has anything.

The disk also has the last age that ZooKeeper confirmed. A ZooKeeper that knows only a smaller one is an
earlier state of itself: its in-sync sets are those of before, and a replica that lagged then could lead
without what was acknowledged since. A broker does not start above it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from headrace.broker.expiry_clock import ExpiryClock
from headrace.broker.workers import Jobs
from headrace.coordination import znodes
from headrace.coordination.disk_ages import DiskAge, DiskAges
from headrace.coordination.errors import CoordinationError, OlderZooKeeperError
from headrace.log.directory import LogDirectory

logger = logging.getLogger(__name__)

INTERVAL_MS: Final = 60_000.0
"""How much older than the true one a copy may be that is not recognized."""


class DiskAgeing:
    """Of one broker and its data directory. `check` and `grow` block, and are called on a control thread.
    `clock` hears what time it is at ZooKeeper.
    """

    def __init__(
        self, directory: LogDirectory, ages: DiskAges, broker_id: int, clock: ExpiryClock | None = None
    ) -> None:
        self._directory = directory
        self._ages = ages
        self._broker_id = broker_id
        self._clock = clock or ExpiryClock()
        self._is_growing = False

    def check(self) -> None:
        """Gives an older copy another directory id, before the broker registers. Raises
        `CoordinationError`, among them `OlderZooKeeperError`.
        """
        directory, noted = self._directory, self._ages.of(self._broker_id)
        self._check_zookeeper(noted)
        if noted is not None and is_older(DiskAge(directory.directory_id, directory.age), noted):
            logger.error(
                "%s is an older copy of broker %d's disk: its age is %d, and ZooKeeper knows of %d. It "
                "counts as another disk: a replica on it is in sync again once it has fetched what it lacks "
                "from its leader. A partition whose other replicas are gone for good gets a leader by an "
                "unclean election alone, which gives up what was acknowledged since",
                directory.path,
                self._broker_id,
                directory.age,
                noted.age,
            )
            try:
                directory.renew()
            except OSError as error:
                logger.warning("%s: %s; the next start finds the same", directory.path, error)
        elif noted is not None and noted.directory_id == directory.directory_id:
            directory.noted_age = noted.age
        self._grow()

    def begin(self, every: Callable[[float, Callable[[], None]], None], jobs: Jobs) -> None:
        """Counts the age up from now on, one job at a time. `every` is the loop's."""

        def ended(*_: object) -> None:
            self._is_growing = False

        def due() -> None:
            if not self._is_growing:
                self._is_growing = True
                jobs.submit(self.grow, ended)

        every(INTERVAL_MS, due)

    def grow(self) -> None:
        """Counts the age up. What goes wrong is logged: a copy that is made meanwhile is not recognized."""
        try:
            self._grow()
        except CoordinationError as error:
            logger.warning("the age of the disk was not noted in ZooKeeper: %s", error)

    def _grow(self) -> None:
        """Raises `CoordinationError`."""
        directory = self._directory
        self._check_zookeeper(self._ages.of(self._broker_id))
        try:
            directory.grow_older()
        except OSError as error:
            logger.warning("%s: %s; the age of the disk is not counted up", directory.path, error)
            # The time is asked for all the same: what expires makes room on a full disk.
            self._clock.heard(self._ages.touch(self._broker_id))
            return
        age = directory.age
        self._clock.heard(self._ages.note(self._broker_id, DiskAge(directory.directory_id, age)))
        directory.noted_age = age

    def _check_zookeeper(self, noted: DiskAge | None) -> None:
        """Raises `OlderZooKeeperError`. One that knows no age, as a new one, is not suspected."""
        directory = self._directory
        confirmed = DiskAge(directory.directory_id, directory.noted_age)
        if noted is None or not is_older(noted, confirmed):
            return
        noted = self._ages.newest(self._broker_id)
        if noted is None or not is_older(noted, confirmed):
            return
        raise OlderZooKeeperError(
            f"ZooKeeper's data is older than {directory.path}: it had confirmed age {directory.noted_age} of "
            f"this disk, which counts minutes, and now knows of {noted.age}. By its in-sync sets of then a "
            "replica could lead that lacks what was acknowledged since. Put ZooKeeper's newest data back, or "
            "restore the whole site from a backup. To go on without what was acknowledged since, delete "
            f"{znodes.disk(self._broker_id)} in ZooKeeper"
        )


def is_older(found: DiskAge, known: DiskAge) -> bool:
    """Whether what was found is of an earlier state of the same disk than what is known."""
    return found.directory_id == known.directory_id and found.age < known.age
