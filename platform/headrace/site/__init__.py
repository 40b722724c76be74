"""The description of an installation: its datacenters, who mirrors whom, and every address.

`site` is the description, `addresses` says whether an address of this machine is free, `variables` names the
environment variables by which processes know their site. Starts nothing.
"""
