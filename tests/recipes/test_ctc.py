"""The CTC recipe from audio to error rates and the page of times to accuracy."""

import json
import shutil

import pytest

from toolkit.align.ctm_textgrid import read_ctm
from toolkit.corpus.manifest import read_cuts, text_of
from toolkit.environment import machine
from toolkit.score.wer import score

pytestmark = pytest.mark.long

SEARCHES = ["greedy", "prefixes", "words", "words+4gram", "graph+4gram"]
RESCORED = "words+4gram+lstm"


@pytest.fixture(scope="module")
def exp(commands, tmp_path_factory):
    root = tmp_path_factory.mktemp("ctc") / "exp"
    result = commands.run_ctc("--exp", root)
    assert result.status == 0, result.output + result.errors
    assert f"Report: {(root / 'report.html').resolve().as_uri()}" in result.output
    return root


def texts(path):
    return dict(line.partition(" ")[::2] for line in path.read_text().splitlines())


def test_every_search_has_word_times_for_the_page(exp):
    page = (exp / "report.html").read_text(encoding="utf-8")
    assert 'class="times"' in page
    for search in [*(f"ctc/{search}" for search in SEARCHES), "ctc_lstm_lm"]:
        hypotheses, timed = texts(exp / "decode" / search / "test/text"), {}
        for entry in read_ctm(exp / "decode" / search / "test/words.ctm"):
            timed.setdefault(entry.utterance, []).append(entry.token)
        assert timed, search
        assert all(hypotheses[name].split() == words for name, words in timed.items())


def test_results_have_a_row_for_each_search_and_split(exp):
    rows = json.loads((exp / "results.json").read_text())
    searches = [*SEARCHES, RESCORED]
    expected = [("ctc", search, split) for search in searches for split in ("dev", "test")]
    assert [(row["system"], row["lm"], row["split"]) for row in rows] == expected


def test_the_headline_has_the_share_within_the_length_limit(exp):
    headline = json.loads((exp / "stages" / "06.json").read_text())["headline"]
    assert headline["kept_percent train"] == headline["kept_percent dev"] == 100
    assert headline["too_long test"] == 0


def test_the_lstm_language_model_does_not_depend_on_the_ngrams(exp):
    """It does not depend on the features of the decoded splits either."""
    marker = json.loads((exp / "stages" / "09.json").read_text())
    assert {key for key in marker["parameters"] if key[:2] == "lm"} == {"lm.text", "lm.arpa"}
    read = {name for name in marker["inputs"] if not name.startswith("/")}
    assert read == {"check/excluded.tsv", "corpus/lm.txt", "data/train.jsonl", "words.txt"}


def test_the_network_learns(exp):
    history = json.loads((exp / "ctc" / "history.json").read_text())
    assert history[-1]["loss"] < 0.7 * history[0]["loss"]
    assert history[-1]["valid_cer"] < 80


def test_the_dictionary_and_the_language_model_help(exp):
    rows = json.loads((exp / "results.json").read_text())
    wer = {(row["lm"], row["split"]): row["wer"] for row in rows}
    assert wer["words+4gram", "dev"] < wer["words", "dev"] < wer["greedy", "dev"]


def test_states_are_logged_and_shown(exp):
    events = {json.loads(line)["event"] for line in (exp / "ctc" / "log.jsonl").open()}
    assert {"created", "step", "sentences", "saved", "swapped", "evaluated", "finished"} <= events
    page = (exp / "tta" / "index.html").read_text()
    assert "Time to accuracy" in page
    assert machine()["cpu"] in page
    assert "Final word error rates" in page
    assert "log-mel energies" in page
    assert "Speaker model" in page
    assert all(f"<dt>{fact}</dt>" in page for fact in ("processor", "threads", "precision"))


def test_the_page_names_the_search_behind_the_curves(exp):
    page = (exp / "tta" / "index.html").read_text()
    assert "Recognised by words+lm, width 4, all utterances." in page
    rows = (exp / "tta" / "evaluations.csv").read_text().splitlines()
    assert rows[0].endswith(",search")
    assert all('"words+lm, width 4, all utterances"' in row for row in rows[1:])


def test_the_bundle_chooses_as_the_recipe_did(exp):
    from toolkit.decode.ctc.recogniser import CtcRecogniser
    from toolkit.decode.ctc.system import Posteriors

    recogniser = CtcRecogniser(exp / "final" / "ctc")
    assert recogniser.settings.rescored
    weights = json.loads((exp / "decode/ctc/words+4gram/tuned.json").read_text())
    fast = CtcRecogniser(exp / "final" / "ctc", fast=True).settings.search
    assert (fast.lm_weight, fast.word_bonus) == (weights["lm_weight"], weights["word_bonus"])
    for split in ("dev", "test"):
        expected = texts(exp / "decode/ctc_lstm_lm" / split / "text")
        hypotheses = {
            name: recogniser.best_text(recogniser.decoder.decode(rows))
            for name, rows in Posteriors(exp / "posteriors" / split).items()
        }
        assert hypotheses == expected


def test_without_the_lstm_language_model_the_bundle_searches_as_the_recipe_did(
    commands, exp, tmp_path
):
    from toolkit.decode.ctc.recogniser import CtcRecogniser
    from toolkit.decode.ctc.system import Posteriors

    copy = shutil.copytree(exp, tmp_path / "copy")
    settings = ("--set", "neural=false", "--set", "detect_speech=false")
    result = commands.run_ctc("--exp", copy, *settings)
    assert result.status == 0, result.output + result.errors
    assert result.stages("==") == [12, 13]
    decoded = copy / "decode/ctc/words+4gram"
    width = json.loads((decoded / "widths.json").read_text())[-1]["width"]
    recogniser = CtcRecogniser(copy / "final" / "ctc")
    assert not recogniser.settings.rescored
    search = recogniser.decoder.with_beam(width, 25.0)
    posteriors = Posteriors(copy / "posteriors/dev")
    hypotheses = {name: search.decode(rows)[0].text for name, rows in posteriors.items()}
    assert hypotheses == texts(decoded / "dev/text")
    rows = json.loads((copy / "results.json").read_text())
    assert {row["lm"] for row in rows} == set(SEARCHES)


def test_the_bundle_transcribes_nearly_as_well(commands, exp):
    """The bundle transcribes without a speaker's running mean."""
    audio = sorted((exp / "corpus" / "dev").rglob("*.flac"))
    result = commands.toolkit("transcribe", "--model", exp / "final", *audio)
    assert result.status == 0, result.errors
    lines = [line.partition(" ") for line in result.output.splitlines()]
    hypotheses = {path.rpartition("/")[2].removesuffix(".flac"): text for path, _, text in lines}
    cuts = read_cuts(exp / "data" / "dev.jsonl")
    scored = score({cut.id: text_of(cut) for cut in cuts}, hypotheses)
    rows = json.loads((exp / "results.json").read_text())
    (table,) = [r["wer"] for r in rows if (r["lm"], r["split"]) == (RESCORED, "dev")]
    assert 100 * scored.errors / scored.ref_units < table + 15


def test_the_card_has_the_error_rates_of_the_command(commands, exp):
    (system,) = json.loads((exp / "final/systems.json").read_text())
    assert system["roles"][:2] == ["speaker_known", "speaker_unknown"]
    card = json.loads((exp / "final/ctc/card.json").read_text())
    assert card["wer"] == system["wer"]
    assert (card["corpus"], card["speakers"]) == ("synthetic", 3)
    assert card["words"] == len((exp / "words.txt").read_text().split())
    audio = sorted((exp / "corpus/test").rglob("*.flac"))
    result = commands.toolkit("transcribe", "--model", exp / "final", *audio)
    assert result.status == 0, result.errors
    first, note = result.errors.splitlines()
    assert first.startswith("ctc: CTC BLSTM with words")
    assert first.endswith(" (speaker known / unknown) on its own test set")
    assert note.startswith("no speaker is named: every recording counts")
    hypotheses = dict(line.partition(" ")[::2] for line in result.output.splitlines())
    cuts = read_cuts(exp / "data/test.jsonl")
    scored = score({cut.id: text_of(cut) for cut in cuts}, hypotheses)
    assert card["wer_unknown_speaker"]["test"] == pytest.approx(scored.percent, abs=0.005)


def test_a_second_run_skips_every_stage(commands, exp):
    results = (exp / "results.json").read_bytes()
    result = commands.run_ctc("--exp", exp)
    assert result.status == 0
    assert result.stages("==") == []
    assert (exp / "results.json").read_bytes() == results
