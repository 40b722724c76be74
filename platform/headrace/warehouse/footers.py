"""The number of rows that a Parquet file's footer claims. Needs no pyarrow.

The footer's fields: https://github.com/apache/parquet-format/blob/master/src/main/thrift/parquet.thrift
"""

from typing import Final

from headrace.warehouse.thrift import StructReader, ThriftError

MAGIC: Final = b"PAR1"
TRAILER_SIZE_BYTES: Final = 8
"""The footer's length, and the magic bytes."""
FOOTER_MAX_BYTES: Final = 16 << 20
_NUM_ROWS: Final = 3


class FooterError(ValueError):
    """The bytes are no footer of a Parquet file."""


def footer_size(trailer: bytes, file_size_bytes: int) -> int:
    """Returns the size of the footer before a file's last 8 bytes, `trailer`. Raises `FooterError`."""
    if len(trailer) != TRAILER_SIZE_BYTES or trailer[4:] != MAGIC:
        raise FooterError("it does not end as a Parquet file does")
    size = int.from_bytes(trailer[:4], "little")
    if not 0 < size <= min(FOOTER_MAX_BYTES, file_size_bytes - TRAILER_SIZE_BYTES - len(MAGIC)):
        raise FooterError(f"it claims a footer of {size} bytes, and has {file_size_bytes}")
    return size


def rows_of(footer: bytes) -> int:
    """Returns the number of rows. Raises `FooterError`."""
    try:
        rows = StructReader(footer).field(_NUM_ROWS)
    except ThriftError as error:
        raise FooterError(str(error)) from None
    if rows < 0:
        raise FooterError(f"it claims {rows} rows")
    return rows
