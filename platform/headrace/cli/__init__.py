"""The command `headrace`: one file a command group, over the wire only. Imports neither broker nor mirror.

The rooms that a command works with are imported inside it: `headrace --help` must not wait for SQLAlchemy,
the Kafka protocol and Spark.
"""
