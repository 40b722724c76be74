"""Parquet files of a few bytes: no columns, and a footer that says how many rows there are."""

from headrace.warehouse.footers import MAGIC


def parquet_of(rows: int, content: str = "") -> bytes:
    """A file of this content, which differs between files, and of so many rows."""
    footer = b"\x36" + _zigzag(rows) + b"\x00"  # field 3, an int64, and the end of the struct
    return MAGIC + content.encode() + footer + len(footer).to_bytes(4, "little") + MAGIC


def content_of(data: bytes) -> str:
    """The content of such a file."""
    return data[len(MAGIC) : -8 - int.from_bytes(data[-8:-4], "little")].decode()


def _zigzag(number: int) -> bytes:
    left, out = number << 1, bytearray()
    while left > 0x7F:
        out.append(left & 0x7F | 0x80)
        left >>= 7
    return bytes([*out, left])
