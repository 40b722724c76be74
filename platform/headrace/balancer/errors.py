"""What the balancer raises."""

from __future__ import annotations


class BalancerError(Exception):
    """The balancer's engine does not do what it is told; the message is one line for its log."""
