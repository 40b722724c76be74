"""The host agent: runs the units of one host as they were last put, and reports their health, over HTTP.

`configuration` types the configuration of a unit, `kinds` makes a process of it, `desired` stores it,
`keeper` brings the host to it, `watch` keeps it there, `app` serves all of it. `process` runs the agent,
`client` and `local` talk to it, `foreground` runs one unit without it.
"""
