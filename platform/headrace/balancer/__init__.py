"""The balancer of a datacenter: one address for producers, which need not know the brokers behind it.

`python -m headrace.balancer` is one supervised process. Its backends are the fronts that brokers announce in
ZooKeeper (`coordination.fronts`). HAProxy moves the bytes; where it is not installed, `embedded` does, with
the same command line, health checks, draining and figures.

`backends` and `haproxy_config` decide and are pure; `haproxy` and `embedded` are the two engines; `control`
drives one of them; `withdrawn` keeps brokers visible that are gone or hang; `page` shows it.
"""
