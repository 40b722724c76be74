"""The description of an installation: its datacenters, the mirrors between them, and every address.

`site` is the description, `addresses` checks whether an address of this machine is free, `variables` names
the environment variables by which processes know their site. Starts nothing.
"""
