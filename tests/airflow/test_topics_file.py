"""topics.yaml: the plans of a valid file, and the errors of an invalid one."""

import errno
import os
from datetime import timedelta
from pathlib import Path

import pytest

from headrace.airflow.topics import (
    TopicsFileError,
    check_loads,
    parse_declarations,
    parse_topics,
    read_all,
    read_declarations,
    read_loads,
    read_topics,
)
from headrace.warehouse.schedule import LoadSchedule


def plans(text: str) -> tuple[LoadSchedule, ...]:
    return parse_topics(text, where="topics.yaml")


def test_the_shipped_file_is_valid() -> None:
    read = read_topics(Path(__file__).parents[2] / "dags" / "topics.yaml")
    assert [plan.topic for plan in read] == ["page-view"]
    assert all(plan.completeness == 1.0 and plan.output == "/data" for plan in read)


def test_a_topic_overrides_the_defaults_field_by_field() -> None:
    one, two = plans(
        """
defaults: {owner: platform, grace: 30m, retention: 90d}
topics:
  clicks: {}
  orders: {schedule: null, completeness: 0.999, retention: null, output: /warehouse, retries: 0}
"""
    )
    assert one == LoadSchedule(
        topic="clicks", owner="platform", grace=timedelta(minutes=30), retention=timedelta(days=90)
    )
    assert two == LoadSchedule(
        topic="orders",
        owner="platform",
        schedule=None,
        completeness=0.999,
        grace=timedelta(minutes=30),
        retention=None,
        output="/warehouse",
        retries=0,
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("topics: [", "topics.yaml is not YAML"),
        ("- page-view", "topics.yaml must be a mapping of names to values"),
        ("topics: {}", "topics is empty; name at least one topic"),
        ("defaults: {owner: a}", "topics must be a mapping"),
        ("other: 1\ntopics: {a: {owner: b}}", "unknown field 'other'; known are defaults, topics"),
        ("topics: {a: {ownr: b}}", "topic a: unknown field 'ownr'"),
        ("topics: {a: {}}", "topic a: owner is missing"),
        ("topics: {a: {owner: ' '}}", "topic a: owner is missing"),
        ("topics: {1: {owner: b}}", "1 is not a name; quote it"),
        ("topics: {'a/b': {owner: b}}", "topic a/b: not a valid topic name"),
        ("topics: {'..': {owner: b}}", "topic ..: not a valid topic name"),
        ("topics: {a: {owner: 5}}", "topic a: owner is missing"),
        (f"topics: {{a: {{owner: {'b' * 201}}}}}", "is not a contact of at most 200 printable characters"),
        ('topics: {a: {owner: "b\\0"}}', "is not a contact of at most 200 printable characters"),
        (f"topics: {{a: {{owner: b, schedule: '{'1,' * 180}1 * * * *'}}}}", "of at most 180 characters"),
        ("topics: {a: {owner: b, output: /dätä}}", "printable characters of ASCII"),
        ('topics: {a: {owner: b, output: "/a\\0b"}}', "printable characters of ASCII"),
        (f"topics: {{a: {{owner: b, output: /{'a' * 1000}}}}}", "of at most 1000 printable characters"),
        ("topics: {a: {owner: b, schedule: soon}}", "schedule 'soon' is not a cron expression"),
        (
            "topics: {a: {owner: b, schedule: '0 0 30 2 *'}}",
            "schedule '0 0 30 2 *' is not a cron expression",
        ),
        ("topics: {a: {owner: b, schedule: 10}}", "schedule 10 is not a cron expression"),
        ("topics: {a: {owner: b, output: data}}", "output 'data' is not an absolute HDFS directory"),
        ("topics: {a: {owner: b, output: /data/../etc}}", "is not an absolute HDFS directory"),
        ("topics: {a: {owner: b, completeness: 99.9}}", "completeness 99.9 is not a share"),
        ("topics: {a: {owner: b, completeness: true}}", "completeness True is not a share"),
        ("topics: {a: {owner: b, completeness: 0}}", "completeness 0 is not a share"),
        ("topics: {a: {owner: b, grace: 10}}", "grace 10 is not a duration such as 30s, 10m, 6h or 90d"),
        ("topics: {a: {owner: b, grace: null}}", "grace None is not a duration"),
        (
            "topics: {a: {owner: b, retention: 9999999d}}",
            "retention '9999999d' is not an age of 1h at least, such as 36h or 90d, up to 3660d",
        ),
        ("topics: {a: {owner: b, retention: 0s}}", "(m: minutes); null keeps all hours"),
        ("topics: {a: {owner: b, retention: 6m}}", "retention '6m' is not an age of 1h at least"),
        ("topics: {a: {owner: b, retries: -1}}", "retries -1 is not a number from 0 to 20"),
    ],
)
def test_an_error_names_topic_field_and_value(text: str, message: str) -> None:
    with pytest.raises(TopicsFileError, match=r"^[^\n]+$") as error:
        plans(text)
    assert message in str(error.value)


def test_all_problems_are_named_at_once_with_their_lines() -> None:
    text = """
defaults:
  grace: soon
  gracious: 1h
topics:
  clicks: {owner: a, retries: 50}
  orders:
    output: data
    shedule: null
  views: {owner: b, grace: 1h}
"""
    with pytest.raises(TopicsFileError, match=r"^topics\.yaml: [^\n]+$") as error:
        plans(text)
    told = str(error.value).removeprefix("topics.yaml: ").split("; line ")
    assert [each.removeprefix("line ").partition(" is ")[0].partition("; known")[0] for each in told] == [
        "3: defaults: grace 'soon'",
        "4: defaults: unknown field 'gracious'; did you mean 'grace'?",
        "6: topic clicks: retries 50",
        "7: topic orders: owner",
        "8: topic orders: output 'data'",
        "9: topic orders: unknown field 'shedule'; did you mean 'schedule'?",
    ]
    many = "".join(f"  t{number}: {{retries: -1, owner: a}}\n" for number in range(100))
    with pytest.raises(TopicsFileError, match=r"line 21: topic t19: [^;]*; and 80 more$"):
        plans(f"topics:\n{many}")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(TopicsFileError, match=r"nothing\.yaml cannot be read: No such file"):
        read_topics(tmp_path / "nothing.yaml")


def test_loads_at_the_agent_override_the_file(tmp_path: Path) -> None:
    (tmp_path / "topics.yaml").write_text("topics: {clicks: {owner: a}, orders: {owner: a}}")
    (tmp_path / "loads").mkdir()
    (tmp_path / "loads" / "orders.json").write_text('{"owner": "b", "schedule": null, "grace": "1h"}')
    read = read_all(tmp_path / "topics.yaml", {"HEADRACE_HOME": str(tmp_path)})
    assert read == (
        LoadSchedule(topic="clicks", owner="a"),
        LoadSchedule(topic="orders", owner="b", schedule=None, grace=timedelta(hours=1)),
    )


def test_a_load_that_cannot_be_read_keeps_no_other_topic_from_its_dags(tmp_path: Path) -> None:
    """All topics' DAGs were gone for it, such as after an upgrade that takes no retention below an hour. Its
    own topic has none, not those of the file: the file may name another output.
    """
    (tmp_path / "topics.yaml").write_text("topics: {clicks: {owner: a}, orders: {owner: a}}")
    (tmp_path / "loads").mkdir()
    (tmp_path / "loads" / "orders.json").write_text('{"owner": "b", "grace": "soon"}')
    (tmp_path / "loads" / "views.json").write_text('{"owner": "b"}')
    (tmp_path / "loads" / "rotten.json").write_bytes(b"\xff")
    home = {"HEADRACE_HOME": str(tmp_path)}
    assert [each.topic for each in read_all(tmp_path / "topics.yaml", home)] == ["clicks", "views"]
    assert read_loads(home).topics == {"orders", "rotten", "views"}
    problem = r"orders\.json: topic orders: grace 'soon' is not a duration.*; .*rotten\.json cannot be read"
    with pytest.raises(TopicsFileError, match=problem):
        check_loads(home)
    check_loads({})


def test_loads_that_cannot_be_listed_are_not_taken_for_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a restore by root: all their DAGs were gone, or those of the file loaded to another output."""
    (tmp_path / "loads").mkdir()
    (tmp_path / "loads" / "orders.json").write_text('{"owner": "b"}')

    def refuse(*_: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(os, "scandir", refuse)
    monkeypatch.setattr(os, "listdir", refuse)
    with pytest.raises(TopicsFileError, match=r"loads cannot be read: .*Permission denied"):
        read_loads({"HEADRACE_HOME": str(tmp_path)})


def test_declarations_of_producers_are_no_part_of_a_load(tmp_path: Path) -> None:
    text = """
defaults: {owner: platform, producers: any}
topics:
  clicks: {}
  orders: {producers: reporting}
"""
    assert [plan.topic for plan in plans(text)] == ["clicks", "orders"]
    assert parse_declarations(text, where="topics.yaml") == {"clicks": "any", "orders": "reporting"}
    assert parse_declarations("topics: {clicks: {owner: a}}", where="topics.yaml") == {}
    assert read_declarations(tmp_path / "topics.yaml") == {}
    with pytest.raises(TopicsFileError, match="topic clicks: producers 'some' is not reporting or any"):
        parse_declarations("topics: {clicks: {producers: some}}", where="topics.yaml")
