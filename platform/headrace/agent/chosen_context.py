"""Which installation is meant in a home: a context by name, by `$HEADRACE_CONTEXT`, by choice, or its site.

Owns the order of these, and the refusal to guess where Terraform made this home's brokers. For commands and
for programs alike.
"""

import os
from typing import Final

from headrace.site.context import SITE, Context, ContextError, context_of
from headrace.site.context_store import ContextStore
from headrace.site.environment_variables import CONTEXT_VARIABLE
from headrace.site.site import Site

UNITS_SHOWN_MAX: Final = 3


class ContextUnclearError(ContextError):
    """Nobody has chosen a context, and this home's units are not those of its site."""


def chosen_context(contexts: ContextStore, name: str | None = None) -> Context:
    """Returns the context of this name; None: the one that is meant. Raises `ContextError`."""
    name = name or os.environ.get(CONTEXT_VARIABLE) or contexts.in_use()
    if name is not None:
        return contexts.load(name)
    site = Site.load(contexts.home)
    if others := _brokers_of_others(site):
        more = f" and {len(others) - UNITS_SHOWN_MAX} more" if len(others) > UNITS_SHOWN_MAX else ""
        raise ContextUnclearError(
            f"which installation is meant? Terraform made the brokers of {contexts.home} "
            f"({', '.join(others[:UNITS_SHOWN_MAX])}{more}), and its site.yaml, or the default, describes "
            "others. Make a context of Terraform's outputs (`terraform output -json | headrace context "
            f"import NAME`), or give --context {SITE}"
        )
    return context_of(site)


def _brokers_of_others(site: Site) -> list[str]:
    """The brokers of this home, with their addresses, that Terraform made and the site does not describe."""
    # Imported here because the import is slow, and a context that somebody named needs none of it.
    from headrace.agent.desired import brokers_made_by
    from headrace.agent.home import AgentHome

    described = {str(address) for each in site.datacenters for address in each.brokers.values()}
    made = brokers_made_by("terraform", AgentHome(site.home).units)
    return [f"{name} at {address}" for name, address in made.items() if address not in described]
