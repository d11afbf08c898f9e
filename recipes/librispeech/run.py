#!/usr/bin/env python3
"""The hybrid recogniser: GMM-HMMs and an LSTM, from audio to word error rates."""

import sys
from pathlib import Path
from typing import Literal

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
from toolkit.stages.bootstrap import use_project_environment

use_project_environment(ROOT)

from recipes.librispeech.config import PROFILES
from recipes.steps import gmm
from recipes.steps.bundle import say_no_bundle, write_aligner, write_bundles
from recipes.steps.chain import train_chain
from recipes.steps.combination import combine_systems
from recipes.steps.data import (
    get_corpus,
    has_kaldi_features,
    hybrid_policy,
    list_results,
    show_results,
    write_corpus,
)
from recipes.steps.decoding import compile_network_graph
from recipes.steps.discriminative import make_denominators, train_on_lattices
from recipes.steps.features import (
    decoded_features,
    extract_fbank,
    extract_splits,
    import_kaldi_features,
    training_features,
)
from recipes.steps.gmm import adapt, align_system, decode_gmm, tie_senones
from recipes.steps.gmm_features import (
    write_adapted,
    write_adapted_decoded,
    write_independent,
    write_independent_decoded,
)
from recipes.steps.language import check_splits, prepare_language, train_language_models
from recipes.steps.network import decode_network, train_network
from recipes.steps.neural_lm import (
    neural_name,
    neural_systems,
    rescore_neural,
    train_lstm_lm,
)
from recipes.steps.systems import DecodedSystem
from toolkit.stages.recipe import Recipe
from toolkit.stages.run import Run

OTHER_NETWORKS = "chain or adapted or bidirectional"
"""With these the stages of the LSTM run beside those of another network, where there are cores."""
CHAIN_SENONES = "chain/graphs"
"""The folder of the TDNN-Fs' senones, which have a tree of their own, and of the denominator."""

recipe = Recipe("librispeech", Path(__file__), PROFILES, title=__doc__, on_finish=show_results)


@recipe.stage(1, "Get the audio: synthesise or download it, unless corpus.root is set")
def get_audio(run: Run) -> dict[str, float] | None:
    """With corpus.root nothing is copied."""
    return get_corpus(run)


@recipe.stage(2, "Write the manifests")
def write_manifests(run: Run) -> dict[str, float]:
    """One line per utterance with its normalised text; the next stage checks for faults."""
    return write_corpus(run, hybrid_policy(run))


@recipe.stage(3, "Check the data")
def check_data(run: Run) -> dict[str, float]:
    """Find all faults at once, before anything expensive; unusable utterances are excluded."""
    return check_splits(run)


@recipe.stage(4, "Prepare lexicon, phones and words")
def prepare_words(run: Run) -> dict[str, float]:
    """Words of the transcripts and the most frequent ones of the LM text; G2P for OOV words."""
    return prepare_language(run)


@recipe.stage(5, "Estimate the n-gram language models")
def train_lm(run: Run) -> dict[str, float]:
    """Modified Kneser-Ney on lm.text, or else the transcripts; a larger model rescores (C2)."""
    return train_language_models(run)


@recipe.stage(6, "Extract features")
def extract_features(run: Run) -> dict[str, float]:
    """Without normalisation, at 100 Hz: PLP for the GMMs (C4), log-mel for the networks (C5).

    With corpus.features=kaldi both take the features of the corpus.
    """
    plp, fbank = run.make("plp"), run.make("fbank")
    if has_kaldi_features(run):
        return import_kaldi_features(run, plp, fbank)
    cepstra_of_copies = run.config.needs_adapted or run.config.bidirectional
    extract_splits(run, run.config.cepstra, plp, also_copies=cepstra_of_copies)
    run.progress(1, 2)
    return extract_fbank(run, fbank)


@recipe.stage(7, "Train monophone GMMs")
def train_mono(run: Run) -> dict[str, float]:
    """Flat start and Viterbi training on the shortest utterances."""
    return gmm.train_mono(run)


@recipe.stage(8, "Decode with the monophones")
def decode_mono(run: Run) -> dict[str, float]:
    """First word error rates, which show whether everything before is right."""
    return decode_gmm(run, "mono")


@recipe.stage(9, "Train triphone GMMs on deltas")
def train_tri(run: Run) -> dict[str, float]:
    """A phonetic tree on the monophones' alignments."""
    return gmm.train_tri(run)


@recipe.stage(10, "Decode with the triphones")
def decode_tri(run: Run) -> dict[str, float]:
    """Shows the gain from context-dependent phones."""
    return decode_gmm(run, "tri")


@recipe.stage(11, "Train LDA + MLLT GMMs")
def train_lda(run: Run) -> dict[str, float]:
    """Spliced frames, projected to 40 dimensions (C4)."""
    return gmm.train_lda(run)


@recipe.stage(12, "Decode with LDA + MLLT")
def decode_lda(run: Run) -> dict[str, float]:
    """The best speaker-independent GMMs; first pass of the adapted ones."""
    return decode_gmm(run, "lda_mllt")


@recipe.stage(13, "Train speaker-adapted GMMs")
def train_adapted(run: Run) -> dict[str, float]:
    """fMLLR for every training speaker (SAT)."""
    return gmm.train_adapted(run)


@recipe.stage(14, "Decode with the speaker-adapted GMMs in two passes")
def decode_adapted(run: Run) -> dict[str, float]:
    """Estimate fMLLR on the hypotheses of LDA + MLLT, then decode and rescore; n-best lists."""
    return decode_gmm(run, "sat", adapt(run, "sat", first_pass="lda_mllt"))


@recipe.stage(15, "Align the training data")
def align(run: Run) -> dict[str, float]:
    """An HMM state for every 10 ms frame, by the speaker-adapted GMMs."""
    return align_system(run, "sat")


@recipe.stage(16, "Tie senones at the low frame rate")
def tie(run: Run) -> dict[str, float]:
    """A separate tree for 30 ms frames, built on adapted LDA + MLLT features (C3, C4)."""
    return tie_senones(run, "sat")


@recipe.stage(17, "Compile the decoding graph of these senones")
def compile_graph(run: Run) -> dict[str, float]:
    """H, C, L and G of the LSTMs and the BLSTM, whose training does not depend on the n-grams."""
    return compile_network_graph(run)


@recipe.stage(
    18,
    "Train the LSTM with cross entropy on shuffled 32-frame chunks",
    distributed=True,
    when="lstm",
    background_when=OTHER_NETWORKS,
)
def train_ce(run: Run) -> dict[str, float]:
    """Feature offsets rotate by epoch (C7); realigned and retrained align.rounds times (C4)."""
    return train_network(run, "lstm_ce", training_features(run, "fbank"))


@recipe.stage(19, "Decode with the LSTM", when="lstm", background_when=OTHER_NETWORKS)
def decode_ce(run: Run) -> dict[str, float]:
    """Log-posteriors minus log-priors, a graph of low-frame-rate HMMs, rescoring (C2, C3)."""
    return decode_network(run, "lstm_ce", decoded_features(run, "fbank"))


@recipe.stage(20, "Make denominator lattices", when="lstm", background_when=OTHER_NETWORKS)
def make_lattices(run: Run) -> dict[str, float]:
    """Lattices with a weak language model, and reference alignments by the LSTM itself (C8)."""
    return make_denominators(run, "lstm_ce", training_features(run, "fbank"))


@recipe.stage(
    21,
    "Train the LSTM with sMBR on the lattices",
    distributed=True,
    when="lstm",
    background_when=OTHER_NETWORKS,
)
def train_smbr(run: Run) -> dict[str, float]:
    """Three epochs at a small learning rate (C7, C8)."""
    return train_on_lattices(run, "lstm_smbr", "lstm_ce", training_features(run, "fbank"))


@recipe.stage(22, "Decode with the sMBR-trained LSTM", when="lstm", background_when=OTHER_NETWORKS)
def decode_smbr(run: Run) -> dict[str, float]:
    """The same graph, tuned again; also n-best lists, word times and confidences."""
    return decode_network(run, "lstm_smbr", decoded_features(run, "fbank"), nbest=True)


@recipe.stage(
    23,
    "Write adapted features and train an LSTM on them",
    distributed=True,
    when="adapted or chain",
)
def train_on_adapted(run: Run) -> dict[str, float] | None:
    """The features of the speaker-adapted GMMs; the LSTM with `adapted` alone."""
    if not run.config.needs_adapted:
        return None
    features = write_adapted(run, "sat", "lda_mllt")
    return train_network(run, "lstm_fmllr", features) if run.config.adapted else None


@recipe.stage(
    24,
    "Write adapted features of the decoded splits and decode with the LSTM on them",
    when="adapted or chain",
)
def decode_adapted_lstm(run: Run) -> dict[str, float] | None:
    """With the transforms of stage 14, which are estimated on the GMMs' first pass."""
    if not run.config.needs_adapted:
        return None
    features = write_adapted_decoded(run, "sat")
    if not run.config.adapted:
        return None
    normaliser = run.need("adapted/normaliser.json")
    return decode_network(run, "lstm_fmllr", features, normaliser, nbest=True)


@recipe.stage(25, "Train a BLSTM on LDA + MLLT features", distributed=True, when="bidirectional")
def train_bidirectional(run: Run) -> dict[str, float]:
    """On the features of the speaker-independent GMMs; skipped without `bidirectional` (C9)."""
    features = write_independent(run, "lda_mllt")
    return train_network(run, "blstm", features, run.config.blstm)


@recipe.stage(26, "Decode with the BLSTM", when="bidirectional")
def decode_bidirectional(run: Run) -> dict[str, float]:
    """Without speaker transforms; cepstra are mean-normalised by speaker, as in stage 12."""
    features = write_independent_decoded(run, "lda_mllt")
    normaliser = run.need("independent/normaliser.json")
    return decode_network(run, "blstm", features, normaliser, nbest=True)


@recipe.stage(27, "Train a TDNN-F with lattice-free MMI", distributed=True, when="chain")
def train_lattice_free(run: Run) -> dict[str, float]:
    """On the phones of the alignments, with a tree of its own; skipped without `chain`."""
    return train_chain(run, "chain", "sat", training_features(run, _chain_features(run)))


@recipe.stage(28, "Compile the decoding graph of the TDNN-F", when="chain")
def compile_chain_graph(run: Run) -> dict[str, float]:
    """Of the senones of its own tree."""
    return compile_network_graph(run, CHAIN_SENONES)


@recipe.stage(
    29,
    "Train a second TDNN-F, on log-mel energies",
    distributed=True,
    when="chain_fbank",
    background_when="chain_fbank",
)
def train_second_lattice_free(run: Run) -> dict[str, float]:
    """For unknown speakers, with the same tree and denominator; with chain_features=both."""
    features = training_features(run, "fbank")
    return train_chain(run, "chain_fbank", "sat", features, senones=CHAIN_SENONES)


@recipe.stage(
    30, "Decode with the second TDNN-F", when="chain_fbank", background_when="chain_fbank"
)
def decode_second_lattice_free(run: Run) -> dict[str, float]:
    """In the same graph."""
    features = decoded_features(run, "fbank")
    return decode_network(run, "chain_fbank", features, nbest=True, graphs=CHAIN_SENONES)


@recipe.stage(31, "Decode with the TDNN-F", when="chain")
def decode_lattice_free(run: Run) -> dict[str, float]:
    """Scores without priors, at acoustic scale 1 or near it."""
    features = decoded_features(run, _chain_features(run))
    return decode_network(run, "chain", features, nbest=True, graphs=CHAIN_SENONES)


@recipe.stage(32, "Train an LSTM language model", distributed=True, when="neural")
def train_neural_lm(run: Run) -> dict[str, float]:
    """On lm.text and the training transcripts; the combination may have to wait for others."""
    return train_lstm_lm(run)


@recipe.stage(33, "Combine the systems")
def combine(run: Run) -> dict[str, float] | None:
    """The union of their lattices, with weights tuned on the development splits."""
    networks = run.config.networks
    return combine_systems(run, ["sat", *networks]) if networks else None


@recipe.stage(34, "Rescore with the LSTM language model")
def rescore(run: Run) -> dict[str, float] | None:
    """N-best lists of the best systems, with both language models; tuned again."""
    chosen = neural_systems(run, _systems(run))
    return rescore_neural(run, chosen) if chosen else None


@recipe.stage(35, "Write the recogniser and aligner bundles and list the results")
def bundle(run: Run) -> dict[str, float]:
    """`toolkit transcribe` and `toolkit align` need nothing but exp/<profile>/final.

    With corpus.features=kaldi there is no bundle, as nothing computes these features from audio.
    """
    systems = _systems(run)
    rescored = neural_systems(run, systems)
    names = [*(system.name for system in systems), *map(neural_name, rescored)]
    names += ["combined"] * bool(run.config.networks)
    if has_kaldi_features(run):
        say_no_bundle()
        return list_results(run, names)
    out = run.make("final")
    best, unknown_speaker = write_bundles(run, systems, rescored, out)
    write_aligner(run, out / "aligner")
    return list_results(run, names, unknown_speaker) | best


def _systems(run: Run) -> list[DecodedSystem]:
    """What the stages have decoded, the simplest first."""
    systems = [DecodedSystem(name) for name in ("mono", "tri", "lda_mllt")]
    systems += [DecodedSystem("sat", first_pass="lda_mllt", listed=True)]
    chosen = run.config.networks
    on_adapted = {"gmm": "sat", "first_pass": "lda_mllt", "listed": True}
    if "lstm_smbr" in chosen:
        systems += [DecodedSystem("lstm_ce", "fbank")]
        systems += [DecodedSystem("lstm_smbr", "fbank", listed=True)]
    if "lstm_fmllr" in chosen:
        systems += [DecodedSystem("lstm_fmllr", "adapted", **on_adapted)]
    if "blstm" in chosen:
        systems += [DecodedSystem("blstm", "independent", gmm="lda_mllt", listed=True)]
    if "chain" in chosen:
        features = _chain_features(run)
        options = on_adapted if features == "adapted" else {"listed": True}
        systems += [DecodedSystem("chain", features, graphs=CHAIN_SENONES, **options)]
    if "chain_fbank" in chosen:
        systems += [DecodedSystem("chain_fbank", "fbank", graphs=CHAIN_SENONES, listed=True)]
    return systems


def _chain_features(run: Run) -> Literal["adapted", "fbank"]:
    """Return the features of the first TDNN-F."""
    return "fbank" if run.config.chain_features == "fbank" else "adapted"


if __name__ == "__main__":
    recipe.main()
