"""The provider's process: what go-plugin expects of a program that Terraform starts.

Owns the handshake on stdout, the gRPC server on a socket that only this user reaches, and the process's end:
after Shutdown, or when Terraform has exited. `tf`'s own server exits at StopProvider, in the middle of a
call; here StopProvider only asks the calls to finish (`servicer`), so that Terraform stores what they
created.

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
# Terraform's -parallelism is 10 by default; StopProvider needs a free thread beside those calls.
CALLS_MAX: Final = 64
MESSAGE_MAX_BYTES: Final = 64 << 20
PARENT_POLL_S: Final = 1.0
# go-plugin kills a plugin that still runs 2 s after Shutdown.
GRACE_S: Final = 1.0
# How long running calls may finish after Terraform has exited without Shutdown.
ORPHAN_GRACE_S: Final = 30.0
CERTIFICATE_LIFE: Final = timedelta(days=2)


class _Controller(grpc_controller_pb2_grpc.GRPCControllerServicer):
    def __init__(self, ended: threading.Event) -> None:
        self._ended = ended

    def Shutdown(self, request: object, context: object) -> Any:
        self._ended.set()
        return grpc_controller_pb2.Empty()


class _Stdio(grpc_stdio_pb2_grpc.GRPCStdioServicer):
    """Streams nothing: output goes to the process's own stderr."""

    def StreamStdio(self, request: object, context: Any) -> Any:
        return iter(())


def serve(provider: HeadraceProvider) -> int:
    """Serves Terraform until Shutdown, or until Terraform has exited. Returns the exit code."""
    logs.set_up()
    # Ctrl-C reaches all processes of the terminal. Terraform handles it and sends StopProvider.
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
                logger.warning("Terraform has exited; running calls have %g s to finish", ORPHAN_GRACE_S)
                servicer.stop()
                server.stop(ORPHAN_GRACE_S).wait()
                return 1
        server.stop(GRACE_S).wait()
    provider.close()
    return 0


def _shake_hands(path: Path, certificate: bytes) -> None:
    """Prints the one line on stdout that go-plugin reads; later output goes to stderr."""
    fields = (CORE_PROTOCOL, PROVIDER_PROTOCOL, "unix", path, "grpc", _base64(certificate))
    print("|".join(map(str, fields)), flush=True)
    sys.stdout = sys.stderr


def _base64(data: bytes) -> str:
    # go-plugin expects no padding.
    return base64.b64encode(data).decode().rstrip("=")


def _credentials() -> tuple[bytes, grpc.ServerCredentials]:
    """Returns a certificate for this process (DER) and the server's credentials with it."""
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
