"""Clients that are set to SASL, which our brokers do not have: they are to end, and to say so."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from kio.schema.errors import ErrorCode
from kio.schema.sasl_handshake.v1.request import SaslHandshakeRequest

from fix_broker import RawClient, StartCluster
from fix_java import KafkaTool
from fix_ports import free_port

pytestmark = pytest.mark.real_client

SETTINGS = """\
security.protocol=SASL_PLAINTEXT
sasl.mechanism=PLAIN
sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required username="u" password="p";
"""
ENDS_WITHIN_S = 30.0
"""Far below the two minutes of `delivery.timeout.ms`; a JVM's start is in it."""


@pytest.mark.parametrize("site", ["datacenter", "apache_kafka"])
def test_java_ends_and_names_sasl(
    site: str, request: pytest.FixtureRequest, kafka_tool: KafkaTool, tmp_path: Path
) -> None:
    """Its connections were closed: it named firewalls, and tried again until its time was over."""
    settings = tmp_path / "sasl.properties"
    settings.write_text(SETTINGS)
    bootstrap = request.getfixturevalue(site).bootstrap
    command = kafka_tool.command(
        "org.apache.kafka.tools.ConsoleProducer",
        *("--bootstrap-server", bootstrap, "--topic", "sasl", "--command-config", str(settings)),
    )
    done = subprocess.run(command, input=b"one\n", capture_output=True, timeout=ENDS_WITHIN_S, check=False)
    said = (done.stdout + done.stderr).decode()
    assert "IllegalSaslStateException" in said or "Unexpected handshake request" in said, said
    assert "Firewall" not in said, said


def test_a_front_refuses_the_handshake_too(broker_cluster: StartCluster) -> None:
    front = f"127.0.0.1:{free_port('127.0.0.1')}"
    broker_cluster(1, arguments=lambda _: ["--front-listen", front, "--front-advertise", front])
    with RawClient(front) as client:
        answer = client.call(SaslHandshakeRequest(mechanism="PLAIN"))
    assert (answer.error_code, answer.mechanisms) == (ErrorCode.illegal_sasl_state, ())
