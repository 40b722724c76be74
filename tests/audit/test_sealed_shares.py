"""An hour that may lack a share of its events is sealed over a known loss alone: nothing makes up for it."""

from dataclasses import replace
from pathlib import Path

import pytest

from fix_audit_world import HOUR_A, TOPIC, Batch, PartitionBytes, everything_reported, load_of, received
from headrace.airflow.proofs import Proof, proofs_of
from headrace.audit.store.store import AuditStore
from headrace.audit.topic.declarations import TopicDeclaration
from headrace.audit.topic.records import CorruptRecord, RangeTally
from headrace.coordination.declared import ANY, Change

HOUR = "2015-05-17T11:00:00"
HANDED_OVER = [Batch(0, 7, 0, first, 10, HOUR_A) for first in range(0, 100, 10)]
SENT_TWICE = [HANDED_OVER[-1]]
OF_NOBODY = [Batch(0, 8, 0, 0, 10, HOUR_A)]


def proof_of(folder: Path, more: list[Batch]) -> Proof:
    """The proof of an hour whose first ten events were lost, and that has more than its publisher told of."""
    log = PartitionBytes()
    for batch in [*HANDED_OVER[1:], *more]:
        log.append(batch.encode())
    url = f"sqlite:///{folder}/audit.db"
    store = AuditStore(url)
    store.fold(everything_reported(HANDED_OVER, {0: log}))
    store.close()
    (proof,) = proofs_of(url, TOPIC, [HOUR])
    assert (proof.status, proof.handed_over, proof.arrived) == ("lost", 100, 90 + 10 * len(more))
    return proof


@pytest.mark.parametrize("more", [SENT_TWICE, OF_NOBODY, [*SENT_TWICE, *OF_NOBODY]])
def test_neither_doubles_nor_rows_of_nobody_make_up_for_a_loss(tmp_path: Path, more: list[Batch]) -> None:
    proof = proof_of(tmp_path, more)
    assert not proof.may_be_sealed(0.95)
    assert not proof.may_be_sealed(0.5), "nobody knows what the hour lacks"
    assert proof.missing is None
    assert Proof.from_json(proof.to_json()) == proof


def test_a_known_loss_is_compared_with_the_share(tmp_path: Path) -> None:
    proof = proof_of(tmp_path, [])
    assert [proof.may_be_sealed(share) for share in (1.0, 0.91, 0.9, 0.5)] == [False, False, True, True]
    assert proof.missing == 10


def test_what_was_accepted_twice_makes_up_for_no_loss() -> None:
    accepted = Proof(TOPIC, HOUR, "lost", 100, 100, "", {}, missing=50)
    assert not accepted.may_be_sealed(0.51) and accepted.may_be_sealed(0.5)


@pytest.mark.parametrize("record_count", [10, None])
def test_what_a_damaged_batch_held_must_be_known_where_only_the_log_counts(
    tmp_path: Path, record_count: int | None
) -> None:
    """No producer says how many events there were, and the log says it of all batches but the damaged one."""
    log = PartitionBytes()
    for batch in HANDED_OVER:
        log.append(batch.encode())
    start, end = log.cuts[0], log.cuts[1]
    cause, of_nobody = "a header that cannot be believed", (-1, -1, -1, -1)
    records = [received(TopicDeclaration(TOPIC, "", (Change(ANY),)))]
    load = load_of({0: log})
    (partition,) = load.partitions
    hours = tuple(each._replace(rows=90, distinct_offsets=90) for each in partition.hours)
    load = replace(load, partitions=(partition._replace(hours=hours),))
    for each in everything_reported([], {0: log}, load=load):
        if not isinstance(each.record, RangeTally):
            records.append(each)
            continue
        tier = each.record.tier
        records.append(received(log.tally(tier, 0, 1, len(HANDED_OVER))))
        place = (tier, "west", TOPIC, 0, 0, start, end, cause, record_count)
        damaged = CorruptRecord(*place, HOUR_A, HOUR_A + 9, *of_nobody, in_tally=False)
        records.append(received(damaged))
    url = f"sqlite:///{tmp_path}/audit.db"
    store = AuditStore(url)
    store.fold(records)
    store.close()
    (proof,) = proofs_of(url, TOPIC, [HOUR])
    assert proof.status == "corrupt" and proof.arrived == 90
    assert proof.may_be_sealed(0.5) is (record_count is not None)
