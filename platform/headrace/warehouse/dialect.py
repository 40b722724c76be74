"""Whose DDL a table is written in. Apart from `ddl`, so that the command line loads no pyarrow."""

from enum import StrEnum


class Dialect(StrEnum):
    """Spark's times without a zone have a type of their own; Hive has no other one."""

    HIVE = "hive"
    SPARK = "spark"
