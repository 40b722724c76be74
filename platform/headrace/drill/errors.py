"""What the drill raises. Caused by the environment: a service of the site does not do its part."""


class DrillError(Exception):
    """The drill could not be held; nothing is known about the audit. The message says why."""


class TableClaimedError(Exception):
    """Another drill works on the canary's table. The message says which."""
