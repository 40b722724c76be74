"""The host agent: keeps the units of one host as they were last put, and tells how they are, over HTTP.

`configuration` types what a unit is told, `kinds` makes the process of it, `desired` keeps it on disk,
`keeper` brings the host to it, `app` serves it, `process` is the agent's own life, `client` and `local` talk
to it.
"""
