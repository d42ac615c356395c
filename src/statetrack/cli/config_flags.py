"""A flag for every field of a model's configuration, its mixers' and those that surround it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from statetrack.cli.parser import Option, config_options

if TYPE_CHECKING:
    from statetrack.models import ModelConfig

# they follow from other flags
DERIVED = ("vocab_size", "mixer", "experts", "model", "data_folder", "data_fingerprint")


class Field(NamedTuple):
    """A field of a configuration, and its flag, whose name may differ."""

    sections: tuple[str, ...]  # "model", "mixer0", "mixer1", ... or a surrounding configuration
    name: str
    option: Option


def config_fields(
    model: ModelConfig, before: Mapping[str, Any], after: Mapping[str, Any]
) -> Iterator[Field]:
    """List the flags of a model and of the configurations before and after it, by section."""
    from statetrack.models import ExpertsConfig

    pattern = model.pattern
    # the switch is one flag for all layers of a hybrid that have it, unless a file sets them apart
    switched = {f"mixer{i}": m.allow_neg_eigval for i, m in enumerate(pattern) if not m.no_switch}
    shared = len(set(switched.values())) == 1
    sections: dict[str, Any] = {f"mixer{i}": mixer for i, mixer in enumerate(pattern)}
    experts = model.experts or ExpertsConfig()  # any of their flags gives the model experts
    sections = {**before, **sections, "model": model, "experts": experts, **after}
    for section, config in sections.items():
        for option in config_options(config):
            name = option.name
            if name in DERIVED:
                continue
            if section == "experts":
                yield Field((section,), name, option._replace(name=f"experts_{name}"))
                continue
            # in a hybrid the options of its layers are told apart by their position
            if len(pattern) == 1 or not section.startswith("mixer"):
                yield Field((section,), name, option)
            elif name != "allow_neg_eigval" or (section in switched and not shared):
                own = option._replace(name=f"{section}_{name}")
                yield Field((section,), name, own)
            elif section == next(iter(switched), None):
                yield Field(tuple(switched), name, option)


def changes_by_section(
    known: Iterable[Field], values: Mapping[str, Any]
) -> dict[str, dict[str, Any]]:
    """Sort the values of flags into the fields of the sections that they change."""
    changes: dict[str, dict[str, Any]] = {}
    for field in known:
        if field.option.name in values:
            for section in field.sections:
                changes.setdefault(section, {})[field.name] = values[field.option.name]
    return changes


def changed_model(
    model: ModelConfig, changes: Mapping[str, Mapping[str, Any]], vocab_size: int
) -> ModelConfig:
    """Return the model with the changes of `changes_by_section` and another vocabulary."""
    from statetrack.models import ExpertsConfig

    experts = model.experts
    if "experts" in changes:
        experts = replace(experts or ExpertsConfig(), **changes["experts"])
    mixers = [replace(m, **changes.get(f"mixer{i}", {})) for i, m in enumerate(model.pattern)]
    return replace(
        model,
        vocab_size=vocab_size,
        mixer=tuple(mixers) if isinstance(model.mixer, tuple) else mixers[0],
        experts=experts,
        **changes.get("model", {}),
    )
