"""The leader epochs of a log, and the address up to which two logs agree."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.log.epochs import UNKNOWN_EPOCH, EpochEnd, EpochStart, LeaderEpochs, agreed_end

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


Batch = tuple[int, int]  # epoch, size


@st.composite
def two_logs(draw: st.DrawFn) -> tuple[list[Batch], list[Batch]]:
    """Two logs of one partition. What a leader appends in its epoch goes behind a prefix of another log, and
    each log has a prefix of it.
    """
    logs: list[list[Batch]] = [[], []]
    for epoch in range(draw(st.integers(1, 8))):
        leader = draw(st.integers(0, 1))
        written = [(epoch, size) for size in draw(st.lists(st.integers(1, 3), max_size=4))]
        base = logs[leader]
        logs[leader] = base + written
        if draw(st.booleans()):
            # The other one follows: it is cut back to what both have, and copies a part of the rest.
            agreed = common(base + written, logs[1 - leader])
            behind = draw(st.integers(agreed, len(base) + len(written)))
            logs[1 - leader] = (base + written)[:behind]
    return logs[0], logs[1]


def common(one: list[Batch], other: list[Batch]) -> int:
    """Returns how many batches two logs have in common, from their beginning."""
    count = 0
    for mine, theirs in zip(one, other, strict=False):
        if mine != theirs:
            break
        count += 1
    return count


def epochs_of(log: list[Batch]) -> tuple[LeaderEpochs, int]:
    made, address = LeaderEpochs(), 0
    for epoch, size in log:
        assert made.note(epoch, address)
        address += size
    return made, address


@given(two_logs())
def test_agreed_end_is_where_two_logs_part(logs: tuple[list[Batch], list[Batch]]) -> None:
    copy, source = logs
    own, own_end = epochs_of(copy)
    theirs, their_end = epochs_of(source)
    asked: list[int] = []

    def ask(epoch: int) -> EpochEnd:
        asked.append(epoch)
        return theirs.end_of(epoch, their_end)

    expected = sum(size for _, size in copy[: common(copy, source)])
    found = agreed_end(own, own_end, ask)
    if found is None:
        # Nothing in common, as the ends of epochs tell it.
        assert expected == 0
    elif expected == 0:
        assert found <= (source[0][1] if not copy else 0) or found == 0
    else:
        assert found == expected
    assert len(asked) == len(set(asked)) <= len(own)


def test_a_copy_whose_source_lost_its_latest_epochs_is_compared_below_them() -> None:
    own = LeaderEpochs([EpochStart(1, 0), EpochStart(4, 50), EpochStart(9, 70)])
    theirs = LeaderEpochs([EpochStart(1, 0), EpochStart(3, 40)])
    assert agreed_end(own, 90, lambda epoch: theirs.end_of(epoch, 60)) == 40


def test_an_impossible_answer_is_an_error() -> None:
    with pytest.raises(ValueError, match="answered with 8"):
        agreed_end(LOG, 450, lambda _: EpochEnd(8, 500))
