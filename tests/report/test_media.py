"""The player of an utterance: spectrogram, audio, words below it."""

import base64
import io
import re
from pathlib import Path

import numpy as np
import pytest
from matplotlib.image import imread

from tests.browser import needs_browser, rendered_html
from tests.report.conftest import HOSTILE
from toolkit.align.ctm_textgrid import TimedToken, write_ctm
from toolkit.report.error_analysis import marked_alignment
from toolkit.report.media import Clip, player, read_word_times, spectrogram
from toolkit.report.pages import Page
from toolkit.report.run_data import Decode
from toolkit.report.run_folder import RunFolder
from toolkit.report.run_page import SCRIPTS, STYLES
from toolkit.score.wer import score


def test_spectrogram_shows_a_tone_where_it_is():
    time = np.arange(16000) / 16000
    samples = 0.5 * np.sin(2 * np.pi * 2000 * time) * (time > 0.5)
    image = base64.b64decode(spectrogram(samples).partition(",")[2])
    brightness = imread(io.BytesIO(image))[..., :3].sum(axis=2)
    row, column = np.unravel_index(brightness.argmax(), brightness.shape)
    assert abs(row - 96 * (1 - 2000 / 8000)) <= 1.5
    assert column >= brightness.shape[1] // 2
    assert brightness[:, : brightness.shape[1] // 3].max() < brightness.max() / 2


CLIP = Clip(2.0, "data:audio/flac;base64,", "data:image/png;base64,")


def score_utterance(reference, recognised):
    return score({"u": reference}, {"u": recognised}).utterances[0]


def entries(*words):
    return [TimedToken(*word) for word in words]


def test_words_are_drawn_at_their_times_with_boundaries_and_axes():
    utterance = score_utterance("the cat sat", f"the {HOSTILE} sat down")
    times = entries(("the", 0.1, 0.4), (HOSTILE, 0.4, 1.0), ("sat", 1.0, 1.5), ("down", 1.6, 2.0))
    html = player(CLIP, times, utterance)
    assert HOSTILE not in html
    spans = re.findall(r'<span class="(\w+)" style="left:([\d.]+)%;width:([\d.]+)%', html)
    assert spans == [
        ("right", "5.00", "15.00"),
        ("sub", "20.00", "30.00"),
        ("right", "50.00", "25.00"),
        ("new", "80.00", "20.00"),
    ]
    edges = re.findall(r'<i class="edge" style="left:([\d.]+)%"', html)
    assert [float(edge) for edge in edges] == [5, 20, 50, 75, 80, 100]
    assert re.findall(r'<span style="bottom:([\d.]+)%">(\d)<', html) == [
        ("0", "0"),
        ("25", "2"),
        ("50", "4"),
        ("75", "6"),
        ("100", "8"),
    ]
    ticks = re.findall(r'<span style="left:([\d.]+)%">([\d.]+)<', html)
    assert len(ticks) >= 3
    assert all(float(left) == pytest.approx(50 * float(at), abs=0.01) for left, at in ticks)


@pytest.mark.parametrize("times", [(), (("a", 0, 1),), (("a", 0, 1), ("c", 1, 2))])
def test_times_of_another_text_are_not_shown(times):
    html = player(CLIP, entries(*times), score_utterance("a b", "a b"))
    assert 'class="times"' not in html
    assert "edge" not in html
    assert "<audio" in html


def test_word_times_come_from_the_decode_and_damaged_ones_are_reported(tmp_path):
    (tmp_path / "stages").mkdir()
    run, decode_folder = RunFolder.open(tmp_path), tmp_path / "decode/lstm/dev"
    decode = Decode("lstm", "dev", score({"u": "a"}, {"u": "a"}), decode_folder)
    assert read_word_times(run, decode) == {}
    decode_folder.mkdir(parents=True)
    write_ctm([("u", "1", entries(("a", 0.0, 0.5)))], decode_folder / "words.ctm")
    assert [entry.token for entry in read_word_times(run, decode)["u"]] == ["a"]
    assert run.problems == []
    (decode_folder / "words.ctm").write_text("u 1 now a\n")
    assert read_word_times(run, decode) == {}
    assert len(run.problems) == 1


LOOK = """<script>
const audio = document.querySelector("audio"), told = [];
const elements = [...document.querySelectorAll(".times > span"),
  ...document.querySelectorAll(".spoken > span, .spoken > ins")];
let now = 0;
Object.defineProperty(audio, "currentTime", { get: () => now, set: (value) => { now = value; } });
audio.play = () => {};
for (const time of [0.05, 0.2, 0.4, 1.55, 1.7]) {
  now = time;
  audio.dispatchEvent(new Event("timeupdate"));
  told.push(elements.filter((e) => e.matches(".now")).map((e) => e.textContent).join("+"));
}
elements[2].click();
document.documentElement.setAttribute("data-told", [...told, now].join(" | "));
</script>"""


@needs_browser
def test_words_are_highlighted_while_they_are_played(tmp_path):
    utterance = score_utterance("the big cat sat", "the hat sat down")
    times = entries(("the", 0.1, 0.4), ("hat", 0.4, 1.0), ("sat", 1.0, 1.5), ("down", 1.6, 2.0))
    text = f'<dl class="said"><dd class="spoken">{marked_alignment(utterance, True)}</dd></dl>'
    card = f'<article class="utterance">{player(CLIP, times, utterance)}{text}</article>'
    page = Page("One", "", styles=STYLES, scripts=SCRIPTS)
    html = page.html().replace("<main>", f"<main>{card}").replace("</body>", f"{LOOK}</body>")
    path = Path(tmp_path, "page.html")
    path.write_text(html, encoding="utf-8")
    highlighted = re.search(r'data-told="([^"]*)"', rendered_html(path))[1].split(" | ")
    assert highlighted == ["", "the+the", "hat+hat", "", "down+down", "1"]
