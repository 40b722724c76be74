"""The balancer's error."""

from __future__ import annotations


class BalancerError(Exception):
    """The balancer's engine failed; the message is one line for the log."""
