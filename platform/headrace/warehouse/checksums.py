"""Checksums of the warehouse's files: the SHA-256 of all bytes, as manifests hold it."""

import hashlib
from typing import Final

from headrace.warehouse.hdfs.client import HdfsClient

READ_SIZE_BYTES: Final = 8 << 20


def checksum_of(data: bytes) -> str:
    """Returns the checksum of a file's bytes, in hexadecimal digits."""
    return hashlib.sha256(data).hexdigest()


def read_checksum(hdfs: HdfsClient, path: str, size_bytes: int) -> str:
    """Reads a file of this size in pieces, and returns its checksum. Raises `HdfsError`."""
    found = hashlib.sha256()
    for at in range(0, size_bytes, READ_SIZE_BYTES):
        found.update(hdfs.read(path, offset=at, length=min(READ_SIZE_BYTES, size_bytes - at)))
    return found.hexdigest()
