"""The plan of a new topic: what is made, what stays, what contradicts; and the same as HCL."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from headrace.airflow.topics import TopicsFileError, read_defaults
from headrace.coordination.declared import ANY, HISTORY, PRODUCERS, REPORTING
from headrace.fleet.topics import hcl
from headrace.fleet.topics.contract_test import example_event
from headrace.fleet.topics.deciding import Do, Plan, Step, What, decide, merged_load
from headrace.fleet.topics.present import (
    Present,
    PresentDags,
    PresentDatacenter,
    PresentLoad,
    PresentSubject,
    PresentTopic,
)
from headrace.fleet.topics.wanted import EventSchema, NewTopic, NewTopicError, check_name, read_event_schema
from headrace.site.context import context_of
from headrace.site.site import Site
from headrace.warehouse.schedule import parse_schedule

HEADER = json.loads((Path(__file__).parents[2] / "schemas" / "page-view.avsc").read_text())["fields"][0]
MIRRORED = {"headrace.mirror": "true"}
UNPAUSED = PresentDags({"load-placed": False, "seal-placed": False})


def schema_text(*fields: dict[str, Any], name: str = "Placed") -> str:
    return json.dumps({"type": "record", "name": name, "fields": [HEADER, *fields]})


ORDER = {"name": "order_id", "type": "string"}
PRICE = {"name": "price", "type": "double"}
SCHEMA = schema_text(ORDER)


def wanted(text: str = SCHEMA, **options: Any) -> NewTopic:
    return NewTopic(
        "placed", EventSchema(Path("placed.avsc"), text), load_defaults={"owner": "tests"}, **options
    )


def site_with(
    *topics: PresentTopic | None,
    subject: PresentSubject | None = None,
    copy: PresentTopic | None = None,
    load: PresentLoad | None = None,
    dags: PresentDags = UNPAUSED,
) -> Present:
    """East and west with these topics, mirrored into analysis."""
    subject = subject or PresentSubject()
    origins = (PresentDatacenter(f"dc{n}", subject, topic) for n, topic in enumerate(topics))
    names = tuple(f"dc{n}" for n in range(len(topics)))
    return Present((*origins, PresentDatacenter("analysis", subject, copy, names)), load, dags)


def done(plan: Plan) -> dict[tuple[What, str], Do]:
    return {(step.what, step.where): step.do for step in plan.steps}


def conflict(present: Present, **options: Any) -> str:
    (found,) = decide(wanted(**options), present).conflicts
    return found


COMPLETE = site_with(
    PresentTopic(3, {}),
    PresentTopic(3, {}),
    subject=PresentSubject(((1, SCHEMA),), registered=(1, 77)),
    copy=PresentTopic(6, MIRRORED),
    load=PresentLoad(parse_schedule("placed", {"owner": "tests"})),
)


def test_on_a_new_site_everything_is_made_and_copies_are_waited_for() -> None:
    plan = decide(wanted(), site_with(None, None, dags=PresentDags({"load-placed": None})))
    assert plan.conflicts == ()
    assert done(plan) == {
        (What.SCHEMA, "dc0"): Do.MAKE,
        (What.TOPIC, "dc0"): Do.MAKE,
        (What.SCHEMA, "dc1"): Do.MAKE,
        (What.TOPIC, "dc1"): Do.MAKE,
        (What.SCHEMA_COPY, "analysis"): Do.WAIT,
        (What.MIRROR, "analysis"): Do.WAIT,
        (What.LOAD, "Airflow"): Do.MAKE,
        (What.DAGS, "Airflow"): Do.MAKE,
    }
    assert plan.steps[5].detail == "6 partitions of dc0 and dc1, by the mirrors"
    assert (plan.partitions, plan.settings) == (3, {})


def test_what_is_complete_is_kept() -> None:
    plan = decide(wanted(contract_test=Path("t.py")), dataclasses.replace(COMPLETE, has_contract_test=True))
    assert plan.changes == () and plan.conflicts == ()
    assert plan.steps[0] == Step(What.SCHEMA, "dc0", Do.KEEP, "placed-value version 1, id 77")


def test_half_a_topic_is_finished_with_the_partitions_that_are_there() -> None:
    plan = decide(wanted(), site_with(PresentTopic(5, {}), None, copy=PresentTopic(5, MIRRORED)))
    assert plan.partitions == 5
    assert done(plan)[What.TOPIC, "dc0"] is Do.KEEP
    assert done(plan)[What.TOPIC, "dc1"] is Do.MAKE
    assert done(plan)[What.MIRROR, "analysis"] is Do.WAIT, "it has the partitions of one datacenter alone"


def test_settings_go_into_new_topics() -> None:
    plan = decide(wanted(settings={"retention.ms": "1000"}, producers=ANY), site_with(None))
    assert plan.settings == {"retention.ms": "1000", PRODUCERS: ANY}
    assert plan.steps[1].detail == "3 partitions, headrace.producers=any, retention.ms=1000"
    assert decide(wanted(producers=REPORTING), site_with(None)).settings == {}


@pytest.mark.parametrize(
    ("options", "way_out"),
    [
        ({"partitions": 4}, "has 3 partitions, not 4: `headrace topics alter placed -d dc0 -p 4`"),
        ({"partitions": 2}, "has 3 partitions, not 2: a topic never gets fewer"),
        ({"settings": {"retention.ms": "5"}}, "retention.ms the brokers' default, not 5: `headrace topics"),
        (
            {"producers": ANY},
            "declares producers reporting, not any: `headrace topics alter placed -d dc0 --",
        ),
    ],
)
def test_an_option_that_the_topic_contradicts_is_a_conflict(options: dict[str, Any], way_out: str) -> None:
    assert way_out in conflict(site_with(PresentTopic(3, {})), **options)


def test_options_that_the_topic_has_are_none() -> None:
    settings = {"retention.ms": "5", PRODUCERS: ANY, HISTORY: "any@2026-11-22T15Z"}
    present = site_with(PresentTopic(2, settings))
    plan = decide(wanted(partitions=2, settings={"retention.ms": "5"}, producers=ANY), present)
    assert plan.conflicts == ()
    assert HISTORY not in plan.steps[1].detail


def test_a_topic_of_analysis_that_no_mirror_fills_is_a_conflict() -> None:
    found = conflict(site_with(None, copy=PresentTopic(3, {})))
    assert "analysis has a topic placed of its own" in found
    assert "`headrace topics delete placed -d analysis`" in found


def test_a_schema_may_follow_another_one_only_if_it_is_compatible() -> None:
    before = PresentSubject(((1, SCHEMA),), level="FULL")
    more = schema_text(ORDER, {**PRICE, "default": 0.0})
    plan = decide(wanted(more), site_with(None, subject=before))
    assert plan.conflicts == ()
    assert plan.steps[0].detail == "placed-value, after version 1"
    found = conflict(site_with(None, subject=before), text=schema_text(ORDER, PRICE))
    assert "placed.avsc may not follow version 1 (FULL): " in found and "price" in found
    assert "choose another topic" in found
    found = conflict(site_with(None, subject=before), text=schema_text(ORDER, name="Other"))
    assert "NAME_MISMATCH" in found


def test_a_given_level_is_set_where_there_is_none_and_judges_the_schema() -> None:
    bare = PresentSubject(((1, SCHEMA),), level="BACKWARD")
    more = schema_text(ORDER, PRICE)
    assert "(BACKWARD)" in conflict(site_with(None, subject=bare), text=more)
    plan = decide(wanted(more, compatibility="FORWARD"), site_with(None, subject=bare))
    assert plan.conflicts == ()
    assert done(plan)[What.COMPATIBILITY, "dc0"] is Do.MAKE
    own = PresentSubject(((1, SCHEMA),), level="FULL", own_level="FULL", registered=(1, 77))
    assert done(decide(wanted(compatibility="FULL"), site_with(None, subject=own)))[
        What.COMPATIBILITY, "dc0"
    ] is (Do.KEEP)
    assert "has the compatibility FULL, not NONE" in conflict(
        site_with(None, subject=own), compatibility="NONE"
    )


def test_a_load_is_changed_at_the_agent_and_nowhere_else() -> None:
    schedule = parse_schedule("placed", {"owner": "shop", "grace": "1h"})
    present = dataclasses.replace(COMPLETE, load=PresentLoad(schedule))
    assert done(decide(wanted(), present))[What.LOAD, "Airflow"] is Do.KEEP, "no option was given"
    assert done(decide(wanted(load={"grace": "60m"}), present))[What.LOAD, "Airflow"] is Do.KEEP
    changed = wanted(load={"grace": "5m"})
    step = next(each for each in decide(changed, present).steps if each.what is What.LOAD)
    assert (step.do, step.detail.partition(";")[0]) == (Do.CHANGE, "grace")
    stored = {"owner": "shop", "grace": "1h"}
    assert merged_load(changed, present.load, stored) == {"owner": "shop", "grace": "5m"}
    assert merged_load(changed, None, {}) == {"owner": "tests", "grace": "5m"}
    listed = dataclasses.replace(COMPLETE, load=PresentLoad(schedule, Path("topics.yaml")))
    assert decide(wanted(), listed).changes == ()
    assert "topics.yaml loads placed with grace 1:00:00, not 0:05:00" in conflict(
        listed, load={"grace": "5m"}
    )
    assert conflict(COMPLETE, load={"grace": "soon"}).startswith("--load: grace 'soon' is not a duration")
    assert "unknown field 'gracious'" in conflict(COMPLETE, load={"gracious": "5m"})


def test_dags_that_are_paused_are_started() -> None:
    def do(**paused: bool | None) -> Do:
        present = dataclasses.replace(COMPLETE, dags=PresentDags(paused))
        return done(decide(wanted(), present))[What.DAGS, "Airflow"]

    assert [do(a=False, b=False), do(a=True, b=False), do(a=None, b=None)] == [Do.KEEP, Do.CHANGE, Do.MAKE]
    present = dataclasses.replace(COMPLETE, dags=PresentDags({"a": None}, "there is no Airflow"))
    assert done(decide(wanted(), present))[What.DAGS, "Airflow"] is Do.SKIP


# --- what needs no server ---


@pytest.mark.parametrize("name", ["", "a b", "a/b", "..", "_audit", "x" * 201, "é"])
def test_names_that_a_topic_cannot_have(name: str) -> None:
    with pytest.raises(NewTopicError, match="is not a name for a topic"):
        check_name(name)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{", "is not an Avro schema"),
        ('"string"', "it is not a record"),
        ('{"type": "record", "name": "A", "fields": []}', "its first field is not `header`"),
        (
            json.dumps({"type": "record", "name": "A", "fields": [ORDER, HEADER]}),
            "its first field is not `header`",
        ),
        (
            SCHEMA.replace('"logicalType": "timestamp-millis"', '"doc": "ms"'),
            "header.time is not a long with",
        ),
        (SCHEMA.replace('"guid"', '"uuid"'), "header.uuid has no default, .*its header lacks the field guid"),
        (
            schema_text({"name": "next", "type": ["null", "Placed"], "default": None}),
            "a type holds itself, which no table can store",
        ),
    ],
)
def test_schemas_that_no_event_can_have(tmp_path: Path, text: str, problem: str) -> None:
    file = tmp_path / "placed.avsc"
    file.write_text(text)
    with pytest.raises(NewTopicError, match=problem):
        read_event_schema(file)


def test_a_schema_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(NewTopicError, match=r"none.avsc cannot be read: No such file"):
        read_event_schema(tmp_path / "none.avsc")
    (tmp_path / "bytes.avsc").write_bytes(b"\xff\xfe\xff")
    with pytest.raises(NewTopicError, match="it is not text"):
        read_event_schema(tmp_path / "bytes.avsc")


def test_the_defaults_of_a_topics_file_are_those_of_a_new_load(tmp_path: Path) -> None:
    file = tmp_path / "topics.yaml"
    assert read_defaults(file) == {}
    file.write_text("defaults: {grace: 1m, producers: any}\ntopics: {a: {owner: x}}")
    assert read_defaults(file) == {"grace": "1m"}
    file.write_text("defaults: {gracious: 1m}\ntopics: {a: {owner: x}}")
    with pytest.raises(TopicsFileError, match="unknown field 'gracious'"):
        read_defaults(file)


# --- HCL ---


def test_the_resources_of_terraform(tmp_path: Path) -> None:
    context = context_of(Site.one_machine(tmp_path))
    topic = wanted(
        settings={"retention.ms": "604800000"},
        producers=ANY,
        compatibility="FULL",
        load={"owner": '${x} "y"', "completeness": 0.99},
    )
    text = hcl.blocks(topic, context)
    assert [line for line in text.splitlines() if line.startswith("resource")] == [
        'resource "headrace_topic" "placed" {',
        'resource "headrace_schema" "placed" {',
        'resource "headrace_load" "placed" {',
    ]
    assert '    east = ["127.1.0.11:9092", "127.1.0.12:9092", "127.1.0.13:9092"]' in text
    assert '    west = "http://127.2.0.3:8081"' in text
    assert "analysis =" not in text
    assert 'config            = { "retention.ms" = "604800000" }' in text
    assert 'schema        = file("${path.module}/placed.avsc")' in text
    assert 'owner        = "$${x} \\"y\\""' in text
    assert "completeness = 0.99" in text
    without = context.model_copy(update={"airflow_url": None})
    assert "headrace_load" not in hcl.blocks(topic, without)


def test_an_example_of_a_record_that_contains_itself_has_an_end() -> None:
    node = {
        "type": "record",
        "name": "Node",
        "fields": [
            {"name": "value", "type": "int"},
            {"name": "next", "type": ["null", "Node"]},
            {"name": "children", "type": {"type": "array", "items": "Node"}},
        ],
    }
    event = example_event(schema_text({"name": "tree", "type": node}))
    assert event == {"tree": {"value": 1, "next": None, "children": []}}
