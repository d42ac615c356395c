"""Configuration of the documentation site; `make docs` builds it.

The source folder is the whole checkout, so that links between docs/, results/ and the pages beside
them are the same here and in the repository.
"""

from __future__ import annotations

import re
from importlib.metadata import version as installed_version
from pathlib import Path
from typing import Any

from docutils.nodes import Element
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.ext.napoleon import Config, GoogleDocstring
from sphinx.util.nodes import make_refnode

project = "statetrack"
author = copyright = "the statetrack authors"
version = release = installed_version("statetrack")

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.autosummary"]
root_doc = "docs/index"
include_patterns = [
    *("docs/**", "results/*.md", "results/reproduction/*/report.md"),
    *("CHANGELOG.md", "CONTRIBUTING.md"),
]
exclude_patterns = [
    *(".*", "benchmarks", "build", "csrc", "runs", "src", "tests"),
    *("docs/_*", "docs/notebooks/.*"),
]
templates_path = [str(Path(__file__).parent / "_templates")]  # autosummary looks from the root
html_theme = "furo"
html_title = f"statetrack {version}"
html_additional_pages = {"index": "index.html"}  # leads to root_doc

myst_heading_anchors = 3  # links such as theory.md#any-regular-language
nb_execution_mode = "off"  # notebooks are stored with their outputs; a test runs them

autosummary_ignore_module_all = False
autosummary_imported_members = True
autodoc_member_order = "bysource"
python_maximum_signature_line_length = 88


def google_docstring(
    app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]
) -> None:
    """Read docstrings as plain text with `code` in backticks and Google's sections.

    Napoleon alone would take formulas for markup (|Q|, a*), and "[B, T]: ..." for a type.
    """
    if lines and lines[0].startswith("Alias for field number"):  # of a NamedTuple
        lines.clear()
    for number, line in enumerate(lines):
        parts = re.split(r"(`+[^`]+`+)", line)
        parts[::2] = [re.sub(r"([*|\\]|_\b)", r"\\\1", text) for text in parts[::2]]
        parts[1::2] = [f"``{code.strip('`')}``" for code in parts[1::2]]
        lines[number] = "".join(parts)
    config = Config(napoleon_use_rtype=False)
    lines[:] = GoogleDocstring(lines, config, app, "method", name, obj, options).lines()


def skip_twice(
    app: Sphinx, what: str, name: str, obj: Any, skip: bool, options: Any
) -> bool | None:
    """Leave what `statetrack` takes from a subpackage to the page of the subpackage."""
    home = ".".join((getattr(obj, "__module__", None) or "").split(".")[:2])
    top, page = (f"docs/api/generated/{module}" for module in ("statetrack", home))
    return True if app.env.docname == top != page and page in app.env.found_docs else None


def link_home(app: Sphinx, env: BuildEnvironment, node: Element, text: Element) -> Element | None:
    """Lead `statetrack.X` to the page of the subpackage that documents X."""
    name = node.get("reftarget", "").removeprefix("statetrack.")
    for home, found in env.get_domain("py").data["objects"].items():
        if home.count(".") == 2 and home.endswith(f".{name}"):
            return make_refnode(
                app.builder, node["refdoc"], found.docname, found.node_id, text, home
            )
    return None


def setup(app: Sphinx) -> None:
    """Register what is defined above."""
    app.connect("autodoc-process-docstring", google_docstring)
    app.connect("autodoc-skip-member", skip_twice)
    app.connect("missing-reference", link_home)
