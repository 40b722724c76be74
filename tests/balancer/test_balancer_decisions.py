"""The pure parts: backends, the configuration and commands of HAProxy, its responses, the page."""

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from headrace.balancer.backends import (
    CHECKS_TO_FALL,
    Backend,
    Health,
    Phase,
    after_fronts,
    choose,
    without_drained,
)
from headrace.balancer.haproxy_config import (
    CHECK_RESPONSE,
    AdminState,
    HaproxyServer,
    HaproxySettings,
    commands,
    config_text,
    parse_figures,
    parse_servers,
)
from headrace.balancer.page import page
from headrace.coordination.fronts import Front
from headrace.process.page import render

SETTINGS = HaproxySettings(("127.1.0.3", 9092), Path("/run/h/haproxy.sock"), 10_000, ("127.1.0.3", 8404))
ONE = Backend(1, ("127.1.0.11", 9093), Phase.READY)
TWO = Backend(2, ("127.1.0.12", 9093), Phase.DRAINING)

CONFIGURATION = """\
global
    maxconn 10000
    hard-stop-after 86400s
    stats socket /run/h/haproxy.sock mode 600 level admin expose-fd listeners

defaults
    mode tcp
    timeout connect 2000ms
    timeout check 2000ms
    timeout client 3600s
    timeout server 3600s
    timeout client-fin 30s
    timeout server-fin 30s
    retries 3
    option redispatch 1

frontend producers
    bind 127.1.0.3:9092
    option clitcpka
    option contstats
    default_backend brokers

backend brokers
    balance leastconn
    option srvtcpka
    option tcp-check
    tcp-check connect
    tcp-check send-binary 0000000a0012000000000001ffff
    tcp-check expect binary 000000010000
    server broker-1 127.1.0.11:9093 check inter 500ms fall 3 rise 1 on-marked-down shutdown-sessions

listen statistics
    mode http
    bind 127.1.0.3:8404
    timeout http-request 10s
    stats enable
    stats uri /
    stats refresh 5s
"""


def test_the_configuration_of_haproxy() -> None:
    assert config_text(SETTINGS, [ONE, TWO]) == CONFIGURATION
    assert CHECK_RESPONSE.hex() == "000000010000"


def test_backends_become_ready_drain_and_are_dropped() -> None:
    front = Front(1, "127.1.0.11", 9093)
    known = after_fronts({}, [front])
    assert known == {1: ONE}
    known = after_fronts(known, [Front(2, "127.1.0.12", 9093)])
    assert {each: backend.phase for each, backend in known.items()} == {1: Phase.DRAINING, 2: Phase.READY}
    assert without_drained(known, {1: 3}) == known
    assert list(without_drained(known, {1: 0, 2: 0})) == [2]
    moved = after_fronts(known, [Front(1, "127.1.0.11", 9999)])
    assert moved[1] == Backend(1, ("127.1.0.11", 9999), Phase.READY), "it is back at another address"


def test_the_commands_for_a_running_haproxy() -> None:
    add = "add server brokers/broker-1 127.1.0.11:9093 check inter 500ms fall 3 rise 1 on-marked-down "
    assert commands({}, [ONE, TWO]) == [
        add + "shutdown-sessions",
        "enable health brokers/broker-1",
        "set server brokers/broker-1 state ready",
    ]
    there = {
        "broker-1": HaproxyServer(ONE.address, AdminState.READY),
        "broker-2": HaproxyServer(TWO.address, AdminState.DRAIN),
    }
    assert commands(there, [ONE, TWO]) == []
    assert commands(there | {"broker-2": HaproxyServer(TWO.address, AdminState.READY)}, [ONE, TWO]) == [
        "disable health brokers/broker-2",
        "set server brokers/broker-2 state drain",
    ]
    assert commands(there, [ONE]) == [
        "set server brokers/broker-2 state maint",
        "del server brokers/broker-2",
    ]
    assert commands({"broker-1": HaproxyServer(("127.0.0.1", 1), AdminState.MAINT)}, [ONE]) == [
        "set server brokers/broker-1 addr 127.1.0.11 port 9093",
        "enable health brokers/broker-1",
        "set server brokers/broker-1 state ready",
    ]


backends = st.dictionaries(
    st.integers(0, 5),
    st.tuples(st.sampled_from([9093, 9094]), st.sampled_from(Phase)),
).map(lambda made: [Backend(each, ("127.0.0.1", port), phase) for each, (port, phase) in made.items()])


@given(backends, backends)
def test_the_commands_produce_the_wanted_state(before: list[Backend], wanted: list[Backend]) -> None:
    servers = {
        each.name: HaproxyServer(
            each.address, AdminState.READY if each.phase is Phase.READY else AdminState.DRAIN
        )
        for each in before
    }
    checked = {name for name, server in servers.items() if server.admin is AdminState.READY}
    for command in commands(servers, wanted):
        verb, _, rest = command.partition(" server brokers/")
        match verb, *rest.split():
            case "add", name, address, *_:
                host, _, port = address.partition(":")
                servers[name] = HaproxyServer((host, int(port)), AdminState.MAINT)
            case "del", name:
                assert servers.pop(name).admin is AdminState.MAINT
                checked.discard(name)
            case "set", name, "state", state:
                servers[name] = servers[name]._replace(admin=AdminState(state))
            case "set", name, "addr", host, "port", port:
                servers[name] = servers[name]._replace(address=(host, int(port)))
            case _:
                verb, name = command.split(" health brokers/")
                (checked.add if verb == "enable" else checked.remove)(name)
    assert commands(servers, wanted) == []
    ready = {each.name for each in wanted if each.phase is Phase.READY}
    assert {name for name, server in servers.items() if server.admin is AdminState.READY} == ready
    assert checked == ready, "draining and deleted servers have no health checks"


def test_the_responses_of_haproxy() -> None:
    # Recorded from HAProxy 2.6.12.
    text = """1
# be_id be_name srv_id srv_name srv_addr srv_op_state srv_admin_state srv_uweight srv_iweight \
srv_time_since_last_change srv_check_status srv_check_result srv_check_health srv_check_state \
srv_agent_state bk_f_forced_id srv_f_forced_id srv_fqdn srv_port srvrecord srv_use_ssl srv_check_port \
srv_check_addr srv_agent_addr srv_agent_port
3 brokers 1 broker-1 127.77.0.11 2 0 1 1 1 15 3 3 6 0 0 0 - 9291 - 0 0 - - 0
3 brokers 2 broker-2 127.77.0.11 2 8 1 1 1 15 3 3 6 0 0 0 - 9292 - 0 0 - - 0
3 brokers 3 broker-3 127.77.0.11 2 1 1 1 1 15 3 3 6 0 0 0 - 9293 - 0 0 - - 0

"""
    assert parse_servers(text) == {
        "broker-1": HaproxyServer(("127.77.0.11", 9291), AdminState.READY),
        "broker-2": HaproxyServer(("127.77.0.11", 9292), AdminState.DRAIN),
        "broker-3": HaproxyServer(("127.77.0.11", 9293), AdminState.MAINT),
    }
    assert parse_servers("\n") == {}
    stat = """# pxname,svname,scur,stot,econ,bin,bout,status,check_status,
producers,FRONTEND,1,9,,10,20,OPEN,,
brokers,broker-1,2,7,0,5,6,UP 1/3,* L7OK,
brokers,broker-2,,,,,,DOWN,L7TOUT,
brokers,BACKEND,1,9,0,10,20,UP,,

"""
    found = parse_figures(stat)
    assert set(found) == {"broker-1", "broker-2"}
    assert found["broker-1"] == (True, 2, 7, 0, 5, 6, "L7OK")
    assert not found["broker-2"].is_up


def test_health_falls_slowly_and_rises_at_once() -> None:
    health = Health()
    assert not health.after(good=False).is_up
    health = health.after(good=True)
    for _ in range(CHECKS_TO_FALL - 1):
        health = health.after(good=False)
        assert health.is_up
    assert health.after(good=True).after(good=False).is_up
    assert not health.after(good=False).is_up


def test_the_backend_with_the_fewest_connections_is_chosen() -> None:
    assert choose([1, 2, 3], {1: 4, 2: 3, 3: 3}, {2: 9, 3: 8}) == 3
    assert choose([1], {}, {}) == 1
    assert choose([], {1: 4}, {}) is None


def test_the_page_shows_every_backend_and_escapes() -> None:
    row = {"broker_id": 1, "address": "127.1.0.11:9093", "phase": "ready", "is_up": False, "check": "<gone>"}
    status = {"engine": "embedded", "why": "a & b", "listen": "h:1", "problem": "none <is> up"}
    text = render(page({**status, "backends": [row], "withdrawn": []}), 0).decode()
    assert "127.1.0.11:9093" in text
    assert "&lt;gone&gt;" in text
    assert "none &lt;is&gt; up" in text
    assert "a &amp; b" in text
