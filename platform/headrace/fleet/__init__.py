"""One installation as a whole: what it consists of, how it is started, watched and stopped.

`site` describes it, `units` names its processes, `supervisor` keeps them alive, `operate` brings them up and
down, `demo` shows all of it at work. Everything else is started by command: neither the broker nor the mirror
is imported here.
"""
