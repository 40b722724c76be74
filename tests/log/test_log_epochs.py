"""The leader epochs of a log, and the address up to which two logs agree."""

from __future__ import annotations

from typing import SupportsIndex

import pytest

from headrace.log.epochs import UNKNOWN_EPOCH, EpochEnd, EpochStart, LeaderEpochs

LOG = LeaderEpochs([EpochStart(2, 100), EpochStart(5, 300), EpochStart(6, 400)])


@pytest.mark.parametrize(
    ("epoch", "expected"),
    [
        (-1, UNKNOWN_EPOCH),
        (1, EpochEnd(1, 100)),
        (2, EpochEnd(2, 300)),
        (4, EpochEnd(2, 300)),
        (5, EpochEnd(5, 400)),
        (6, EpochEnd(6, 450)),
        (7, UNKNOWN_EPOCH),
    ],
)
def test_end_of_is_the_start_of_the_next_epoch(epoch: int, expected: EpochEnd) -> None:
    assert LOG.end_of(epoch, 450) == expected


def test_a_log_without_epochs_knows_none() -> None:
    assert LeaderEpochs().end_of(0, 10) == UNKNOWN_EPOCH
    assert LeaderEpochs().latest == -1


@pytest.mark.parametrize(
    "starts", [[(1, 5), (1, 9)], [(2, 5), (1, 9)], [(1, 5), (2, 5)], [(1, 5), (2, 4)], [(-1, 0)]]
)
def test_starts_that_do_not_ascend_are_refused(starts: list[tuple[int, int]]) -> None:
    with pytest.raises(ValueError, match="does not follow"):
        LeaderEpochs(map(EpochStart._make, starts))


def noted(*epochs: int) -> LeaderEpochs:
    made = LeaderEpochs()
    for at, epoch in enumerate(epochs):
        made.note(epoch, 10 * at)
    return made


@pytest.mark.parametrize(
    ("epochs", "expected"),
    [
        ((1, 1, 2, 2), [(1, 0), (2, 20)]),
        ((1, 1, 99, 1, 1, 2), [(1, 0), (2, 50)]),  # the third batch's field rotted upwards
        ((3, 3, 5, 5, 1, 5, 6), [(3, 0), (5, 20), (6, 60)]),  # the fifth one's downwards
        ((-1, -1, 4), [(4, 20)]),
        ((4, -1, 4), [(4, 0)]),
    ],
)
def test_one_batch_with_a_rotten_epoch_is_passed_over(
    epochs: tuple[int, ...], expected: list[tuple[int, int]]
) -> None:
    assert noted(*epochs).starts() == tuple(map(EpochStart._make, expected))


def test_truncate_forgets_what_begins_there() -> None:
    epochs = LeaderEpochs(LOG)
    epochs.truncate(300)
    assert epochs.starts() == ((2, 100),)
    assert epochs.latest == 2
    epochs.truncate(0)
    assert epochs.latest == -1


def test_forget_before_moves_the_first_start() -> None:
    epochs = LeaderEpochs(LOG)
    epochs.forget_before(350)
    assert epochs.starts() == ((5, 350), (6, 400))
    epochs.forget_before(20)
    assert epochs.starts() == ((5, 350), (6, 400))


def test_while_one_thread_truncates_another_may_ask() -> None:
    """The loop saves high watermarks while a thread cuts a followed log."""
    log = LeaderEpochs([EpochStart(2, 100), EpochStart(5, 300), EpochStart(6, 400)])
    asked: list[int] = []

    class Watched(list[int]):
        def __delitem__(self, at: SupportsIndex | slice) -> None:
            super().__delitem__(at)
            asked.append(log.at(1_000))

    log._epochs, log._addresses = Watched(log._epochs), Watched(log._addresses)
    log.truncate(150)
    assert log.starts() == (EpochStart(2, 100),) and set(asked) == {5, 2}
