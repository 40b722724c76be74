"""Publishes orders of two hours ago: checkout.py DATACENTER BALANCER REGISTRY COUNT."""

import sys
import time
from pathlib import Path

from headrace.events import EventPublisher

datacenter, balancer, registry, count = sys.argv[1:]
# Of two hours ago, so that their hour is over, and can be sealed.
first_ms = int(time.time() * 1000) - 2 * 3_600_000
with EventPublisher(
    datacenter=datacenter,
    service="checkout-python",
    bootstrap=balancer,
    registry_url=registry,
    schemas_dir=Path(__file__).parent,
) as publisher:
    for number in range(int(count)):
        order = {
            "order_id": f"python-{first_ms}-{number}",
            "customer_id": number % 50,
            "total": 10.0 + number,
            "currency": "EUR",
        }
        publisher.publish("order-placed", order, key=str(order["customer_id"]), time_ms=first_ms + number)
