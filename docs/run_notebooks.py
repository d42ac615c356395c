"""Run the notebooks and store their outputs: `make notebooks`."""

from __future__ import annotations

from pathlib import Path

import nbformat
from nbclient import NotebookClient

for path in sorted((Path(__file__).parent / "notebooks").glob("*.ipynb")):
    notebook = nbformat.read(path, as_version=4)
    NotebookClient(notebook, record_timing=False, coalesce_streams=True).execute()
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)  # the times of an earlier run
    nbformat.write(notebook, path)
