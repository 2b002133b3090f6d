"""A schedule: what a policy decided, as a record that can be planned, saved, checked, summed up and drawn."""

from pipecycle.schedule.schedule import Schedule

__all__ = ["Schedule"]
