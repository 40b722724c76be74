"""How a plant in a real installation is judged: by number, by place, by count; and what of it is false."""

from __future__ import annotations

from dataclasses import replace

import pytest

from drill import drill_replicas
from drill.drill_plants import Number, Place, SitePlant
from drill.drill_truth import Outcome, Score
from fix_audit_world import HOUR_A
from headrace.audit.findings import MIRROR_HOP, PRODUCER_HOP, Counts, Finding, Status, Verdict

TOPIC = "drill-1"
VICTIMS = {Number(0, 7, 1, sequence) for sequence in (3, 4, 5)}
LOST = SitePlant("lost", TOPIC, (Status.LOST,), VICTIMS)
UNREADABLE = SitePlant("swapped", TOPIC, (Status.CORRUPT,), VICTIMS, (Place(0, 100, 200), Place(1, 100, 200)))
UNNUMBERED = SitePlant("acks=0", TOPIC, (Status.LOST,), unnumbered_count=4)


def finding(status: Status, first: int, last: int, epoch: int = 1) -> Finding:
    return Finding(
        status,
        PRODUCER_HOP,
        "text",
        last - first + 1,
        partition=0,
        producer_id=7,
        producer_epoch=epoch,
        sequences=(first, last),
    )


def place(partition: int, low: int, high: int, status: Status = Status.CORRUPT) -> Finding:
    return Finding(status, PRODUCER_HOP, "text", partition=partition, after_address=low, before_address=high)


def count(status: Status, events: int, hop: str = PRODUCER_HOP) -> Finding:
    return Finding(status, hop, "text", events)


def verdicts(*findings: Finding, topic: str = TOPIC) -> list[Verdict]:
    status = findings[0].status if findings else Status.COMPLETE
    return [Verdict(topic, "east", HOUR_A, status, Counts(0, 0, 0, 0, 0), {}, findings)]


@pytest.mark.parametrize(
    ("plant", "findings", "judged"),
    [
        (LOST, [finding(Status.LOST, 3, 5)], (Outcome.NAMED, 0)),
        (LOST, [finding(Status.LOST, 3, 3), finding(Status.LOST, 4, 5)], (Outcome.NAMED, 0)),
        (LOST, [], (Outcome.MISSED, 0)),
        (LOST, [finding(Status.LOST, 3, 4)], (Outcome.UNKNOWN, 0)),
        (LOST, [finding(Status.UNKNOWN, 3, 5)], (Outcome.UNKNOWN, 0)),
        (LOST, [finding(Status.DUPLICATED, 3, 5)], (Outcome.UNKNOWN, 0)),
        (LOST, [finding(Status.LOST, 3, 6)], (Outcome.NAMED, 1)),
        (LOST, [finding(Status.LOST, 3, 5, epoch=2)], (Outcome.WRONG_PLACE, 3)),
        (UNREADABLE, [place(0, 100, 200), place(1, 0, 300)], (Outcome.NAMED, 0)),
        (UNREADABLE, [place(0, 100, 150), place(0, 150, 200), place(1, 100, 200)], (Outcome.NAMED, 0)),
        (UNREADABLE, [place(0, 100, 200)], (Outcome.UNKNOWN, 0)),
        (UNREADABLE, [place(0, 100, 200), place(1, 100, 200, Status.LOST)], (Outcome.UNKNOWN, 0)),
        (UNREADABLE, [place(0, 100, 200), place(0, 300, 400)], (Outcome.UNKNOWN, 0)),
        (UNNUMBERED, [count(Status.LOST, 4), count(Status.UNKNOWN, 20)], (Outcome.NAMED, 0)),
        (UNNUMBERED, [count(Status.LOST, 3)], (Outcome.UNKNOWN, 0)),
        (UNNUMBERED, [count(Status.LOST, 6)], (Outcome.NAMED, 2)),
        (UNNUMBERED, [count(Status.LOST, 4, MIRROR_HOP)], (Outcome.UNKNOWN, 0)),
        (UNNUMBERED, [], (Outcome.MISSED, 0)),
    ],
)
def test_a_plant_is_named_only_by_what_is_true_of_it(
    plant: SitePlant, findings: list[Finding], judged: tuple[Outcome, int]
) -> None:
    others = verdicts(finding(Status.LOST, 0, 99), topic="another")
    assert plant.judge([*others, *verdicts(*findings)]) == judged


def test_where_nothing_was_planted_any_finding_is_too_much() -> None:
    nothing = SitePlant("nothing", TOPIC)
    assert nothing.is_harmless
    assert nothing.judge(verdicts()) == (Outcome.NAMED, 0)
    assert nothing.judge([]) == (Outcome.UNKNOWN, 0)
    assert nothing.judge(verdicts(finding(Status.LOST, 3, 5))) == (Outcome.UNKNOWN, 3)


def test_what_was_silenced_must_not_be_complete() -> None:
    silenced = SitePlant("silenced", TOPIC, is_silenced=True)
    assert silenced.judge(verdicts()) == (Outcome.MISSED, 0)
    assert silenced.judge(verdicts(count(Status.UNKNOWN, 3))) == (Outcome.NAMED, 0)


def test_of_a_log_that_grew_again_what_the_copy_lacks_of_the_later_service_is_true() -> None:
    grown = replace(LOST, grows=True)
    later = replace(finding(Status.LOST, 0, 2), hop=MIRROR_HOP, service="later", producer_id=9)
    assert grown.judge(verdicts(finding(Status.LOST, 3, 5), later)) == (Outcome.NAMED, 0)
    assert LOST.judge(verdicts(finding(Status.LOST, 3, 5), later)) == (Outcome.NAMED, 3)


def test_the_score_says_where_a_plant_is_and_what_the_audit_said_instead() -> None:
    score = Score()
    found = verdicts(finding(Status.UNKNOWN, 3, 5), finding(Status.LOST, 6, 6))
    outcome, false = LOST.judge(found)
    score.of("lost").add(outcome, false, 7, LOST.place, LOST.sentences(found))
    data = score.to_json()["kinds"]["lost"]
    place = f"{TOPIC} must be lost, 3 events from (0, 7, 1, 3) to (0, 7, 1, 5)"
    assert [(each["what"], each["place"]) for each in data["answers"]] == [
        ("wrong place", place),
        ("false", place),
    ]
    assert data["answers"][0]["said"][1:] == (f"{PRODUCER_HOP}: text", f"{PRODUCER_HOP}: text")
    assert place in score.table() and data["seeds"] == {"wrong place": [7], "false": [7]}
    named = Score()
    named.of("lost").add(Outcome.NAMED, 0, 7, LOST.place, LOST.sentences(found))
    assert named.to_json()["kinds"]["lost"]["answers"] == []


def test_a_replicas_harm_is_named_only_if_its_broker_is() -> None:
    of_follower = replace(place(0, 100, 200), text="other bytes are on the disk of broker 2, a follower")
    of_leader = replace(of_follower, text="other bytes are on the disk of broker 1, its leader")
    harmed = replace(UNREADABLE, places=(Place(0, 100, 200),))
    assert drill_replicas.judged(harmed, verdicts(of_follower)) == (Outcome.NAMED, 0)
    assert drill_replicas.judged(harmed, verdicts(of_leader)) == (Outcome.WRONG_PLACE, 0)
    assert drill_replicas.judged(harmed, verdicts()) == (Outcome.MISSED, 0)
    assert drill_replicas.judged(SitePlant("nothing", TOPIC), verdicts()) == (Outcome.NAMED, 0)
