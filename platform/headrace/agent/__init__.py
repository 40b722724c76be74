"""The host agent: keeps the units that clients PUT over HTTP running on one host, and reports their health.

`configuration` types the configuration of a unit, `kinds` makes a process of it, `desired` stores it,
`keeper` applies it, `watch` restores it after a crash, `app` serves all of it over HTTP. `process` runs the
agent, `client` and `local` talk to it, `foreground` runs one unit without it.
"""
