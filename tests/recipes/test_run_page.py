"""The page that a recipe writes at its end."""

import os

import pytest

from recipes.steps import data
from recipes.steps.data import show_page
from toolkit.report import run_page as drawing


@pytest.fixture
def run(tmp_path):
    root = tmp_path / "exp dir#1"
    (root / "stages").mkdir(parents=True)
    (root / "stages" / "01.json").write_text("{}")
    return root


def age(path, seconds):
    time = path.stat().st_mtime_ns - seconds * 10**9
    os.utime(path, ns=(time, time))


def test_the_page_is_written_and_its_address_printed(run, capsys):
    show_page(run)
    address = capsys.readouterr().out.strip().removeprefix("Report: ")
    assert address == (run / "report.html").as_uri()
    assert "%23" in address  # a browser would take what follows # for a place in the page
    assert (run / "report.html").read_text(encoding="utf-8").startswith("<!doctype html>")


def test_the_page_is_redrawn_when_a_stage_or_the_results_are_newer(run, capsys):
    page = run / "report.html"
    page.write_text("old")
    age(run / "stages" / "01.json", 10)
    show_page(run)
    assert page.read_text() == "old"
    age(page, 20)
    show_page(run)
    assert page.read_text(encoding="utf-8") != "old"
    page.write_text("old")
    age(page, 5)
    (run / "results.json").write_text("[]")
    show_page(run)
    assert page.read_text(encoding="utf-8") != "old"
    assert capsys.readouterr().out.count("Report: ") == 3


@pytest.mark.parametrize("error", [RuntimeError("bad\nluck"), MemoryError(), OSError(28, "full")])
def test_a_page_that_cannot_be_drawn_only_prints_a_note(run, capsys, monkeypatch, error):
    def fail(*_):
        raise error

    monkeypatch.setattr(drawing, "write_report", fail)
    show_page(run)
    output = capsys.readouterr().out
    assert "No report" in output
    assert type(error).__name__ in output
    assert not (run / data.RUN_PAGE).exists()
