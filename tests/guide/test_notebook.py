"""The cells of examples/recordings_to_wer.ipynb, run in order in a project of its own."""

import json
import re
import shutil
import subprocess
import sys

import pytest

from tests.guide.conftest import PROJECT, environment, make_project

pytest.importorskip("espeakng_loader")
pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

NOTEBOOK = PROJECT / "examples" / "recordings_to_wer.ipynb"


def cells(kind):
    notebook = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    return ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == kind]


def test_it_is_kept_without_outputs():
    for cell in json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]:
        assert cell.get("outputs", []) == []
        assert cell.get("execution_count") is None


def test_its_links_lead_somewhere():
    for text in cells("markdown"):
        for link in re.findall(r"\]\(([^)#]+)", text):
            assert (NOTEBOOK.parent / link).is_file(), link


def test_it_leads_from_recordings_to_a_word_error_rate(tmp_path):
    project = make_project(tmp_path / "project")
    shutil.copytree(PROJECT / "examples", project / "examples")
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(cells("code"))],
        cwd=project / "examples",
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert done.returncode == 0, done.stdout
    # Measured: 0. Who has learnt nothing gets most words wrong.
    assert float(re.findall(r"^%WER ([\d.]+) \[ \d+ / \d+", done.stdout, re.M)[-1]) < 40
    page = re.search(r"^file://(\S+report\.html)$", done.stdout, re.M)[1]
    assert page.startswith(str(project.resolve()))
    assert "Error rates" in (project / "recipes/example/exp/base/report.html").read_text()
