"""Plain algebra, without torch: automata, regular expressions, transition monoids and groups."""

from statetrack.automata.dfa import DFA, moore_machine, read_dfa
from statetrack.automata.given_groups import group_from_generators, group_from_table, read_group
from statetrack.automata.groups import Group, group
from statetrack.automata.monoid import MaximalSubgroup, TransitionMonoid
from statetrack.automata.properties import (
    Properties,
    describe,
    is_aperiodic,
    is_cyclic,
    is_permutation,
    is_permutation_reset,
    is_solvable,
)
from statetrack.automata.regex import from_regex
from statetrack.automata.representations import minimal_permutation_representation

__all__ = [
    "DFA",
    "Group",
    "MaximalSubgroup",
    "Properties",
    "TransitionMonoid",
    "describe",
    "from_regex",
    "group",
    "group_from_generators",
    "group_from_table",
    "is_aperiodic",
    "is_cyclic",
    "is_permutation",
    "is_permutation_reset",
    "is_solvable",
    "minimal_permutation_representation",
    "moore_machine",
    "read_dfa",
    "read_group",
]
