"""The description of an installation: its datacenters, the mirrors between them, and every address.

`site` is the description, `addresses` checks whether an address of this machine is free,
`environment_variables` names the variables that tell a process its site and unit. Starts nothing.
"""
