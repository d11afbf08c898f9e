"""Docstrings as the documentation site shows them."""

import importlib.util
import sys
import types
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[2] / "docs/mkdocs/docstrings.py"


@pytest.fixture
def docstrings(monkeypatch):
    """The module, with no more of griffe than it takes to define its extension."""
    griffe = types.SimpleNamespace(Extension=object, Object=object)
    monkeypatch.setitem(sys.modules, "griffe", griffe)
    spec = importlib.util.spec_from_file_location("docs_docstrings", SOURCE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_an_example_of_a_command_becomes_a_block_of_code(docstrings):
    text = "Do it.\n\n\b\nExamples:\n  toolkit a b\n  toolkit c\n\nMore.\n"
    assert docstrings.markdown(text) == (
        "Do it.\n\n**Examples**\n\n```sh\ntoolkit a b\ntoolkit c\n```\n\nMore.\n"
    )


def test_an_unwrapped_paragraph_without_a_title_becomes_code(docstrings):
    assert docstrings.markdown("A.\n\n\b\n  1  2\n  3  4\n") == "A.\n\n```sh\n1  2\n3  4\n```\n"


def test_parameters_that_share_an_entry_get_one_each(docstrings):
    text = "x, y: not these.\n\nArgs:\n  left, right: frames\n    on a side.\n  z: one.\n"
    assert docstrings.markdown(text) == (
        "x, y: not these.\n\nArgs:\n  left: frames\n    on a side.\n"
        "  right: frames\n    on a side.\n  z: one.\n"
    )
