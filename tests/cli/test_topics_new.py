"""`headrace topics new` on a running site: what it makes, keeps, finishes and refuses; and for Terraform."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from fix_cli import Headrace, command_runner
from fix_site import RunningSite
from headrace.agent.errors import AgentRefusedError
from headrace.agent.local import find_agent
from headrace.cli.errors import ExitCode
from headrace.client import Admin
from headrace.registry.client import SchemaRegistryClient

EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "first-topic" / "order-placed.avsc"
OUTPUTS = {
    "datacenters": {
        "value": {
            "east": {"bootstrap_servers": ["127.106.3.1:9092"], "registry_url": "http://127.106.3.3:8081"},
            "analysis": {
                "bootstrap_servers": ["127.106.4.1:9092"],
                "webhdfs_url": "http://127.106.4.31:9870",
                "airflow_url": "http://127.106.4.7:8080",
                "mirrors": {"east": "http://127.106.4.21:8083/status"},
            },
        }
    }
}


@pytest.fixture
def schema(tmp_path: Path) -> Path:
    """A schema file for a topic of its name, which nothing has yet."""
    name = f"new-{uuid.uuid4().hex[:8]}"
    return Path(shutil.copy(EXAMPLE, tmp_path / f"{name}.avsc"))


def outcomes(headrace: Headrace, *words: object) -> dict[tuple[str, str], str]:
    result = headrace("topics", "new", *words, "--json")
    assert result.exit_code == ExitCode.DONE, result.err
    return {(step["what"], step["where"]): step["outcome"] for step in result.json["steps"]}


@pytest.mark.slow
@pytest.mark.hdfs
def test_a_new_topic_is_made_whole_and_then_kept(
    headrace: Headrace, schema: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = schema.stem
    monkeypatch.chdir(schema.parent)
    words = (topic, "-p", 2, "--retention", "7d", "--retention-size", "1GiB", "--producers", "any")
    plan = outcomes(headrace, *words, "--dry-run")
    assert set(plan.values()) == {"to make", "to copy", "left out"}
    assert topic not in headrace("topics", "list").out
    assert not list(schema.parent.glob("*.py"))

    made = outcomes(headrace, *words, "--owner", "shop")
    test = f"test_{topic.replace('-', '_')}_contract.py"
    assert made == {
        **{(what, where): "made" for what in ("schema", "topic") for where in ("east", "west")},
        **{(what, "analysis"): "copied" for what in ("schema copy", "mirror")},
        ("load", "Airflow"): "made",
        ("DAGs", "Airflow"): "left out",
        ("contract test", test): "made",
    }
    described = headrace("topics", "describe", topic, "-d", "west", "--json").json
    assert described["config"]["retention.ms"] == "604800000"
    assert described["config"]["retention.bytes"] == str(1 << 30)
    assert (described["producers"], len(described["partitions"])) == ("any", 2)
    copy = headrace("topics", "describe", topic, "-d", "analysis", "--json").json
    assert (copy["config"]["headrace.mirror"], len(copy["partitions"])) == ("true", 4)

    again = outcomes(headrace, *words, "--owner", "shop")
    assert set(again.values()) == {"there already", "left out"}
    assert outcomes(headrace, topic).keys() == again.keys(), "options that are left out contradict nothing"
    assert "it was complete already" in headrace("topics", "new", topic).out
    changed = outcomes(headrace, topic, "--load", "schedule=*/5 * * * *")
    assert changed["load", "Airflow"] == "changed"
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", test],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert "3 passed" in done.stdout, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.hdfs
def test_the_load_goes_with_the_last_topic_of_its_name(
    headrace: Headrace, running_site: RunningSite, schema: Path
) -> None:
    topic = schema.stem
    outcomes(headrace, topic, schema, "--no-contract-test")
    first = headrace("topics", "delete", topic, "--yes")
    assert (first.exit_code, "its load stays: west, analysis may still have" in first.out) == (0, True), first
    second = headrace("topics", "delete", topic, "-d", "west", "--yes", "--json").json
    assert second["load"] == {"removed": False, "still_in": ["analysis"]}
    agent = find_agent(running_site.site.home)
    assert agent is not None
    with agent:
        assert agent.load(topic)["owner"]
        last = headrace("topics", "delete", topic, "-d", "analysis", "--yes")
        assert "its load is removed, and with it its DAGs; what is in HDFS stays" in last.out, last
        with pytest.raises(AgentRefusedError, match="is not loaded by this host"):
            agent.load(topic)


@pytest.mark.slow
@pytest.mark.hdfs
def test_a_load_that_outlived_its_topic_is_removed_by_the_same_command(
    headrace: Headrace, running_site: RunningSite, schema: Path
) -> None:
    """The agent may fail once the topic is gone: no command removed the load then."""
    topic = schema.stem
    outcomes(headrace, topic, schema, "--no-contract-test")
    for datacenter in running_site.site.datacenters:
        with Admin(datacenter.bootstrap) as admin:
            admin.delete_topic(topic)
    ended = headrace("topics", "delete", topic, "--yes", "--json")
    assert ended.exit_code == 0, ended
    assert ended.json == {"topic": topic, "deleted": False, "load": {"removed": True, "still_in": []}}
    again = headrace("topics", "delete", topic, "--yes")
    assert again.exit_code == ExitCode.NEGATIVE and "there is no topic" in again.err


@pytest.mark.slow
@pytest.mark.hdfs
def test_a_topic_that_is_made_again_beside_the_old_ones_copy_is_not_called_ready(
    headrace: Headrace, running_site: RunningSite, schema: Path
) -> None:
    """Its mirror halts: what services publish to it would never come to the warehouse."""
    topic = schema.stem
    words = ("topics", "new", topic, schema, "--no-contract-test")
    assert headrace(*words).exit_code == ExitCode.DONE
    event = {"order_id": "1", "customer_id": 7, "total": 19.9, "currency": "EUR"}
    lines = schema.parent / "lines"
    lines.write_text(json.dumps(event) + "\n")
    assert headrace("produce", topic, lines, "--avro").exit_code == ExitCode.DONE
    running_site.wait_mirrored([topic])
    assert headrace("topics", "delete", topic, "-d", "east", "--yes").exit_code == ExitCode.DONE
    for _ in range(2):
        halted = headrace(*words)
        assert halted.exit_code == ExitCode.NEGATIVE, halted
        assert "is ready" not in halted.out
        assert f"analysis does not copy {topic}-" in halted.err
        assert f"`headrace topics delete {topic} -d analysis` deletes the copy" in halted.err
    assert headrace("topics", "delete", topic, "-d", "analysis", "--yes").exit_code == ExitCode.DONE
    made = headrace(*words)
    assert made.exit_code == ExitCode.DONE and "is ready" in made.out, made


@pytest.mark.slow
@pytest.mark.hdfs
def test_half_a_topic_is_finished_and_a_contradiction_changes_nothing(
    headrace: Headrace, running_site: RunningSite, schema: Path
) -> None:
    topic = schema.stem
    east, west = running_site.site.sources
    with Admin(east.bootstrap) as admin, SchemaRegistryClient(east.registry_url) as registry:
        registry.register(f"{topic}-value", schema.read_text())
        admin.create_topic(topic, 4)
    words = (topic, schema, "--no-contract-test")
    wrong = headrace("topics", "new", f"{topic}-b", schema, "--no-contract-test", "-c", "retention.mss=1h")
    assert wrong.exit_code == ExitCode.NEGATIVE and "did you mean 'retention.ms'?" in wrong.err
    refused = headrace("topics", "new", *words, "-p", 2, "--compatibility", "full", "--producers", "any")
    assert refused.exit_code == ExitCode.NEGATIVE
    first, second, rest = refused.err.split("\n", 2)
    assert first == f"error: topic {topic} of east has 4 partitions, not 2: a topic never gets fewer"
    assert f"`headrace topics alter {topic} -d east --producers any` changes it" in second
    assert rest == "note: nothing was changed\n"
    with Admin(west.bootstrap) as admin:
        assert topic not in admin.topics()

    wrong = headrace("topics", "new", *words, "-c", "retention.hours=1")
    assert wrong.exit_code == ExitCode.NEGATIVE
    assert "retention.hours" in wrong.err and "west" in wrong.err

    finished = outcomes(headrace, *words, "--compatibility", "full")
    assert finished["topic", "east"] == finished["schema", "east"] == "there already"
    assert finished["topic", "west"] == finished["schema", "west"] == "made"
    assert finished["compatibility", "east"] == finished["compatibility", "west"] == "made"
    assert len(headrace("topics", "describe", topic, "-d", "west", "--json").json["partitions"]) == 4

    fewer = json.loads(schema.read_text())
    fewer["fields"] = [*fewer["fields"][:-1], {"name": "voucher", "type": "string"}]
    schema.write_text(json.dumps(fewer))
    refused = headrace("topics", "new", *words)
    assert refused.exit_code == ExitCode.NEGATIVE
    assert f"east has another schema of {topic}-value, and {schema} may not follow version 1" in refused.err
    assert "voucher" in refused.err


# --- without a site ---


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HEADRACE_HOME", str(tmp_path))
    monkeypatch.delenv("HEADRACE_CONTEXT", raising=False)
    return tmp_path


@pytest.fixture
def run(home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Headrace:
    """Commands in a home where nothing runs."""
    return command_runner(monkeypatch, capsys)


def test_terraforms_topics_are_left_to_terraform(run: Headrace, home: Path) -> None:
    (home / "outputs.json").write_text(json.dumps(OUTPUTS))
    assert run("context", "import", "prod", home / "outputs.json").exit_code == ExitCode.DONE
    refused = run("topics", "new", "order-placed", EXAMPLE)
    assert refused.exit_code == ExitCode.NEGATIVE
    assert (
        "Terraform manages prod, so nothing was made there: `headrace topics new order-placed" in refused.err
    )
    printed = run("topics", "new", "order-placed", EXAMPLE, "--hcl", "--retention", "7d", "--owner", "shop")
    assert printed.exit_code == ExitCode.DONE, printed.err
    assert 'east = ["127.106.3.1:9092"]' in printed.out
    assert "127.106.4.1" not in printed.out, "mirrors make the topic of analysis"
    assert 'owner    = "shop"' in printed.out
    assert not list(home.glob("*.py"))


def test_the_site_of_another_home_is_named(run: Headrace, home: Path) -> None:
    (home / "site.yaml").write_text("")
    assert run("context", "import", "other", "--site", home).exit_code == ExitCode.DONE
    refused = run("topics", "new", "order-placed", EXAMPLE)
    assert "context other is the site of another home" in refused.err


@pytest.mark.parametrize(
    ("words", "exit_code", "error"),
    [
        (("_x", EXAMPLE), ExitCode.NEGATIVE, "'_x' is not a name for a topic of events"),
        (("placed",), ExitCode.NEGATIVE, "the schema placed.avsc cannot be read: No such file"),
        (
            ("placed", EXAMPLE, "--retention", "7d", "-c", "retention.ms=1"),
            ExitCode.USAGE,
            "give --retention, not --config retention.ms",
        ),
        (("placed", EXAMPLE, "-c", "headrace.producers=any"), ExitCode.USAGE, "give --producers, not"),
        (("placed", EXAMPLE, "--retention", "week"), ExitCode.USAGE, "'week' is not a duration"),
        (("placed", EXAMPLE, "--load", "grace"), ExitCode.USAGE, "'grace' is not NAME=VALUE"),
        (("placed", EXAMPLE, "--owner", "a", "--load", "owner=b"), ExitCode.USAGE, "give either --owner or"),
        (
            ("placed", EXAMPLE, "--contract-test", "t.py", "--no-contract-test"),
            ExitCode.USAGE,
            "give either --contract-test or --no-contract-test",
        ),
        (("placed", EXAMPLE), ExitCode.NEGATIVE, "nothing runs in"),
    ],
)
def test_errors_are_one_line(run: Headrace, words: tuple[str, ...], exit_code: int, error: str) -> None:
    result = run("topics", "new", *words)
    assert (result.exit_code, len(result.err.splitlines())) == (exit_code, 1), result.err
    assert result.err.startswith("error: ") and error in result.err
