"""The page that compares two runs."""

import json
import re
from html import unescape

import pytest
from click.testing import CliRunner

from tests.report.conftest import HOSTILE, MadeUpRun, marker
from tests.report.test_run_page import DAMAGED, Parsed
from toolkit import cli
from toolkit.report.run_folder import ReportError
from toolkit.report.run_page import write_comparison
from toolkit.score.compare import compare
from toolkit.score.wer import score


@pytest.fixture
def runs(tmp_path):
    """Two runs; the second has other settings, one more system and other errors."""
    two_runs = MadeUpRun(tmp_path / "first/exp"), MadeUpRun(tmp_path / "second/exp")
    for run in two_runs:
        run.data()
        run.decode("mono")
        run.stages()
    two_runs[1].decode("lstm")
    settings = {"ce": {"layers": 2, "name": HOSTILE}}
    marker(2, "Write", parameters=settings).write(two_runs[0].root / "stages/02.json")
    settings = {"ce": {"layers": 3, "name": HOSTILE}, "lm": {"order": 3}}
    marker(2, "Write", parameters=settings).write(two_runs[1].root / "stages/02.json")
    text = f"dev-0 the cat sat\ndev-1 the mat\ndev-2 see {HOSTILE} now\ndev-3 one\n"
    two_runs[1].write("decode/mono/dev/text", text)
    return two_runs


@pytest.fixture
def page(runs, tmp_path):
    assert write_comparison(runs[0].root, runs[1].root, tmp_path / "page.html") == []
    return (tmp_path / "page.html").read_text(encoding="utf-8")


def text_rows(page, section):
    html = page.partition(f'<section id="{section}">')[2].partition("</section>")[0]
    return [unescape(re.sub(r"<[^>]+>", " ", row)).split() for row in html.split("<tr>")[2:]]


def test_rates_stand_side_by_side_with_differences(page, runs):
    rows = text_rows(page, "results")
    assert [row[:2] for row in rows] == [
        [system, split] for split in ("dev", "test") for system in ("lstm", "mono")
    ]
    texts = {f"dev-{n}": text for n, text in enumerate(runs[0].texts)}
    sides = [
        dict(line.split(" ", 1) for line in (run.root / "decode/mono/dev/text").open())
        for run in runs
    ]
    speakers = {name: f"speaker-{name[-1] in '13':d}" for name in texts}
    scores = [
        score(texts, {u: text.strip() for u, text in side.items()}, speakers=speakers)
        for side in sides
    ]
    expected = compare(*scores)
    mono_row = rows[1]
    for value in (scores[0].percent, scores[1].percent):
        assert f"{value:.2f}" in mono_row
    assert f"{expected.difference:+.2f}" in mono_row
    better, _, worse = expected.better_equal_worse
    assert mono_row[-2:] == [f"{better},", f"{worse}"]
    assert rows[0][2:] == ["-", f"{scores[0].percent:.2f}", "-", "-", "-"]


def test_settings_that_differ_are_named(page):
    assert text_rows(page, "settings") == [
        ["ce.layers", "2", "3"],
        ["lm.order", "not", "read", "3"],
    ]


def test_long_settings_that_differ_at_their_ends_are_named(runs, tmp_path):
    for run, last in zip(runs, ("LETTER", "OTHER"), strict=True):
        settings = {"check": {"alphabet": 300 * "A" + last, "same": 300 * "B"}}
        marker(2, "Write", parameters=settings).write(run.root / "stages/02.json")
    write_comparison(runs[0].root, runs[1].root, tmp_path / "page.html")
    (row,) = text_rows((tmp_path / "page.html").read_text(encoding="utf-8"), "settings")
    assert row == ["check.alphabet", f'…{50 * "A"}LETTER"', f'…{50 * "A"}OTHER"']


def test_utterances_that_changed_are_shown_with_both_texts(page):
    assert "dev, by mono: 1 better" in page
    assert "dev, by mono: 1 worse" in page
    better, worse = page.split("better</h3>")[1], page.split("worse</h3>")[1]
    assert "<code>dev-0</code>" in better.partition("<h3")[0]
    assert '<del class="sub">cat</del> <ins class="sub">hat</ins>' in better
    assert "<code>dev-3</code>" in worse


def test_nothing_in_the_data_becomes_markup(page):
    parsed = Parsed(page)
    assert "script" not in parsed.tags
    assert parsed.fetched == []
    assert not any(name.startswith("on") for name, _ in parsed.attributes)
    assert "second/exp" in page  # directories of the same name are told apart


def test_a_run_compared_with_itself_has_no_differences(runs, tmp_path):
    write_comparison(runs[0].root, runs[0].root, tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "utterances" not in Parsed(page).sections
    assert "+0.00" in page
    assert "<p>None.</p>" in page


@pytest.mark.parametrize("content", [b"", b"[1, 2", b'{"a": 1}', b"[[]]", b"\xff\x00 a b\n", b"5"])
def test_damaged_files_never_stop_the_page(runs, tmp_path, content):
    for name in DAMAGED:
        (runs[1].root / name).parent.mkdir(parents=True, exist_ok=True)
        (runs[1].root / name).write_bytes(content)
    assert write_comparison(runs[0].root, runs[1].root, tmp_path / "page.html")
    assert "provenance" in Parsed((tmp_path / "page.html").read_text(encoding="utf-8")).sections


def test_other_references_are_not_compared(runs, tmp_path):
    path = runs[1].root / "data/test.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    lines[0]["supervisions"][0]["text"] = "something else"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    write_comparison(runs[0].root, runs[1].root, tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "other references" in page
    assert "test, by" not in page


def test_the_command(runs, tmp_path):
    arguments = ["report", *(str(run.root) for run in runs)]
    done = CliRunner().invoke(cli.main, arguments)
    assert done.exit_code == 0, done.output
    assert (runs[1].root / "comparison.html").exists()
    out = tmp_path / "own.html"
    assert CliRunner().invoke(cli.main, [*arguments, "--out", str(out)]).exit_code == 0
    assert out.exists()
    with pytest.raises(ReportError):
        write_comparison(runs[0].root, tmp_path / "nowhere", out)
