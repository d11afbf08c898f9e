import io
import sys

import pytest

from toolkit.processes import bars
from toolkit.processes.bars import Bar, hide_progress_bars


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize(("memory_bytes", "suffix"), [(0, "s]"), (2_340_000_000, "utt/s, 2.3 GB]")])
def test_bar_shows_the_memory_of_the_stage(monkeypatch, memory_bytes, suffix):
    monkeypatch.setattr(bars, "resident_bytes", lambda: memory_bytes)
    terminal = Terminal()
    assert list(Bar(range(3), "features dev", unit="utt", file=terminal)) == [0, 1, 2]
    last = terminal.getvalue().rstrip().rsplit("\r", 1)[-1]
    assert last.startswith("features dev: 100%")
    assert "3/3 [" in last
    assert last.endswith(suffix)
    assert ("GB" in last) == (memory_bytes > 0)


def test_bar_writes_nothing_without_a_terminal():
    file = io.StringIO()
    list(Bar(range(3), file=file))
    assert file.getvalue() == ""


def test_bar_works_without_standard_error(monkeypatch):
    monkeypatch.setattr(sys, "stderr", None)
    with Bar(total=3) as bar:
        bar.update(3)
    assert list(Bar(range(3))) == [0, 1, 2]


def test_hide_progress_bars_hides_bars_within_its_block():
    terminal = Terminal()
    with hide_progress_bars():
        assert list(Bar(range(3), file=terminal)) == [0, 1, 2]
    assert terminal.getvalue() == ""
    assert list(Bar(range(3), file=terminal)) == [0, 1, 2]
    assert "3/3" in terminal.getvalue()
