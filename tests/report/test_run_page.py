"""The page of a run: what it shows of finished and damaged runs, grids, provenance."""

import base64
import io
import json
import os
import random
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path

import pytest
import soundfile
from click.testing import CliRunner

from tests.browser import needs_browser, rendered_html
from tests.markers import attempt
from tests.report.conftest import marker
from toolkit import cli
from toolkit.report.run_data import StageView, stage_table
from toolkit.report.run_folder import ReportError, RunFolder
from toolkit.report.run_page import ReportConfig, commands_table, weight_grids, write_report
from toolkit.stages.marker import CodeVersion

SECTIONS = [
    "results",
    "stages",
    "data",
    "check",
    "curves",
    "tuning",
    "confusions",
    "utterances",
    "browse",
    "provenance",
]
VOID = {"meta", "br", "img", "link", "input"}


class Parsed(HTMLParser):
    """Tags, attributes and text of a page; fails on tags that do not match."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.attributes, self.sections, self.text = [], [], [], [], []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        if tag not in VOID:
            self.open.append(tag)
        self.tags.append(tag)
        self.attributes += attributes
        self.sections += [value for name, value in attributes if (tag, name) == ("section", "id")]

    def handle_startendtag(self, tag, attributes):
        pass

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)

    @property
    def fetched(self):
        return [
            value
            for name, value in self.attributes
            if name in ("src", "href", "action") and not value.startswith(("#", "data:"))
        ]


@pytest.fixture
def page(finished, tmp_path):
    problems = write_report(finished.root, tmp_path / "page.html")
    assert problems == []
    return (tmp_path / "page.html").read_text(encoding="utf-8")


def test_all_sections_are_there_and_nothing_is_fetched(page):
    parsed = Parsed(page)
    assert parsed.sections == SECTIONS
    assert parsed.fetched == []
    assert "url(" not in page
    assert "@import" not in page


def test_the_guide_names_the_sections_in_their_order(page):
    guide = Path(__file__).parents[2] / "docs/reading-the-report.md"
    table = re.findall(r"^\| ([^|]+?) \|", guide.read_text(encoding="utf-8"), re.MULTILINE)[1:]
    titles = re.findall(r"<h2>(.*?)</h2>", page)
    absent = {"Errors by condition", "Alignments"}  # this run is too small, and has no alignments
    assert [name for name in table if name not in absent] == titles
    assert absent < set(table)


def test_nothing_in_the_data_becomes_markup(page):
    parsed = Parsed(page)
    assert parsed.tags.count("script") == 1
    assert not any(name.startswith("on") for name, _ in parsed.attributes)
    assert not any(value == "x" for name, value in parsed.attributes if name == "src")
    assert "alert(1)" in "".join(parsed.text)  # it is shown, as text


def test_stages_are_shown_in_their_states(page):
    pattern = r'<th scope="row">(\d+)</th>.*?<span class="state (\w+)">(.*?)</td>'
    states = re.findall(pattern, page, re.DOTALL)
    assert [(n, kind) for n, kind, _ in states] == [
        ("2", "done"),
        ("3", "stale"),
        ("4", "failed"),
        ("5", "partial"),
    ]
    descriptions = dict((n, description) for n, _, description in states)
    assert "input data/dev.jsonl has been changed by stage 2" in descriptions["3"]
    assert "no lexicon" in descriptions["4"]
    assert "Traceback" in descriptions["4"]
    assert "62 %" in descriptions["5"]
    assert "Prepare lexicon" in page  # the title of a stage without a marker, from the log


def test_errors_are_marked_by_kind(page):
    assert '<del class="sub">cat</del> <ins class="sub">hat</ins>' in page
    assert '<del class="gone">on</del>' in page
    assert '<ins class="new">five</ins>' in page
    counted = re.sub(r"<[^>]+>", " ", page)
    assert "cat → hat" in counted


def test_audio_and_spectrogram_can_be_decoded(page, finished):
    sounds = re.findall(r'src="data:audio/flac;base64,([^"]+)"', page)
    assert len(sounds) == 6  # three of the four utterances of each decoded split are wrong
    lengths = []
    for sound in sounds:
        samples, rate = soundfile.read(io.BytesIO(base64.b64decode(sound)))
        lengths.append(len(samples) / rate)
        assert rate == 16000
    assert sorted(set(lengths)) == [0.25, 0.5, 1.0]
    image = base64.b64decode(re.search(r'src="data:image/png;base64,([^"]+)"', page)[1])
    from matplotlib.image import imread

    assert imread(io.BytesIO(image)).shape[0] == 96


def test_the_size_is_bounded(finished, tmp_path):
    wide = tmp_path / "wide.html"
    write_report(finished.root, wide)
    full = wide.stat().st_size
    limit = full / 1e6 - 0.05
    write_report(finished.root, tmp_path / "narrow.html", ReportConfig(max_mb=limit))
    narrow = (tmp_path / "narrow.html").read_text(encoding="utf-8")
    assert len(narrow.encode()) <= limit * 1e6 < full
    assert "players or alignments left out" in narrow
    assert Parsed(narrow).sections == SECTIONS


@pytest.mark.parametrize("parts", [(), ("data",), ("stages",), ("data", "decode"), ("histories",)])
def test_an_unfinished_run_shows_its_finished_parts(made_up, tmp_path, parts):
    for part in parts:
        getattr(made_up, part)()
    assert write_report(made_up.root, tmp_path / "page.html") == []
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    sections = Parsed(page).sections
    section_of = {"data": "data", "stages": "stages", "decode": "results", "histories": "curves"}
    assert {section_of[part] for part in parts} <= set(sections)
    if not parts:
        assert "No stage is finished yet" in page


def test_partial_output_of_a_stage_is_shown(made_up, tmp_path):
    made_up.write(
        ".partial/17/lstm_ce/history.json",
        '[{"epoch": 1, "loss": 2, "valid_loss": 2}, {"epoch": 2, "loss": 1, "valid_loss": 1}]',
    )
    write_report(made_up.root, tmp_path / "page.html")
    assert "lstm_ce (unfinished): loss" in (tmp_path / "page.html").read_text(encoding="utf-8")


def test_the_weights_of_a_combination_are_shown_by_rule(made_up, tmp_path):
    made_up.decode("combined")
    rows = "mbr\t0.6\t3\t13\t23.08\nmbr\t1\t4\t13\t30.77\nbest\t0.6\t5\t13\t38.46\n"
    made_up.write("decode/combined/grid.tsv", f"rule\tsat\terrors\twords\twer\n{rows}")
    tuned = {"rule": "mbr", "weights": {"sat": 0.6}}
    made_up.write("decode/combined/tuned.json", json.dumps(tuned))
    assert write_report(made_up.root, tmp_path / "page.html") == []
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert re.findall(r'<td class="chosen"[^>]*>([\d.]+)', page) == ["23.08"]


def test_gains_on_a_baseline_are_shown(page):
    text = "".join(Parsed(page).text)
    assert "Relative WER reduction" in text
    assert "12.3" in text
    assert "-1.0 to 20.5" in text


def test_the_page_leads_with_the_largest_splits_that_compare_systems(made_up, tmp_path):
    rows = [
        {
            "system": system,
            "split": split,
            "lm": "3gram",
            "wer": 10.0,
            "cer": 5.0,
            "ins": 0,
            "del": 0,
            "sub": words // 10,
            "ref_words": words,
            "rtf": 0.1,
            "command": "run.py",
        }
        for split, words in {"a": 10, "b": 50, "c": 40, "d": 30, "e": 20, "alone": 900}.items()
        for system in (["one", "two"] if split != "alone" else ["one"])
    ]
    made_up.write("results.json", json.dumps(rows))
    write_report(made_up.root, tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert re.findall(r"Lowest WER on (\w+)", page) == ["b", "c", "d", "e"]
    assert re.findall(r"<h3>(\w+): WER in %", page) == ["a", "b", "c", "d", "e"]


DAMAGED = (
    "werr.json",
    "stages/02.json",
    "check/report.json",
    "check/excluded.tsv",
    "data/dev.jsonl",
    "data/splits.json",
    "decode/mono/rows.json",
    "decode/mono/grid.tsv",
    "decode/mono/tuned.json",
    "decode/mono/dev/text",
    "mono/history.json",
    "lstm/history.json",
    "ctc/log.jsonl",
    "stages/last_command.json",
)


DEEP = b"[" * 100_000
"""More than Python's parser of JSON follows."""
HUGE = 10**400
"""More than a float holds."""


@pytest.mark.parametrize(
    "content", [b"", b"[1, 2", b'{"a": 1}', b"[[]]", b"\xff\x00 a b\n", b"5", DEEP]
)
def test_damaged_files_never_stop_the_page(finished, tmp_path, content):
    for name in DAMAGED:
        (finished.root / name).write_bytes(content)
    write_report(finished.root, tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "stages" in Parsed(page).sections


def test_data_are_shown_without_a_list_of_exclusions(finished, tmp_path):
    finished.write("check/excluded.tsv", "cut short")
    problems = write_report(finished.root, tmp_path / "page.html")
    assert any("excluded.tsv" in problem for problem in problems)
    parsed = Parsed((tmp_path / "page.html").read_text(encoding="utf-8"))
    assert parsed.sections == SECTIONS


def test_copies_of_the_stages_files_hide_no_stage(finished, tmp_path, page):
    for name in ("stages/04 (copy).failed.txt", ".partial/05 (copy).json"):
        finished.write(name, "{}")
    assert write_report(finished.root, tmp_path / "again.html") == []
    assert (tmp_path / "again.html").read_text(encoding="utf-8") == page


def _mutated(value, rng):
    """Replace one node of a JSON value at random."""
    inside = list(value.items()) if isinstance(value, dict) else []
    inside = list(enumerate(value)) if isinstance(value, list) else inside
    if not inside or rng.random() < 0.2:
        return rng.choice([None, 7, -1.5, "x", [], {}, [3], {"a": "b"}, True, "9" * 40, HUGE])
    key, chosen = rng.choice(inside)
    value[key] = _mutated(chosen, rng)
    return value


def test_fields_of_other_types_never_stop_the_page(finished, tmp_path):
    rng = random.Random(0)
    names = [name for name in DAMAGED if name.endswith(".json")]
    originals = {name: (finished.root / name).read_text(encoding="utf-8") for name in names}
    for name in names * 6:
        mutated = json.dumps(_mutated(json.loads(originals[name]), rng))
        (finished.root / name).write_text(mutated, encoding="utf-8")
        write_report(finished.root, tmp_path / "page.html", ReportConfig(utterances=0))
        (finished.root / name).write_text(originals[name], encoding="utf-8")
        page = (tmp_path / "page.html").read_text(encoding="utf-8")
        assert "provenance" in Parsed(page).sections, mutated


def test_missing_audio_is_reported(finished, tmp_path):
    shutil.rmtree(finished.root / "corpus")
    problems = write_report(finished.root, tmp_path / "page.html")
    assert any("no such audio file" in problem for problem in problems)
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "<audio" not in page
    assert "could not be read" in page


def test_a_folder_without_a_run_is_refused(tmp_path):
    with pytest.raises(ReportError, match="not a run directory"):
        write_report(tmp_path, tmp_path / "page.html")
    with pytest.raises(ReportError, match="not a folder"):
        write_report(tmp_path / "nothing", tmp_path / "page.html")


def test_the_command_writes_into_the_run_directory(finished):
    result = CliRunner().invoke(cli.main, ["report", str(finished.root)])
    assert result.exit_code == 0, result.output
    assert (finished.root / "report.html").exists()
    assert "report.html" in result.output


def test_the_same_run_gives_the_same_page(finished, tmp_path):
    for name in ("a.html", "b.html"):
        write_report(finished.root, tmp_path / name)
    assert (tmp_path / "a.html").read_bytes() == (tmp_path / "b.html").read_bytes()


WATCH = """<script>
window.addEventListener("error", (e) => document.documentElement.setAttribute("broken", e.message));
window.alert = () => document.documentElement.setAttribute("broken", "alert");
</script>"""
LOOK = """<script>
document.querySelector(".picture").click();
const done = () => {
  const ready = [...document.querySelectorAll("audio")].filter((a) => a.duration > 0).length;
  const root = document.documentElement;
  root.setAttribute("players", ready);
  root.setAttribute("overflow", root.scrollWidth - root.clientWidth);
};
setTimeout(done, 3000);
</script>"""


@needs_browser
@pytest.mark.parametrize("width", [1280, 400])
def test_the_page_works_in_a_browser(page, tmp_path, width):
    watched = tmp_path / "watched.html"
    watched.write_text(
        page.replace("<head>", f"<head>{WATCH}").replace("</body>", f"{LOOK}</body>"),
        encoding="utf-8",
    )
    html = rendered_html(watched, f"--window-size={width},2000", "--virtual-time-budget=6000")
    root = re.search(r"<html[^>]*>", html)[0]
    assert "broken" not in root
    assert 'players="6"' in root
    assert 'overflow="0"' in root, "the page is wider than the screen"
    assert re.findall(r'<section id="(\w+)"', html) == SECTIONS


def test_styles_for_dark_screens_do_not_reach_paper(page):
    style = page.partition("<style>")[2].partition("</style>")[0]
    assert style.count("@media screen and (prefers-color-scheme: dark)") == 2
    assert style.count("prefers-color-scheme") == 2
    assert "@media print" in style
    assert "color-scheme: light;" in style


def test_invalid_unicode_does_not_stop_the_page(finished, tmp_path):
    lone = "\\ud800"
    path = finished.root / "data/dev.jsonl"
    path.write_text(path.read_text().replace("the cat sat", f"the {lone} sat"))
    for name in ("mono", "lstm"):
        text = finished.root / f"decode/{name}/dev/text"
        text.write_text(text.read_text().replace("the hat", "the"))
    write_report(finished.root, tmp_path / "page.html")
    assert "the" in (tmp_path / "page.html").read_text(encoding="utf-8")


def test_numbers_beyond_a_float_drop_only_their_part(finished, tmp_path):
    gain = {"split": "dev", "werr": 1.0, "low": HUGE, "high": HUGE}
    (finished.root / "werr.json").write_text(json.dumps({"lstm": [gain]}))
    write_report(finished.root, tmp_path / "page.html", ReportConfig(utterances=0))
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "OverflowError" in page
    assert "provenance" in Parsed(page).sections


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", ["check/report.json", "data/dev.jsonl", "decode/mono/dev/text"])
def test_the_page_does_not_wait_for_a_pipe(finished, tmp_path, name):
    (finished.root / name).unlink()
    os.mkfifo(finished.root / name)
    write_report(finished.root, tmp_path / "page.html", ReportConfig(utterances=0))
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "provenance" in Parsed(page).sections
    assert "not a regular file" in page


@pytest.fixture
def write(tmp_path):
    (tmp_path / "stages").mkdir()

    def write_grid(system, head, rows, chosen, name="tuned.json"):
        folder = tmp_path / "decode" / system
        folder.mkdir(parents=True)
        lines = ["\t".join(head.split()), *("\t".join(row.split()) for row in rows)]
        (folder / "grid.tsv").write_text("".join(f"{line}\n" for line in lines))
        (folder / name).write_text(json.dumps(chosen))
        return RunFolder.open(tmp_path)

    return write_grid


def cells(html):
    return re.findall(r'<td( class="chosen")? style="--shade:\d+%">([\d.]+)</td>', html)


def test_a_grid_of_two_weights_is_a_table(write):
    head = "acoustic_scale word_penalty errors words wer search_scale"
    rows = ["0.1 0 3 10 30.00 0.1", "0.1 -1 2 10 20.00 0.1", "0.2 0 4 10 40.00 0.1"]
    run = write("mono", head, rows, {"acoustic_scale": 0.1, "word_penalty": -1.0})
    html = weight_grids(run)
    assert [(bool(chosen), wer) for chosen, wer in cells(html)] == [
        (True, "20.00"),
        (False, "30.00"),
        (False, "40.00"),
    ]
    assert "<td></td>" in html  # 0.2 with -1 was not tried
    assert "Lowest WER over" not in html


def test_with_three_weights_the_grid_has_the_minimum_over_the_third(write):
    head = "neural acoustic_scale word_penalty errors words wer search_scale"
    rows = ["0 0.2 -1 3 10 30.00 1", "0 0.2 0 2 10 20.00 1", "1 0.2 0 5 10 50.00 1"]
    chosen = {"neural": 0.0, "acoustic_scale": 0.2, "word_penalty": 0.0}
    html = weight_grids(write("lstm_lm", head, rows, chosen, "weights.json"))
    assert [(bool(chosen), wer) for chosen, wer in cells(html)] == [
        (True, "20.00"),
        (False, "50.00"),
    ]
    assert "Lowest WER over all values of word penalty" in html


def test_a_combination_has_a_rule_and_a_weight_for_each_system(write):
    head = "rule sat lstm errors words wer"
    rows = ["mbr 1 0 3 10 30.00", "mbr 0.5 0.5 2 10 20.00", "best 0.5 0.5 1 10 10.00"]
    chosen = {"rule": "best", "weights": {"sat": 0.5, "lstm": 0.5}}
    html = weight_grids(write("combined", head, rows, chosen))
    assert [(bool(chosen), wer) for chosen, wer in cells(html)] == [
        (False, "20.00"),
        (False, "30.00"),
        (True, "10.00"),
    ]


@pytest.mark.parametrize("turned", [False, True])
def test_weights_are_in_the_order_of_their_values(write, turned):
    scales, penalties = ["0.7", "1", "10", "0.576471"], ["0", "-2", "2", "-1"]
    head, first, second = "acoustic_scale word_penalty", scales, penalties
    if turned:
        head, first, second = "word_penalty acoustic_scale", penalties, scales
    rows = [f"{a} {b} 1 10 10.00" for a in first for b in second]
    html = weight_grids(write("mono", f"{head} errors words wer", rows, {}))
    down = re.findall(r'<th scope="row">(.*?)</th>', html)
    across = re.findall(r'<th scope="col">(.*?)</th>', html)
    headings = [["0.576471", "0.7", "1", "10"], ["-2", "-1", "0", "2"]]
    assert [down, across] == (headings[::-1] if turned else headings)


def test_a_stage_shows_the_commits_of_all_its_attempts():
    done = marker(3, "Train")
    codes = [
        CodeVersion(letter and letter * 40, letter == "b", "", {}) for letter in (*"aabb", None)
    ]
    done.provenance.attempts[:] = [attempt(code) for code in codes]
    cells = commands_table([StageView(3, "Train", "done", marker=done)]).rows[0].cells
    assert cells[2].text == "aaaaaaaaaaaa, bbbbbbbbbbbb with local changes, unknown"


def test_the_table_of_stages_has_their_memory():
    sizes = {1: 300 << 20, 2: 3 << 30, 3: 0}
    views = [
        StageView(n, "Train", "done", marker=marker(n, "Train", peak_bytes=size))
        for n, size in sizes.items()
    ]
    table_html = stage_table(views)
    assert "<td>300 MiB</td>" in table_html
    assert "<td>3.0 GiB</td>" in table_html
    assert table_html.count("<td></td>") == 1
