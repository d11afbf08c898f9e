#!/usr/bin/env python3
"""The hybrid recogniser: from audio to word error rates with HMMs and an LSTM."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
from toolkit.stages.bootstrap import use_project_environment

use_project_environment(ROOT)

from functools import partial

from recipes.librispeech.config import PROFILES
from recipes.steps.data import get_corpus, list_results, show_results, write_corpus
from recipes.steps.hybrid import (
    adapt,
    align_system,
    decode_gmm,
    decode_network,
    explore_network,
    extract_fbank,
    extract_splits,
    make_denominators,
    tie_senones,
    train_gmm,
    train_network,
    train_on_lattices,
    write_adapted,
    write_bundles,
    write_independent,
)
from recipes.steps.language import check_splits, prepare_language, train_language_models
from toolkit.align.gmm.lda_mllt import train_lda_mllt
from toolkit.align.gmm.monophone import train_monophone
from toolkit.align.gmm.sat import train_sat
from toolkit.align.gmm.triphone import train_triphone
from toolkit.processes import ranks
from toolkit.stages.recipe import Recipe
from toolkit.stages.run import Run

recipe = Recipe("librispeech", Path(__file__), PROFILES, title=__doc__, show=show_results)


@recipe.stage(1, "Get the audio: made, downloaded, or found at corpus.root")
def get_audio(run: Run) -> dict[str, float] | None:
    """Only what is missing is made: with corpus.root nothing is copied."""
    return get_corpus(run)


@recipe.stage(2, "Write the manifests")
def write_manifests(run: Run) -> dict[str, float]:
    """One line per utterance, faulty or not, its words by one set of rules: the next judges."""
    return write_corpus(run, run.config.lang.normaliser)


@recipe.stage(3, "Check the data")
def check_data(run: Run) -> dict[str, float]:
    """Every fault in one pass, before anything expensive; what cannot be used is excluded."""
    return check_splits(run)


@recipe.stage(4, "Prepare lexicon, phones and words")
def prepare_words(run: Run) -> dict[str, float]:
    """Words of the transcripts and the commonest of the LM text; G2P for what the lexicon lacks."""
    return prepare_language(run)


@recipe.stage(5, "Estimate the n-gram language models")
def train_lm(run: Run) -> dict[str, float]:
    """Modified Kneser-Ney on lm.text, or else the transcripts; a larger model rescores (C2)."""
    return train_language_models(run)


@recipe.stage(6, "Extract features")
def extract_features(run: Run) -> dict[str, float]:
    """Raw, once, at 100 Hz: PLP for the GMMs (C4), log-mel for the networks (C5)."""
    plp, fbank = run.make("plp"), run.make("fbank")
    cepstra_of_copies = run.config.adapted or run.config.bidirectional
    extract_splits(run, run.config.cepstra, plp, also_copies=cepstra_of_copies)
    run.progress(1, 2)
    return extract_fbank(run, fbank)


@recipe.stage(7, "Train monophone GMMs")
def train_mono(run: Run) -> dict[str, float]:
    """Flat start and Viterbi training on the shortest utterances."""
    return train_gmm(run, train_monophone, "mono")


@recipe.stage(8, "Decode with the monophones")
def decode_mono(run: Run) -> dict[str, float]:
    """The first word error rates, and a check on everything before."""
    return decode_gmm(run, "mono")


@recipe.stage(9, "Train triphone GMMs on deltas")
def train_tri(run: Run) -> dict[str, float]:
    """A phonetic tree on the monophones' alignments."""
    return train_gmm(run, partial(train_triphone, previous=run.need("mono")), "tri")


@recipe.stage(10, "Decode with the triphones")
def decode_tri(run: Run) -> dict[str, float]:
    """What context brings."""
    return decode_gmm(run, "tri")


@recipe.stage(11, "Train LDA + MLLT GMMs")
def train_lda(run: Run) -> dict[str, float]:
    """Spliced frames, projected to 40 dimensions (C4)."""
    return train_gmm(run, partial(train_lda_mllt, previous=run.need("tri")), "lda_mllt")


@recipe.stage(12, "Decode with LDA + MLLT")
def decode_lda(run: Run) -> dict[str, float]:
    """The best speaker-independent GMMs; first pass of the adapted ones."""
    return decode_gmm(run, "lda_mllt")


@recipe.stage(13, "Train speaker-adapted GMMs")
def train_adapted(run: Run) -> dict[str, float]:
    """fMLLR for every training speaker (SAT)."""
    return train_gmm(run, partial(train_sat, previous=run.need("lda_mllt")), "sat")


@recipe.stage(14, "Decode with the speaker-adapted GMMs in two passes")
def decode_adapted(run: Run) -> dict[str, float]:
    """Transforms from the words that LDA + MLLT has recognised, then the second pass."""
    return decode_gmm(run, "sat", adapt(run, "sat", first_pass="lda_mllt"))


@recipe.stage(15, "Align the training data")
def align(run: Run) -> dict[str, float]:
    """An HMM state for every 10 ms frame, by the speaker-adapted GMMs."""
    return align_system(run, "sat")


@recipe.stage(16, "Tie the senones of the low frame rate, make their decoding graph")
def tie(run: Run) -> dict[str, float]:
    """A tree of its own for 30 ms frames, grown on adapted LDA + MLLT features (C3, C4)."""
    return tie_senones(run, "sat")


@recipe.stage(17, "Train the LSTM with cross entropy on shuffled 32-frame chunks", parallel=True)
def train_ce(run: Run) -> dict[str, float]:
    """One feature offset per epoch in rotation (C7); align.rounds times on its own targets (C4)."""
    return train_network(run, "lstm_ce", run.need("fbank"))


@recipe.stage(18, "Decode with the LSTM")
def decode_ce(run: Run) -> dict[str, float]:
    """Log-posteriors less log-priors into a graph of low-frame-rate HMMs, rescored (C2, C3)."""
    return decode_network(run, "lstm_ce", run.need("fbank"))


@recipe.stage(19, "Make denominator lattices")
def make_lattices(run: Run) -> dict[str, float]:
    """What the LSTM takes for possible with a weak language model, and its own alignment (C8)."""
    return make_denominators(run, "lstm_ce", run.need("fbank"))


@recipe.stage(20, "Train the LSTM on lattices (sMBR)", parallel=True)
def train_smbr(run: Run) -> dict[str, float]:
    """Three epochs at a small learning rate (C7, C8)."""
    return train_on_lattices(run, "lstm_smbr", "lstm_ce", run.need("fbank"))


@recipe.stage(21, "Decode with the sMBR-trained LSTM")
def decode_smbr(run: Run) -> dict[str, float]:
    """The same graph, tuned anew; n-best lists, word times and confidences too."""
    system, features = "lstm_smbr", run.need("fbank")
    return decode_network(run, system, features) | explore_network(run, system, features)


@recipe.stage(22, "Train an LSTM on speaker-adapted features", parallel=True)
def train_on_adapted(run: Run) -> dict[str, float] | None:
    """On what the adapted GMMs see, with `adapted`."""
    if not run.config.adapted:
        return None
    features = run.make("adapted")
    ranks.once(lambda: write_adapted(run, "sat", "lda_mllt", features))
    return train_network(run, "lstm_fmllr", features)


@recipe.stage(23, "Decode with the LSTM on speaker-adapted features")
def decode_adapted_lstm(run: Run) -> dict[str, float] | None:
    """By the transforms of the GMMs' first pass."""
    if not run.config.adapted:
        return None
    return decode_network(run, "lstm_fmllr", run.need("adapted"))


@recipe.stage(24, "Train a BLSTM on LDA + MLLT features", parallel=True)
def train_bidirectional(run: Run) -> dict[str, float] | None:
    """On what the speaker-independent GMMs see, with `bidirectional` (C9)."""
    if not run.config.bidirectional:
        return None
    features = run.make("independent")
    ranks.once(lambda: write_independent(run, "lda_mllt", features))
    return train_network(run, "blstm", features, run.config.blstm)


@recipe.stage(25, "Decode with the BLSTM")
def decode_bidirectional(run: Run) -> dict[str, float] | None:
    """Without transforms: of a speaker it knows the mean cepstrum, as the GMMs of stage 12 do."""
    if not run.config.bidirectional:
        return None
    return decode_network(run, "blstm", run.need("independent"))


@recipe.stage(26, "Bundle recogniser and aligner, list the results")
def bundle(run: Run) -> dict[str, float]:
    """exp/<profile>/final is all that `toolkit transcribe` and `toolkit align` need."""
    write_bundles(run, "lstm_smbr", run.need("fbank"), run.make("final"))
    systems = ["mono", "tri", "lda_mllt", "sat", "lstm_ce", "lstm_smbr"]
    systems += ["lstm_fmllr"] if run.config.adapted else []
    systems += ["blstm"] if run.config.bidirectional else []
    return list_results(run, systems)


if __name__ == "__main__":
    recipe.main()
