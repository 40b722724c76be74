"""Kafka's own group protocol, for clients that call `subscribe()`.

State machines only: no sockets, no clock, no disk.
"""
