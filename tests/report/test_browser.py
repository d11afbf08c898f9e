"""The list of all utterances, and the script that sorts and filters it."""

import json
import random
import re
from html.parser import HTMLParser
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from tests.browser import needs_browser, rendered_html
from tests.report.conftest import HOSTILE
from toolkit.report.error_analysis import SplitErrors
from toolkit.report.pages import Budget, Page, Section
from toolkit.report.run_data import Decode, Split, Utterance
from toolkit.report.run_page import SCRIPTS, STYLES, compact_alignment, utterance_browser
from toolkit.score.wer import score

WORDS = st.one_of(st.none(), st.sampled_from(["a", "b", "c", HOSTILE]))


def split_errors(texts, hypotheses, name="dev", snr=None):
    """A split that one system has decoded; every second utterance is by speaker-1."""
    utterances = {
        id: Utterance(1.0 + n / 8, f"speaker-{n % 2}", text, 0, snr and snr[n])
        for n, (id, text) in enumerate(texts.items())
    }
    speakers = {id: utterance.speaker for id, utterance in utterances.items()}
    decode = Decode("lstm", name, score(texts, hypotheses, speakers=speakers), Path())
    return SplitErrors(Split(name, Path(), utterances, 0), [decode])


class Rows(HTMLParser):
    """The rows of each split by their titles."""

    def __init__(self, text):
        super().__init__()
        self.rows, self.left_out, self.tags, self._title = {}, {}, [], None
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        values = dict(attributes)
        self._title = values.get("data-title")
        if self._title:
            self.left_out[self._title] = int(values["data-left-out"])

    def handle_data(self, data):
        if self._title:
            self.rows[self._title] = json.loads(data)

    def handle_endtag(self, tag):
        self._title = None


@given(st.lists(st.tuples(WORDS, WORDS).filter(any), max_size=30))
def test_compact_pieces_restore_the_alignment(pairs):
    restored = []
    for piece in compact_alignment(pairs):
        restored += [(w, w) for w in piece.split(" ")] if isinstance(piece, str) else [tuple(piece)]
    assert restored == pairs


def test_every_utterance_has_a_row_as_plain_text():
    texts = {"u1": "a b", "u2": f"{HOSTILE} c", HOSTILE: "d"}
    errors = split_errors(texts, {"u1": "a b", "u2": "c", HOSTILE: "d e"}, snr=[3.5, None, -2.0])
    parsed = Rows(utterance_browser([errors], Budget(100_000)))
    assert "script" not in parsed.tags
    assert parsed.left_out == {"dev, lstm": 0}
    assert parsed.rows["dev, lstm"] == [
        ["u1", "speaker-0", 1.0, 3.5, 0, 2, ["a b"]],
        ["u2", "speaker-1", 1.12, None, 1, 2, [[HOSTILE, None], "c"]],
        [HOSTILE, "speaker-0", 1.25, -2.0, 1, 1, ["d", [None, "e"]]],
    ]


def test_utterances_with_most_errors_stay_when_not_all_fit():
    texts = {f"u{n:03d}": "a b c" for n in range(200)}
    wrong = {id: " ".join("abc"[: n % 4]) for n, id in enumerate(texts)}
    splits = [split_errors(texts, wrong, name) for name in ("dev", "test")]
    for room in (4_000, 12_000, 30_000):
        budget = Budget(room)
        html = utterance_browser(splits, budget)
        # Form and table are not counted; the rows take half of the page at most.
        rows = "".join(re.findall(r'<div class="rows".*?</div>', html, re.DOTALL))
        assert len(rows.encode()) <= room / 2
        parsed = Rows(html)
        assert list(parsed.rows) == ["dev, lstm", "test, lstm"]
        for title, rows_shown in parsed.rows.items():
            assert len(rows_shown) + parsed.left_out[title] == 200
            fewest = min(row[4] for row in rows_shown)
            more = [n for n in range(200) if 3 - n % 4 > fewest]
            assert {f"u{n:03d}" for n in more} <= {row[0] for row in rows_shown}


def test_nothing_to_browse_makes_no_browser():
    assert utterance_browser([], Budget(1000)) == ""
    assert utterance_browser([split_errors({"u1": "a"}, {"u1": "a"})], Budget(10)) == ""


LOOK = """<script>
try {
  const root = document.documentElement, all = (what) => [...document.querySelectorAll(what)];
  const form = document.querySelector(".controls").elements;
  const press = (name) => document.querySelector(`.pager [name=${name}]`).click();
  const sort = (name) => all(".listed th button").find((b) => b.textContent === name).click();
  const type = (name, value) => {
    form[name].value = value;
    form[name].dispatchEvent(new Event("input", { bubbles: true }));
  };
  const steps = [];
  const step = (what) => steps.push([what, document.querySelector("output").textContent,
    all(".listed tbody th").map((cell) => cell.textContent)]);
  step("begin");
  sort("utterance"); step("sorted");
  const focused = document.activeElement.textContent;
  press("next"); step("next");
  press("last"); step("last");
  press("next"); step("beyond");
  sort("utterance"); step("down");
  type("speaker", "speaker-1"); step("speaker");
  type("errors-from", "3"); step("errors");
  type("seconds-to", "100"); step("seconds");
  type("text", " CRAB "); step("text");
  type("snr-from", "20"); step("snr");
  document.querySelector(".controls button").click(); step("reset");
  type("split", "1"); step("split");
  const sorted = all(".listed th[aria-sort]").map((cell) => cell.getAttribute("aria-sort"));
  const reached = all(".browser :is(button, input, select)").every((e) => e.tabIndex === 0);
  const named = all(".browser :is(input, select)").every((e) => e.labels.length === 1);
  const outcome = { steps, focused, sorted, reached, named };
  root.setAttribute("data-outcome", JSON.stringify(outcome));
} catch (error) {
  document.documentElement.setAttribute("data-outcome", JSON.stringify(String(error)));
}
</script>"""


@needs_browser
def test_ten_thousand_utterances_are_browsed_from_a_file(tmp_path):
    chance = random.Random(1)
    animals = ["ant", "bee", "crab", "deer", "eel", "fox"]
    texts = {f"u{n:05d}": " ".join(chance.choices(animals, k=8)) for n in range(10_000)}
    wrong = {
        id: " ".join("owl" if chance.random() < 0.2 else word for word in text.split())
        for id, text in texts.items()
    }
    snr = [chance.choice([None, 10.0, 30.0]) for _ in texts]
    first = split_errors(texts, wrong, "dev", snr)
    second = split_errors({"x1": HOSTILE, "x2": "a"}, {"x1": "b", "x2": "a"}, "test")
    page = Page("Many", "", styles=STYLES, scripts=SCRIPTS)
    html = utterance_browser([first, second], Budget(20_000_000))
    assert Rows(html).left_out == {"dev, lstm": 0, "test, lstm": 0}
    page.add(Section("browse", "All", parts=[html]))
    path = tmp_path / "page.html"
    path.write_text(page.html().replace("</body>", f"{LOOK}</body>"), encoding="utf-8")
    marked = re.search(r'<html[^>]* data-outcome="([^"]*)"', rendered_html(path))[1]
    outcome = json.loads(marked.replace("&quot;", '"').replace("&amp;", "&"))
    steps = {step: (status, ids) for step, status, ids in outcome["steps"]}

    rows = Rows(html).rows["dev, lstm"]
    by_errors = sorted(rows, key=lambda row: (-row[4], row[0]))
    assert steps["begin"] == ("1 to 25 of 10,000", [row[0] for row in by_errors[:25]])
    assert steps["sorted"][1] == list(texts)[:25]
    assert steps["next"] == ("26 to 50 of 10,000", list(texts)[25:50])
    assert steps["last"] == ("9,976 to 10,000 of 10,000", list(texts)[-25:])
    assert steps["beyond"] == steps["last"]
    assert steps["down"][1] == list(texts)[:-26:-1]

    def check(step, fits):
        matching = [row for row in reversed(rows) if fits(row)]
        assert steps[step][0].endswith(f" of {len(matching):,}")
        assert steps[step][1] == [row[0] for row in matching[:25]]

    tests = [
        ("speaker", lambda row: row[1] == "speaker-1"),
        ("errors", lambda row: row[4] >= 3),
        ("seconds", lambda row: row[2] <= 100),
        ("text", lambda row: "crab" in f"{texts[row[0]]} {wrong[row[0]]}"),
        ("snr", lambda row: row[3] is not None and row[3] >= 20),
    ]
    for n, (step, _) in enumerate(tests, 1):
        check(step, lambda row, n=n: all(fits(row) for _, fits in tests[:n]))
    check("reset", lambda row: True)
    assert steps["split"] == ("1 to 2 of 2", ["x2", "x1"])
    assert outcome["focused"] == "utterance"
    assert outcome["sorted"] == ["descending"]
    assert outcome["reached"]
    assert outcome["named"]
