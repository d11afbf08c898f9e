"""Layout of the page on a wide screen and on a phone."""

import json
import re
from html import unescape

import pytest

from tests.browser import needs_browser, rendered_html
from tests.report.conftest import marker
from toolkit.align.ctm_textgrid import TimedToken
from toolkit.report.media import Clip, aligned_player
from toolkit.report.pages import Page
from toolkit.report.run_page import STYLES, ReportConfig, write_report

CLIP = Clip(2.0, "data:audio/flac;base64,", "data:image/png;base64,")
PHONE = """
const root = document.documentElement, table = document.querySelector("#results .table");
const box = table.querySelector(".scroll").getBoundingClientRect();
const edges = [...table.querySelectorAll("tbody tr")].map((row) =>
  [...row.querySelectorAll("td")].filter((cell) => cell.getBoundingClientRect().width > 0)
    .map((cell) => cell.getBoundingClientRect().right - box.right));
const wide = [...document.querySelectorAll("body *")].filter((one) => !one.closest(".scroll")
  && one.getBoundingClientRect().right > innerWidth).map((one) => one.outerHTML.slice(0, 200));
const told = { width: innerWidth, overflow: root.scrollWidth - root.clientWidth, edges, wide };
"""
STAGES = """
const drawn = (cell) => {
  const text = document.createRange();  // it may be wider than its cell
  text.selectNodeContents(cell);
  return text.getBoundingClientRect();
};
const told = [...document.querySelectorAll("#stages tbody tr")].map((row) =>
  [...row.children].map((cell) => [cell.textContent, drawn(cell)]));
"""
AXIS = """
const box = document.querySelector(".scroll").getBoundingClientRect();
const told = [...document.querySelectorAll(".khz b, .khz span")].map((one) => {
  const own = one.getBoundingClientRect();
  return [one.textContent, own.left - box.left, own.top - box.top];
});
"""


def positions(page, width, script):
    """Return the value of `told` after a script has run in a page of this width."""
    inside = page.with_name("inside.html")
    tell = f"<script>{script}parent.postMessage(JSON.stringify(told), '*');</script>"
    html = page.read_text(encoding="utf-8").replace("</body>", f"{tell}</body>")
    inside.write_text(html, encoding="utf-8")
    # A window cannot be as narrow as a phone.
    outside = page.with_name("outside.html")
    outside.write_text(
        "<html><body><script>onmessage = (event) => "
        "document.documentElement.setAttribute('data-told', event.data)</script>"
        f'<iframe src="{inside.as_uri()}" style="width:{width}px;height:3000px;border:0"></iframe>'
    )
    html = rendered_html(outside, "--virtual-time-budget=6000")
    return json.loads(unescape(re.search(r'data-told="([^"]*)"', html)[1]))


@needs_browser
def test_error_rates_are_seen_without_scrolling_on_a_phone(finished, tmp_path):
    write_report(finished.root, tmp_path / "page.html")
    outcome = positions(tmp_path / "page.html", 400, PHONE)
    assert outcome["width"] == 400
    assert outcome["overflow"] == 0, outcome["wide"]
    assert len(outcome["edges"]) == 2  # mono and lstm
    for edges in outcome["edges"]:
        assert len(edges) == 2  # WER on dev and test; LM and CER are left out
        assert max(edges) <= 0.5


@needs_browser
@pytest.mark.parametrize("width", [400, 1200])
def test_nothing_of_a_stage_is_printed_over_something_else(made_up, tmp_path, width):
    headline = {"train_hours": 1.213, "dev_hours": 0.1537, "test_hours": 0.1025}
    for number, memory in ((1, 0), (2, 2_400_000_000)):
        done = marker(number, "Get the audio", headline=headline, peak_bytes=memory)
        done.write(made_up.root / f"stages/0{number}.json")
    write_report(made_up.root, tmp_path / "page.html", ReportConfig(utterances=0))
    rows = positions(tmp_path / "page.html", width, STAGES)
    assert [row[4][0] for row in rows] == ["", "2.2 GiB"]
    for row in rows:
        cells = [(text, box) for text, box in row if text]
        assert any("train_hours" in text for text, _ in cells)
        for n, (text, a) in enumerate(cells):
            for text_before, b in cells[:n]:
                beside = a["right"] <= b["left"] + 0.5 or b["right"] <= a["left"] + 0.5
                below = a["bottom"] <= b["top"] + 0.5 or b["bottom"] <= a["top"] + 0.5
                assert beside or below, (text, text_before)


@needs_browser
@pytest.mark.parametrize("width", [400, 1200])
def test_the_axis_of_an_alignment_is_not_cut_off(tmp_path, width):
    sound = aligned_player(CLIP, "u", [TimedToken("the", 0.1, 0.4)], [])
    card = f'<article class="box"><div class="scroll aligned">{sound}</div></article>'
    page = Page("One", "", styles=STYLES)
    html = page.html().replace("<main>", f"<main>{card}")
    (tmp_path / "page.html").write_text(html, encoding="utf-8")
    labels = positions(tmp_path / "page.html", width, AXIS)
    assert [text for text, _, _ in labels] == ["kHz", "0", "2", "4", "6", "8"]
    assert min(left for _, left, _ in labels) >= 0
    assert min(top for _, _, top in labels) >= 0
