"""Configuration of the documentation site; `make docs` builds it.

The source folder is the whole checkout, so that links between docs/, results/ and the pages beside
them are the same here and in the repository.
"""

from __future__ import annotations

import re
from importlib.metadata import version as installed_version
from typing import Any

from sphinx.application import Sphinx
from sphinx.ext.napoleon import Config, GoogleDocstring

project = "statetrack"
author = copyright = "the statetrack authors"
version = release = installed_version("statetrack")

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.autosummary"]
root_doc = "docs/index"
include_patterns = ["docs/**", "results/*.md", "CHANGELOG.md", "CONTRIBUTING.md"]
exclude_patterns = [
    *(".*", "benchmarks", "build", "csrc", "runs", "src", "tests"),
    *("docs/_*", "docs/notebooks/.*"),
]
templates_path = ["_templates"]
html_theme = "furo"
html_title = f"statetrack {version}"
html_additional_pages = {"index": "index.html"}  # leads to root_doc

myst_heading_anchors = 3  # links such as theory.md#any-regular-language
nb_execution_mode = "off"  # notebooks are stored with their outputs; a test runs them

autodoc_member_order = "bysource"
python_maximum_signature_line_length = 88


def google_docstring(
    app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]
) -> None:
    """Read docstrings as plain text with `code` in backticks and Google's sections.

    Napoleon alone would take formulas for markup (|Q|, a*), and "[B, T]: ..." for a type.
    """
    for number, line in enumerate(lines):
        parts = re.split(r"(`+[^`]+`+)", line)
        parts[::2] = [re.sub(r"([*|\\]|_\b)", r"\\\1", text) for text in parts[::2]]
        parts[1::2] = [f"``{code.strip('`')}``" for code in parts[1::2]]
        lines[number] = "".join(parts)
    config = Config(napoleon_use_rtype=False)
    lines[:] = GoogleDocstring(lines, config, app, "method", name, obj, options).lines()


def setup(app: Sphinx) -> None:
    """Register the reader of docstrings."""
    app.connect("autodoc-process-docstring", google_docstring)
