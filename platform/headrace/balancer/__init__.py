"""The balancer of a datacenter: producers know its one address, and nothing of the brokers behind it.

`python -m headrace.balancer` is one supervised process. It keeps its backends from the fronts that
brokers announce in ZooKeeper (`coordination.fronts`) and lets HAProxy move the bytes where there is one, else
a balancer of its own (`embedded`) with the same command line, health checks, draining and figures.

`backends` and `haproxy_config` decide and are pure; `haproxy` and `embedded` are the two engines; `control`
drives one of them; `page` shows it.
"""
