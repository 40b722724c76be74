"""The provider's life: what go-plugin expects of a process that Terraform starts.

Owns the handshake on stdout, the gRPC server on a socket that this user alone reaches, and the end. `tf`'s
own server ends the moment Terraform says StopProvider, in the middle of a call; here StopProvider only tells
the calls to come to an end (`servicer`), so that what was made is in the state. The end comes by Shutdown, or
when Terraform is gone.

go-plugin's protocol: github.com/hashicorp/go-plugin, docs/internals.md.
"""

from __future__ import annotations

import base64
import logging
import os
import signal
import sys
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import grpc
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from tf.gen import grpc_controller_pb2, grpc_controller_pb2_grpc, grpc_stdio_pb2_grpc, tfplugin_pb2_grpc

from headrace.provider import logs
from headrace.provider.provider import HeadraceProvider
from headrace.provider.servicer import Servicer

logger = logging.getLogger(__name__)

CORE_PROTOCOL: Final = 1
PROVIDER_PROTOCOL: Final = 6
# Terraform's -parallelism is 10 by default; StopProvider must find a thread beside those calls.
CALLS_MAX: Final = 64
MESSAGE_MAX_BYTES: Final = 64 << 20
PARENT_POLL_S: Final = 1.0
# go-plugin kills who has not ended 2 s after Shutdown.
GRACE_S: Final = 1.0
# Terraform has gone without a word: the calls that still run may finish what they have begun.
ORPHAN_GRACE_S: Final = 30.0
CERTIFICATE_LIFE: Final = timedelta(days=2)


class _Controller(grpc_controller_pb2_grpc.GRPCControllerServicer):
    def __init__(self, ended: threading.Event) -> None:
        self._ended = ended

    def Shutdown(self, request: object, context: object) -> Any:
        self._ended.set()
        return grpc_controller_pb2.Empty()


class _Stdio(grpc_stdio_pb2_grpc.GRPCStdioServicer):
    """Outputs go by the process's own stderr: there is nothing to stream."""

    def StreamStdio(self, request: object, context: Any) -> Any:
        return iter(())


def serve(provider: HeadraceProvider) -> int:
    """Serves Terraform until it says Shutdown, or is gone. Returns the exit code."""
    logs.set_up()
    # Ctrl-C reaches all processes of the terminal. Terraform tells us by StopProvider.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    servicer = Servicer(provider)
    options = [("grpc.max_receive_message_length", MESSAGE_MAX_BYTES)]
    server = grpc.server(ThreadPoolExecutor(CALLS_MAX, "call"), options=options)
    tfplugin_pb2_grpc.add_ProviderServicer_to_server(servicer, server)
    grpc_controller_pb2_grpc.add_GRPCControllerServicer_to_server(_Controller(ended), server)
    grpc_stdio_pb2_grpc.add_GRPCStdioServicer_to_server(_Stdio(), server)
    parent = os.getppid()
    with tempfile.TemporaryDirectory(prefix="headrace-provider-") as folder:
        path = Path(folder) / "socket"
        certificate, credentials = _credentials()
        server.add_secure_port(f"unix://{path}", credentials)
        server.start()
        _shake_hands(path, certificate)
        while not ended.wait(PARENT_POLL_S):
            if os.getppid() != parent:
                logger.warning("Terraform is gone; calls that still run have %g s", ORPHAN_GRACE_S)
                servicer.stop()
                server.stop(ORPHAN_GRACE_S).wait()
                return 1
        server.stop(GRACE_S).wait()
    provider.close()
    return 0


def _shake_hands(path: Path, certificate: bytes) -> None:
    """The one line on stdout that go-plugin reads; whatever would be printed later goes to stderr."""
    words = (CORE_PROTOCOL, PROVIDER_PROTOCOL, "unix", path, "grpc", _base64(certificate))
    print("|".join(map(str, words)), flush=True)
    sys.stdout = sys.stderr


def _base64(data: bytes) -> str:
    # go-plugin decodes it without padding.
    return base64.b64encode(data).decode().rstrip("=")


def _credentials() -> tuple[bytes, grpc.ServerCredentials]:
    """A certificate for this one process (DER), and the server's credentials made of it."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.now(UTC)
    usage = dict.fromkeys(
        (
            *("content_commitment", "data_encipherment", "crl_sign", "encipher_only", "decipher_only"),
            *("digital_signature", "key_encipherment", "key_agreement", "key_cert_sign"),
        ),
        False,
    )
    for purpose in ("digital_signature", "key_agreement", "key_cert_sign"):
        usage[purpose] = True
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(minutes=5))
        .not_valid_after(now + CERTIFICATE_LIFE)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .add_extension(x509.KeyUsage(**usage), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem_key = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    pem = certificate.public_bytes(serialization.Encoding.PEM)
    return (
        certificate.public_bytes(serialization.Encoding.DER),
        grpc.ssl_server_credentials([(pem_key, pem)]),
    )
