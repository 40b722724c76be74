"""The operations of a decoding program: what `program` writes and `interpreter` runs.

An operation is four numbers: itself and three arguments. Where it fills a column, the first two are the
column's slot and the slot of its validity.
"""

from enum import IntEnum


class Op(IntEnum):
    """The operations. An argument that the comment does not name is unused."""

    END = 0  # the record ends here
    LONG = 1  # slot, valid slot, scale
    TEXT = 2  # slot, valid slot
    INT = 3  # slot, valid slot, scale
    BRANCH = 4  # table, size: a union's branch number, then continue where the table says
    JUMP = 5  # target
    BOOLEAN = 6  # slot, valid slot
    ENUM = 7  # slot, valid slot, place in the tables of: the table of (pool position, size), its size
    FIXED = 8  # slot, valid slot, bytes
    REAL_OF_INT = 9  # slot, valid slot, whether the column is a float
    REAL_OF_LONG = 10  # the same
    REAL_OF_FLOAT = 11  # the same
    REAL_OF_DOUBLE = 12  # slot, valid slot
    NULL_INTEGER = 13  # slot, valid slot
    NULL_REAL = 14  # slot, valid slot
    NULL_TEXT = 15  # slot, valid slot
    NULL_RECORD = 16  # -, valid slot
    CONSTANT_INTEGER = 17  # slot, valid slot, value
    CONSTANT_REAL = 18  # slot, valid slot, place in the tables of its bits
    CONSTANT_TEXT = 19  # slot, valid slot, place in the tables of pool position and size
    SKIP_INT = 20  # the number of an enum's symbols, or -1
    SKIP_LONG = 21
    SKIP_TEXT = 22
    SKIP_BOOLEAN = 23
    SKIP_FIXED = 24  # bytes
