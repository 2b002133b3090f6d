"""What can go wrong, by whose fault."""

from __future__ import annotations


class InputError(ValueError):
    """The user asked for something that cannot be: one sentence with the value and what is allowed."""


class ActionError(RuntimeError):
    """A policy asked a client for something that it cannot do."""


class EnergyError(ActionError):
    """A client was asked to spend energy that it does not have."""


class BusyError(ActionError):
    """A client was asked for a second action while it is engaged or has already acted in this slot."""
