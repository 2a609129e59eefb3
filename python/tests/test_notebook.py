"""The example notebook runs from top to bottom, and its last cell shows that a cluster gives the same table."""

from __future__ import annotations

import pathlib

import pytest

nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")


def test_the_notebook_runs() -> None:
    path = pathlib.Path(__file__).parents[1] / "examples/sweep.ipynb"
    notebook = nbformat.read(path, as_version=4)
    nbclient.NotebookClient(notebook, timeout=300).execute()
    last = notebook.cells[-1].outputs[-1]
    assert last["data"]["text/plain"] == "True"
