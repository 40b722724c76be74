"""What a unit conflicts with: addresses and folders that others hold, requirements that form a circle.

Looks at the other units of the host and at the machine's listening sockets; changes nothing.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from headrace.agent.errors import AddressNotOnHostError, ConfigurationError, Conflict, FieldProblem
from headrace.agent.processes import holder_of
from headrace.agent.unit import Unit, levels
from headrace.site.addresses import Address, is_taken
from headrace.site.errors import SiteError


def conflicts_of(
    unit: Unit,
    others: Iterable[Unit],
    *,
    own_addresses: Collection[Address],
    home: Path | None,
    before: Unit | None = None,
) -> list[Conflict]:
    """The addresses and folders of the unit that others hold. `before`: the unit as it is now; a folder that
    it has already is no conflict.

    `own_addresses`: those that its own running process holds. `home`: its home, by which its own processes of
    an earlier start are recognised; with None they are conflicts, too. Raises `AddressNotOnHostError` for an
    address that this machine does not have.
    """
    others = list(others)
    return [
        *_of_addresses(unit, others),
        *(() if before is not None and before.data_dir == unit.data_dir else _of_folders(unit, others)),
        *_with_the_machine(unit, others, own_addresses, home),
    ]


def with_local_requirements(units: Sequence[Unit]) -> list[Unit]:
    """The same units without requirements that are not among them."""
    local = {unit.name for unit in units}
    return [replace(unit, requires=tuple(name for name in unit.requires if name in local)) for unit in units]


def check_order(unit: Unit, others: Sequence[Unit]) -> None:
    """Raises `ConfigurationError` if the unit would close a circle of requirements."""
    try:
        levels(with_local_requirements([*others, unit]))
    except SiteError as error:
        requires = ", ".join(unit.requires)
        raise ConfigurationError(unit.name, [FieldProblem("requires", requires, str(error))]) from error


def _of_addresses(unit: Unit, others: Iterable[Unit]) -> Iterable[Conflict]:
    """Addresses in the configurations of other units of this host, whether they run or not. Pure."""
    for other in others:
        for address in unit.listens:
            if address in other.listens:
                yield Conflict(str(address), unit.name, f"unit {other.name} of this host", other.name)


def _of_folders(unit: Unit, others: Iterable[Unit]) -> Iterable[Conflict]:
    """Folders of other units of this host that are the unit's own on the disk, or above or below of it."""
    if unit.data_dir is None:
        return
    own = Path(os.path.realpath(unit.data_dir))
    for other in others:
        if other.data_dir is None:
            continue
        theirs = Path(os.path.realpath(other.data_dir))
        if own.is_relative_to(theirs) or theirs.is_relative_to(own):
            where = "" if other.data_dir == unit.data_dir else f", whose data are in {other.data_dir}"
            yield Conflict(
                str(unit.data_dir), unit.name, f"unit {other.name} of this host{where}", other.name
            )


def _with_the_machine(
    unit: Unit, others: Iterable[Unit], own_addresses: Collection[Address], home: Path | None
) -> Iterable[Conflict]:
    of_others = {address for other in others for address in other.listens}
    for address in unit.listens:
        if address in own_addresses or address in of_others or not _is_taken(unit, address):
            continue
        holder = holder_of(address)
        if holder is not None and holder.home == str(home) and holder.unit == unit.name:
            # The unit's own process of an earlier start: it ends before the new one starts.
            continue
        held_by_unit = holder.unit if holder is not None and holder.home == str(home) else None
        yield Conflict(str(address), unit.name, str(holder or "another user's process"), held_by_unit)


def _is_taken(unit: Unit, address: Address) -> bool:
    try:
        return is_taken(address)
    except OSError as error:
        raise AddressNotOnHostError(
            f"unit {unit.name} cannot listen on {address}: {error.strerror}; give it an address of this "
            "machine (on Linux all of 127.0.0.0/8 is one)"
        ) from error
