"""Plain algebra, without torch: groups."""

from statetrack.automata.groups import Group, group

__all__ = ["Group", "group"]
