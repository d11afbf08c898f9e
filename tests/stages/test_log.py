import logging
import re
import sys

import pytest

from tests.log_lines import TIME, untimed
from toolkit.stages.log import StageLog, duration, headline, toolkit_logs


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.04, "0.0 s"),
        (59.94, "59.9 s"),
        (59.97, "1 min 00 s"),
        (192, "3 min 12 s"),
        (3599.6, "1 h 00 min"),
        (3720, "1 h 02 min"),
        (float("inf"), "?"),
        (float("nan"), "?"),
    ],
)
def test_durations_are_human_readable(seconds, text):
    assert duration(seconds) == text


def test_on_a_terminal_lines_have_no_times(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    StageLog(tmp_path / "log.txt").write("one")
    assert capsys.readouterr().out == "one\n"


def test_headlines_are_one_line():
    assert headline({"wer": 8.31234, "words": 120000}) == "wer 8.312, words 120000"
    assert headline({}) == ""


def test_printed_lines_are_also_logged(tmp_path, capsys):
    stage_log = StageLog(tmp_path / "log.txt")
    stage_log.write("one")
    stage_log.write("two")
    assert untimed(capsys.readouterr().out) == "one\ntwo\n"
    lines = (tmp_path / "log.txt").read_text().splitlines()
    assert [line.split(" ", 1)[1] for line in lines] == ["one", "two"]
    assert lines[0][4] == "-"


def test_a_log_that_cannot_be_written_stops_nothing(tmp_path, capsys):
    StageLog(tmp_path / "none" / "log.txt").write("one")
    assert untimed(capsys.readouterr().out) == "one\n"


def test_lines_are_written_above_a_progress_bar(tmp_path, capfd):
    from tqdm import tqdm

    stage_log = StageLog(tmp_path / "log.txt")
    with tqdm(total=3, desc="bar", disable=False) as bar:
        bar.update(1)
        stage_log.write("a line")
        captured = capfd.readouterr()
    assert untimed(captured.out) == "a line\n"
    assert re.search(r"\r +\r", captured.err)  # the bar was wiped before the line
    assert (tmp_path / "log.txt").read_text().endswith(" a line\n")
    stage_log.write("after")
    assert untimed(capfd.readouterr().out) == "after\n"


@pytest.mark.parametrize(
    ("verbosity", "printed"),
    [
        ("quiet", ["   warned", "now"]),
        ("normal", ["== 1", "   told", "   warned", "now"]),
        ("verbose", ["== 1", "   in detail", "   told", "   warned", "now"]),
    ],
)
def test_the_verbosity_selects_the_printed_lines(tmp_path, capsys, verbosity, printed):
    stage_log = StageLog(tmp_path / "log.txt", verbosity)
    stage_log.write("== 1")
    with toolkit_logs(stage_log):
        logger = logging.getLogger("toolkit.made_up")
        logger.debug("in detail")
        logger.info("told")
        logger.warning("warned")
    stage_log.write("now", always=True)
    output = capsys.readouterr().out
    if verbosity != "quiet":
        assert len(re.findall(TIME, output, re.MULTILINE)) == len(printed)
        output = re.sub(TIME, "", output, flags=re.MULTILINE)
    assert output.splitlines() == printed
    log_lines = [line.split(" ", 1)[1] for line in (tmp_path / "log.txt").read_text().splitlines()]
    assert log_lines == [
        "== 1",
        *["   in detail"] * (verbosity == "verbose"),
        "   told",
        "   warned",
        "now",
    ]
