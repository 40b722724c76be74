"""Contexts: made of Terraform's outputs and of a site, chosen in one order, and shown by every command."""

from __future__ import annotations

import inspect
import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import typer.main
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.agent.home import AgentHome
from headrace.cli import contexts, topics
from headrace.cli import main as cli
from headrace.cli.errors import ExitCode
from headrace.site.context import Context, ContextError, context_of, parse_outputs
from headrace.site.context_store import ContextStore
from headrace.site.site import Site

ASKED = (ExitCode.DONE, ExitCode.UNREACHABLE)
"""The command asked these brokers; on this machine another site may have their addresses, and answer."""
STORE = "postgresql://audit:hunter2@10.0.0.9/audit"


def output(value: object, **more: object) -> dict[str, object]:
    return {"sensitive": False, "type": "dynamic", "value": value, **more}


# As terraform/examples/linkedin prints them.
LINKEDIN = {
    "analysis": output(
        {
            "airflow_url": "http://127.209.0.7:8080",
            "bootstrap_servers": ["127.209.0.11:9092", "127.209.0.12:9092"],
            "hdfs_url": "hdfs://127.209.0.31:8020",
            "mirrors": {
                "east": "http://127.209.0.21:8083/status",
                "west": "http://127.209.0.22:8083/status",
            },
            "registry_url": "http://127.209.0.3:8081",
            "webhdfs_url": "http://127.209.0.31:9870",
            "zookeeper": "127.209.0.2:2181",
        }
    ),
    "datacenters": output(
        {
            name: {
                "balancer": f"127.{number}.0.3:9092",
                "bootstrap_servers": [f"127.{number}.0.{broker}:9092" for broker in (11, 12, 13)],
                "brokers": 3,
                "registry_url": f"http://127.{number}.0.3:8081",
                "zookeeper": f"127.{number}.0.2:2181",
            }
            for number, name in ((201, "east"), (202, "west"))
        }
    ),
    "audit_store": output(STORE, sensitive=True),
}


class Result(NamedTuple):
    exit_code: int
    out: str
    err: str


Headrace = Callable[..., Result]


@pytest.fixture
def home(empty_home: Path) -> Path:
    # Addresses that no other site of this machine has.
    (empty_home / "site.yaml").write_text("block: 205\n")
    return empty_home


@pytest.fixture
def headrace(home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Headrace:
    def run(*words: object, stdin: str = "") -> Result:
        capsys.readouterr()
        monkeypatch.setattr(sys, "argv", ["headrace", *map(str, words)])
        monkeypatch.setattr(sys, "stdin", io.StringIO(stdin))
        with pytest.raises(SystemExit) as ended:
            cli.main()
        captured = capsys.readouterr()
        return Result(int(ended.value.code or 0), captured.out, captured.err)

    return run


# --- Terraform's outputs ---


def test_the_outputs_of_the_linkedin_example() -> None:
    context = parse_outputs(json.dumps(LINKEDIN), "prod")
    assert context.origin == "terraform"
    assert {each.name: each.bootstrap for each in context.datacenters} == {
        "analysis": "127.209.0.11:9092,127.209.0.12:9092",
        "east": "127.201.0.11:9092,127.201.0.12:9092,127.201.0.13:9092",
        "west": "127.202.0.11:9092,127.202.0.12:9092,127.202.0.13:9092",
    }
    assert context.default_datacenter.name == "east", "services publish there"
    assert context.analysis.zookeeper == "127.209.0.2:2181"
    assert {(each.source, each.target) for each in context.mirrors} == {
        ("east", "analysis"),
        ("west", "analysis"),
    }
    assert (context.hdfs_url, context.webhdfs_url) == ("hdfs://127.209.0.31:8020", "http://127.209.0.31:9870")
    assert context.audit_store_url == STORE


def test_an_output_may_be_a_whole_module() -> None:
    module = {
        "name": "tokyo",
        "bootstrap_servers": ["10.0.0.1:9092"],
        "brokers": {"1": {"host": "a", "listen": "10.0.0.1:9092", "unit": "tokyo-broker-1"}},
        "source": {"name": "tokyo", "bootstrap_servers": ["10.0.0.1:9092"], "units": {}},
        "balancer": None,
        "registry_url": None,
        "zookeeper": None,
    }
    context = parse_outputs(json.dumps({"anything": output(module), "version": output(3)}), "prod")
    (datacenter,) = context.datacenters
    assert (datacenter.name, datacenter.bootstrap) == ("tokyo", "10.0.0.1:9092")
    for part, field in ((datacenter, "zookeeper"), (datacenter, "registry"), (context, "webhdfs_url")):
        with pytest.raises(ContextError, match=r"this context does not have .*outputs"):
            getattr(part, field)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not what `terraform output -json` prints"),
        ("[" * 100_000, "not what `terraform output -json` prints"),
        ('publish_to = "127.0.0.1:9092"', "not what `terraform output -json` prints"),
        ('["127.0.0.1:9092"]', "these are no outputs"),
        ('{"east": {"bootstrap_servers": ["a:1"]}}', "these are no outputs"),
        ("{}", "which are nothing at all"),
        (json.dumps({"size": output(3)}), "which are size; a datacenter is an object with bootstrap_servers"),
        (json.dumps({"east": output({"bootstrap_servers": []})}), "no datacenter is among the outputs"),
        (json.dumps({"No Name": output({"bootstrap_servers": ["a:1"]})}), "do not describe an installation"),
        (
            json.dumps({"a": output({"bootstrap_servers": ["10.0.0.5:99092"]})}),
            "'10.0.0.5:99092' is not a broker address; give host:port",
        ),
        (
            json.dumps({"a": output({"bootstrap_servers": ["a:1"], "registry_url": "10.0.0.5:8081"})}),
            "'10.0.0.5:8081' is not a registry's URL",
        ),
        (
            json.dumps({"a": output({"bootstrap_servers": ["a:1"], "mirrors": "http://a:8083/status"})}),
            "mirrors of a is 'http://a:8083/status', expected an object of source = URL",
        ),
        (
            json.dumps({"a": output({"bootstrap_servers": ["a:1"], "mirrors": "none"})}),
            "do not describe an installation",
        ),
        (
            json.dumps({each: output({"name": "x", "bootstrap_servers": [each]}) for each in ("a:1", "b:1")}),
            "two datacenters 'x'",
        ),
    ],
)
def test_other_texts_are_refused_with_the_way_out(text: str, message: str) -> None:
    with pytest.raises(ContextError, match=message) as caught:
        parse_outputs(text, "prod")
    assert "\n" not in str(caught.value)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["bootstrap_servers", "name", "mirrors", "value", "zookeeper", "x"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.dictionaries(st.sampled_from(["east", "audit_store", "x"]), JSON.map(output), max_size=3))
def test_no_output_breaks_the_import(outputs: dict[str, object]) -> None:
    try:
        context = parse_outputs(json.dumps(outputs), "prod")
    except ContextError:
        return
    assert context.datacenters
    assert Context.model_validate_json(context.model_dump_json()) == context


# --- on disk ---


def test_a_context_survives_and_only_its_owner_reads_it(home: Path) -> None:
    store = ContextStore(home)
    context = parse_outputs(json.dumps(LINKEDIN), "prod")
    store.save(context)
    assert store.load("prod") == context
    assert (store.folder / "prod.json").stat().st_mode & 0o777 == 0o600
    assert store.folder.stat().st_mode & 0o777 == 0o700
    assert store.names() == ["site", "prod"]
    assert store.in_use() is None
    store.use("prod")
    assert ContextStore(home).in_use() == "prod"
    with pytest.raises(ContextError, match=r"no context 'other' .* there are site, prod"):
        store.use("other")
    for content in (b"{", b"[" * 100_000, b"\xff", b"[]", b'{"format": 1, "name": 1e999}'):
        (store.folder / "prod.json").write_bytes(content)
        with pytest.raises(ContextError, match=r"prod\.json is not a context.*Import it again"):
            store.load("prod")
    (store.folder / "in-use").write_bytes(b"\xff")
    with pytest.raises(ContextError, match=r"in-use holds no context's name"):
        store.in_use()


@pytest.mark.parametrize("name", ["site", "", "../x", "A", "a" * 41, "a/b", "prod\n"])
def test_other_names_are_refused(home: Path, name: str) -> None:
    store = ContextStore(home)
    with pytest.raises(ContextError):
        store.save(parse_outputs(json.dumps(LINKEDIN), "prod").model_copy(update={"name": name}))
    assert not store.folder.exists()


def test_the_context_of_a_site_has_all_its_addresses(home: Path) -> None:
    site = Site.load(home)
    context = context_of(site)
    east = context.datacenter("east")
    assert (east.bootstrap, east.zookeeper, east.registry) == (
        site.datacenter("east").bootstrap,
        str(site.datacenter("east").zookeeper),
        site.datacenter("east").registry_url,
    )
    assert [each.name for each in context.sources] == ["east", "west"]
    assert context.analysis.name == "analysis"
    assert context.audit_store_url == site.audit_store_url
    assert [each.status_url for each in context.mirrors] == [
        f"http://{site.mirror_status(mirror)}/status" for mirror in site.mirrors
    ]


# --- the commands ---


@pytest.mark.parametrize("password", ["hunter2", "hun/ter2", "hun:ter2", ":/hunter2"])
def test_no_password_of_a_store_is_shown(password: str) -> None:
    for user in ("audit", ""):
        shown = contexts._without_password(f"postgresql+psycopg://{user}:{password}@db/audit?sslmode=on")
        assert shown == f"postgresql+psycopg://{user}:(hidden)@db/audit?sslmode=on"
    shown = contexts._without_password(f"postgresql://db/audit?user=a&PASSWORD={password}&x=1")
    assert shown == "postgresql://db/audit?user=a&PASSWORD=(hidden)&x=1"
    for plain in ("sqlite:////home/a:b@c/audit.db", "postgresql://audit@db/audit", None):
        assert contexts._without_password(plain) == plain


def test_import_use_list_and_show(headrace: Headrace, home: Path) -> None:
    made = headrace("context", "import", "prod", stdin=json.dumps(LINKEDIN))
    assert made.exit_code == 0, made.err
    assert "made context prod: analysis, east, west" in made.out
    assert "commands work on context prod now" in made.out, "the first one is in use at once"
    again = headrace("context", "import", "prod", stdin=json.dumps(LINKEDIN))
    assert "replaced context prod" in again.out
    other = home / "other"
    other.mkdir()
    (other / "site.yaml").write_text("block: 206\n")
    assert headrace("context", "import", "staging", "--site", other / "site.yaml").exit_code == 0
    rows = json.loads(headrace("context", "list", "--json").out)
    assert [(row["context"], row["origin"], row["in_use"]) for row in rows] == [
        ("site", "site", False),
        ("prod", "terraform", True),
        ("staging", "site.yaml", False),
    ]
    shown = headrace("context", "show").out
    assert "127.201.0.11:9092" in shown
    assert "hunter2" not in shown and "(hidden)" in shown
    assert "hunter2" not in headrace("context", "show", "prod", "--json").out
    assert headrace("context", "use", "staging").exit_code == 0
    assert "127.207.0.11:9092" in headrace("context", "show").out
    refused = headrace("context", "use", "nothing")
    assert refused.exit_code != 0 and "there is no context 'nothing'" in refused.err


def test_the_option_comes_before_the_variable_before_the_choice(
    headrace: Headrace, monkeypatch: pytest.MonkeyPatch
) -> None:
    def header(*words: str) -> str:
        result = headrace("topics", "list", *words)
        assert result.exit_code in ASKED, result.err
        return result.err.splitlines()[0]

    assert header() == (
        "context site, datacenter east (127.206.0.11:9092,127.206.0.12:9092,127.206.0.13:9092)"
    )
    headrace("context", "import", "prod", stdin=json.dumps(LINKEDIN))
    assert header("-d", "west").startswith("context prod, datacenter west (127.202.0.11:9092,")
    monkeypatch.setenv("HEADRACE_CONTEXT", "site")
    assert header("-d", "west").startswith("context site, datacenter west (127.207.0.11:9092,")
    assert header("--context", "prod", "-d", "east").startswith("context prod, datacenter east (127.201.0.11")
    assert header("-b", "127.206.0.1:1") == "no context, brokers 127.206.0.1:1"
    unknown = headrace("topics", "list", "--context", "prod", "-d", "north")
    assert "datacenter 'north' is not part of context prod; it has analysis, east, west" in unknown.err


def test_where_terraform_made_other_brokers_east_is_not_guessed(headrace: Headrace, home: Path) -> None:
    units = AgentHome(home).units
    units.mkdir(parents=True)

    def unit(name: str, listen: str, made_by: str) -> None:
        configuration = {"kind": "broker", "datacenter": "east", "listen": listen}
        record = {"format": 1, "is_applied": True, "made_by": made_by, "configuration": configuration}
        (units / f"{name}.json").write_text(json.dumps(record))

    # As the demo makes them: Terraform provisions exactly what the site describes.
    unit("east-broker-1", "127.206.0.11:9092", "terraform")
    unit("other-broker", "127.206.9.11:9092", "headrace up")
    assert headrace("topics", "list", "-d", "east").exit_code in ASKED
    unit("east-broker-2", "10.0.0.5:9092", "terraform")
    refused = headrace("topics", "list", "-d", "east")
    assert refused.exit_code == ExitCode.USAGE
    assert "east-broker-2 at 10.0.0.5:9092" in refused.err
    assert "headrace context import" in refused.err
    assert headrace("topics", "list", "--context", "site").exit_code in ASKED
    headrace("context", "import", "prod", stdin=json.dumps(LINKEDIN))
    assert "context prod" in headrace("topics", "list", "-d", "east").err


def every_command(command: Any, words: tuple[str, ...] = ()) -> dict[tuple[str, ...], Any]:
    if not hasattr(command, "commands"):
        return {words: command}
    found: dict[tuple[str, ...], Any] = {}
    for name, child in command.commands.items():
        found |= every_command(child, (*words, name))
    return found


def test_every_command_that_talks_to_a_datacenter_takes_a_context() -> None:
    commands = every_command(typer.main.get_command(cli.app))
    local = {
        "up",
        "down",
        "status",
        "restart",
        "logs",
        "agent",
        "demo",
        "context",
        "log",
        "dump-log",
        "completion",
        "backup",
    }
    mends_this_home = {"restore"}
    for words, command in commands.items():
        options = {flag for param in command.params for flag in param.opts}
        if words[0] in mends_this_home:
            assert "--context" not in options, words
        elif words[0] in local:
            assert "--context" not in options, words
            assert "--datacenter" not in options, words
        else:
            assert "--context" in options, words
    assert {words[0] for words in commands} >= local | mends_this_home


def test_the_option_changes_nothing_else_of_a_command() -> None:
    callbacks = [each.callback for each in topics.app.registered_commands if each.callback is not None]
    (create,) = [each for each in callbacks if each.__name__ == "create"]
    names = list(inspect.signature(create).parameters)
    assert names[0] == "topic" and names[-1] == "context_name"
    assert create.__doc__ == topics.create.__doc__
