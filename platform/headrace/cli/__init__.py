"""The command `headrace`: one file for each command group.

Commands use the network only; broker and mirror are never imported. A command imports the rooms that it uses
inside its function, so that `headrace --help` does not wait for SQLAlchemy, the Kafka protocol and Spark.
"""
