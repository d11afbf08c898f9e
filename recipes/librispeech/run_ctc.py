#!/usr/bin/env python3
"""The CTC recogniser: a time-to-accuracy benchmark of training hardware."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
from toolkit.stages.bootstrap import use_project_environment

use_project_environment(ROOT)

from recipes import steps
from recipes.librispeech.ctc_config import PROFILES
from toolkit.stages.declaration import Headline
from toolkit.stages.recipe import Recipe
from toolkit.stages.run import Run

recipe = Recipe(
    "librispeech_ctc",
    Path(__file__),
    PROFILES,
    title=__doc__,
    exp_prefix="ctc-",
    on_finish=lambda folder: steps.data.show_results(folder),
    modules=["recipes.steps.data", "recipes.steps.ctc"],
)


@recipe.stage(1, "Get the audio: synthesise or download it, unless corpus.root is set")
def get_audio(run: Run) -> Headline | None:
    """Make or download the corpus; a corpus at corpus.root is read in place, without copying."""
    return steps.data.get_corpus(run)


@recipe.stage(2, "Write the manifests")
def write_manifests(run: Run) -> Headline:
    """Write a line per utterance; the next stage checks for faults."""
    return steps.data.write_corpus(run, steps.ctc.transcript_policy(run))


@recipe.stage(3, "Check the data")
def check_data(run: Run) -> Headline:
    """Find all faults at once, before anything expensive; unusable utterances are excluded."""
    return steps.ctc.check_letters(run)


@recipe.stage(4, "Choose output units, dictionary and language model")
def prepare_output(run: Run) -> Headline:
    """Choose characters or word pieces (A16); the dictionary has the training words (A21)."""
    return steps.ctc.prepare_units(run)


@recipe.stage(5, "Extract features")
def extract(run: Run) -> Headline:
    """Extract log-mel energies and MFCCs at 100 Hz (A1)."""
    return steps.ctc.extract_features(run)


@recipe.stage(6, "Write record files of features and labels")
def write_records(run: Run) -> Headline:
    """Write the records without utterances that are too long; the headline counts these (A6)."""
    return steps.ctc.write_all_records(run)


@recipe.stage(7, "Train the network with CTC", distributed=True)
def train_network(run: Run) -> Headline:
    """Train through the paper's states; `ctc/log.jsonl` has the events and times (A22)."""
    return steps.ctc.train(run)


@recipe.stage(8, "Decode by greedy, prefix, dictionary, dictionary + LM and graph search")
def decode_all(run: Run) -> Headline:
    """Decode the same posteriors by every search (A21, A24)."""
    return steps.ctc.decode(run)


@recipe.stage(9, "Train an LSTM language model", distributed=True, when="neural")
def train_neural_lm(run: Run) -> Headline:
    """Train on lm.text and the training transcripts; skipped without `neural`."""
    return steps.ctc.train_lstm_lm(run)


@recipe.stage(10, "Rescore with the LSTM language model", when="neural")
def rescore_lists(run: Run) -> Headline:
    """Rescore n-best lists of the search with dictionary and n-grams, with weights tuned again."""
    return steps.ctc.rescore(run)


@recipe.stage(11, "Sweep the beam width")
def sweep(run: Run) -> Headline:
    """Measure decoding time and error rates by width, on the first development split (A31)."""
    return steps.ctc.sweep_widths(run)


@recipe.stage(12, "Write the time-to-accuracy page and list the results")
def report(run: Run) -> Headline:
    """Write tta/index.html and results.json."""
    steps.ctc.write_tta_page(run)
    return steps.data.list_results(run, steps.ctc.decodes(run))


@recipe.stage(13, "Write the recogniser bundle")
def bundle(run: Run) -> Headline:
    """Write exp/ctc-<profile>/final, all that `toolkit transcribe` and `toolkit align` need."""
    return steps.ctc.write_bundle(run)


if __name__ == "__main__":
    recipe.main()
