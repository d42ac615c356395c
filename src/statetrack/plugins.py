"""Import modules of other packages that register layers and tasks.

A plugin is a module that applies `statetrack.layers.register` or `statetrack.tasks.register` when
it is imported. An installed package names its own under the entry-point group
`statetrack.plugins`; any other is named by `--plugin MODULE` on the command line, or imported.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterable, Sequence
from functools import partial
from importlib.metadata import entry_points
from pathlib import Path

from statetrack.errors import UserError

ENTRY_POINT_GROUP = "statetrack.plugins"
_LOADED: set[str] = set()


def load_plugins(modules: Sequence[str] = ()) -> bool:
    """Import the plugins of installed packages, and `modules`, also from the current folder.

    Returns:
        Whether one was imported that had not been before.

    Raises:
        UserError: a plugin cannot be imported; the message names it.
    """
    plugins = {e.name: e.load for e in entry_points(group=ENTRY_POINT_GROUP)}
    if modules and os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    for name in modules:
        if name.endswith(".py") or name.startswith(".") or "/" in name:  # a path
            raise UserError(f"--plugin {name}: give the module's name, {Path(name).stem}")
    plugins |= {name: partial(importlib.import_module, name) for name in modules}
    fresh = plugins.keys() - _LOADED
    for name in sorted(fresh):
        _LOADED.add(name)
        try:
            plugins[name]()
        except Exception as error:  # whatever the module raises
            _LOADED.discard(name)
            reason = f"{type(error).__name__}: {error}".partition("\n")[0]
            raise UserError(f"cannot import the plugin {name!r}: {reason}") from None
    return bool(fresh)


def plugins_of(configs: Iterable[object]) -> list[str]:
    """Return the modules outside this package that define the classes of `configs`."""
    modules = {type(config).__module__ for config in configs}
    return sorted(m for m in modules if m.partition(".")[0] not in ("statetrack", "__main__"))


def check_plugins(names: object, where: str) -> None:
    """Raise a UserError unless every plugin that `where` names is imported; import none of them."""
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise UserError(f"{where}: plugins must be a list of names of modules; got {names!r}")
    for name in names:
        if name not in sys.modules:
            load_plugins()  # those of installed packages
        if name not in sys.modules:
            raise UserError(f"{where} needs the plugin {name}: give --plugin {name}")
