#!/usr/bin/env python3
"""The hybrid recogniser: GMM-HMMs and an LSTM, from audio to word error rates."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
from toolkit.stages.bootstrap import use_project_environment

use_project_environment(ROOT)

from recipes import steps
from recipes.librispeech.config import PROFILES
from recipes.steps import stages
from toolkit.stages.declaration import Headline
from toolkit.stages.recipe import Recipe
from toolkit.stages.run import Run

IN_BACKGROUND = "chain or adapted or bidirectional"
"""Settings with which the LSTM's stages run in the background, while another network is trained."""
CHAIN_SENONES = "chain/graphs"
"""The folder of the TDNN-Fs' senones, which come from a separate tree, and of the denominator."""

recipe = Recipe(
    "librispeech",
    Path(__file__),
    PROFILES,
    title=__doc__,
    on_finish=lambda folder: steps.data.show_results(folder),
    modules=[f"recipes.steps.{m}" for m in ("data", "gmm", "decoding", "networks", "bundle")],
)


@recipe.stage(1, "Get the audio: synthesise or download it, unless corpus.root is set")
def get_audio(run: Run) -> Headline | None:
    """Make or download the corpus; a corpus at corpus.root is read in place, without copying."""
    return steps.data.get_corpus(run)


@recipe.stage(2, "Write the manifests")
def write_manifests(run: Run) -> Headline:
    """Write a line per utterance with normalised text; the next stage checks for faults."""
    return steps.data.write_corpus(run, steps.data.hybrid_policy(run), noise_phone=True)


recipe.add(3, "Check the data", stages.check_data)
recipe.add(4, "Prepare lexicon, phones and words", stages.prepare_words)
recipe.add(5, "Estimate the n-gram language models", stages.train_lm)


@recipe.stage(6, "Extract features")
def extract_features(run: Run) -> Headline:
    """Extract unnormalised features at 100 Hz: PLP for GMMs (C4), log-mel for networks (C5).

    With corpus.features=kaldi, GMMs and networks use the features of the corpus.
    """
    # PLP of the copies is needed only for networks on features that GMMs transform.
    plp, fbank = run.make("plp"), run.make("fbank")
    if steps.data.has_kaldi_features(run):
        return steps.data.import_kaldi_features(run, plp, fbank)
    cepstra_of_copies = run.config.needs_adapted or run.config.bidirectional
    steps.data.extract_splits(run, run.config.cepstra, plp, also_copies=cepstra_of_copies)
    run.progress(1, 2)
    return steps.data.extract_fbank(run, fbank)


@recipe.stage(7, "Train monophone GMMs")
def train_mono(run: Run) -> Headline:
    """Train from a flat start by Viterbi training, on the shortest utterances."""
    return steps.gmm.train_mono(run)


@recipe.stage(8, "Decode with the monophones")
def decode_mono(run: Run) -> Headline:
    """Compute the first word error rates, which show whether all earlier stages worked."""
    return steps.decoding.decode_gmm(run, "mono")


recipe.add(9, "Train triphone GMMs on deltas", stages.train_tri)


@recipe.stage(10, "Decode with the triphones")
def decode_tri(run: Run) -> Headline:
    """Measure the gain from context-dependent phones."""
    return steps.decoding.decode_gmm(run, "tri")


recipe.add(11, "Train LDA + MLLT GMMs", stages.train_lda)


@recipe.stage(12, "Decode with LDA + MLLT")
def decode_lda(run: Run) -> Headline:
    """Decode with the best speaker-independent GMMs; this is also the adapted GMMs' first pass."""
    return steps.decoding.decode_gmm(run, "lda_mllt")


@recipe.stage(13, "Train speaker-adapted GMMs")
def train_adapted(run: Run) -> Headline:
    """Estimate fMLLR for every training speaker, and train on the transformed features (SAT)."""
    return steps.gmm.train_adapted(run)


@recipe.stage(14, "Decode with the speaker-adapted GMMs in two passes")
def decode_adapted(run: Run) -> Headline:
    """Estimate fMLLR on the LDA + MLLT hypotheses; decode, rescore and write n-best lists."""
    return steps.decoding.decode_gmm(run, "sat", steps.gmm.adapt(run, "sat", first_pass="lda_mllt"))


@recipe.stage(15, "Align the training data")
def align(run: Run) -> Headline:
    """Align with the speaker-adapted GMMs: an HMM state for every 10 ms frame."""
    return steps.gmm.align_system(run, "sat")


recipe.add(16, "Tie senones at the low frame rate", stages.tie, system="sat")
recipe.add(17, "Compile the decoding graph of these senones", stages.compile_graph)


@recipe.stage(
    18,
    "Train the LSTM with cross entropy on shuffled 32-frame chunks",
    distributed=True,
    when="lstm",
    background_when=IN_BACKGROUND,
)
def train_ce(run: Run) -> Headline:
    """Train with feature offsets that rotate (C7); realign and retrain align.rounds times (C4)."""
    return steps.networks.train_network(run, "lstm_ce")


@recipe.stage(19, "Decode with the LSTM", when="lstm", background_when=IN_BACKGROUND)
def decode_ce(run: Run) -> Headline:
    """Decode log-posteriors minus log-priors in a low-frame-rate graph, and rescore (C2, C3)."""
    return steps.decoding.decode_network(run, "lstm_ce")


@recipe.stage(20, "Make denominator lattices", when="lstm", background_when=IN_BACKGROUND)
def make_lattices(run: Run) -> Headline:
    """Make lattices with a weak language model, and align with the LSTM itself (C8)."""
    return steps.networks.make_denominators(run, "lstm_ce")


@recipe.stage(
    21,
    "Train the LSTM with sMBR on the lattices",
    distributed=True,
    when="lstm",
    background_when=IN_BACKGROUND,
)
def train_smbr(run: Run) -> Headline:
    """Train for three epochs at a small learning rate (C7, C8)."""
    return steps.networks.train_on_lattices(run, "lstm_smbr", "lstm_ce")


@recipe.stage(22, "Decode with the sMBR-trained LSTM", when="lstm", background_when=IN_BACKGROUND)
def decode_smbr(run: Run) -> Headline:
    """Decode with the same graph, tuned again; also write n-best lists, word times, confidences."""
    return steps.decoding.decode_network(run, "lstm_smbr", nbest=True)


@recipe.stage(
    23,
    "Write adapted features and train an LSTM on them",
    distributed=True,
    when="adapted or chain",
)
def train_on_adapted(run: Run) -> Headline | None:
    """Write the features of the speaker-adapted GMMs; with `adapted`, train an LSTM on them."""
    if not run.config.needs_adapted:
        return None
    features = steps.gmm.write_adapted(run, "sat", "lda_mllt")
    return steps.networks.train_network(run, "lstm_fmllr", features) if run.config.adapted else None


@recipe.stage(
    24, "Write the decoded splits' adapted features; decode with the LSTM", when="adapted or chain"
)
def decode_adapted_lstm(run: Run) -> Headline | None:
    """Apply the transforms of stage 14, which are estimated on the GMMs' first pass."""
    if not run.config.needs_adapted:
        return None
    features = steps.gmm.write_adapted_decoded(run, "sat")
    if not run.config.adapted:
        return None
    normaliser = "fmllr_features/normaliser.json"
    return steps.decoding.decode_network(run, "lstm_fmllr", features, normaliser, nbest=True)


@recipe.stage(25, "Train a BLSTM on LDA + MLLT features", distributed=True, when="bidirectional")
def train_bidirectional(run: Run) -> Headline:
    """Train on features of the speaker-independent GMMs; skipped without `bidirectional` (C9)."""
    features = steps.gmm.write_independent(run, "lda_mllt")
    return steps.networks.train_network(run, "blstm", features, run.config.blstm)


@recipe.stage(26, "Decode with the BLSTM", when="bidirectional")
def decode_bidirectional(run: Run) -> Headline:
    """Decode without speaker transforms; cepstra are mean-normalised by speaker, as in stage 12."""
    features = steps.gmm.write_independent_decoded(run, "lda_mllt")
    normaliser = "lda_mllt_features/normaliser.json"
    return steps.decoding.decode_network(run, "blstm", features, normaliser, nbest=True)


@recipe.stage(27, "Train a TDNN-F with lattice-free MMI", distributed=True, when="chain")
def train_lattice_free(run: Run) -> Headline:
    """Train on the phones of the alignments, with a separate tree; skipped without `chain`."""
    return steps.networks.train_chain(run, "chain", "sat", run.config.first_chain_features)


@recipe.stage(28, "Compile the decoding graph of the TDNN-F", when="chain")
def compile_chain_graph(run: Run) -> Headline:
    """Compile the decoding graph of the senones of the TDNN-F's tree."""
    return steps.decoding.compile_network_graph(run, CHAIN_SENONES)


@recipe.stage(
    29,
    "Train a second TDNN-F, on log-mel energies",
    distributed=True,
    when="chain_fbank",
    background_when="chain_fbank",
)
def train_second_lattice_free(run: Run) -> Headline:
    """Train for unknown speakers, with the same tree and denominator (chain_features=both)."""
    return steps.networks.train_chain(run, "chain_fbank", "sat", senones=CHAIN_SENONES)


@recipe.stage(
    30, "Decode with the second TDNN-F", when="chain_fbank", background_when="chain_fbank"
)
def decode_second_lattice_free(run: Run) -> Headline:
    """Decode in the graph of the first TDNN-F, which has the same senones."""
    return steps.decoding.decode_network(run, "chain_fbank", nbest=True, graphs=CHAIN_SENONES)


@recipe.stage(31, "Decode with the TDNN-F", when="chain")
def decode_lattice_free(run: Run) -> Headline:
    """Decode with scores without priors, at acoustic scale 1 or near it."""
    features = steps.data.decoded_features(run, run.config.first_chain_features)
    return steps.decoding.decode_network(run, "chain", features, nbest=True, graphs=CHAIN_SENONES)


@recipe.stage(32, "Train an LSTM language model", distributed=True, when="neural")
def train_neural_lm(run: Run) -> Headline:
    """Train on lm.text and the training transcripts."""
    return steps.networks.train_lstm_lm(run)


@recipe.stage(33, "Combine the systems")
def combine(run: Run) -> Headline | None:
    """Combine systems by the union of their lattices, with weights tuned on development splits."""
    networks = run.config.networks
    return steps.decoding.combine_systems(run, ["sat", *networks]) if networks else None


@recipe.stage(34, "Rescore with the LSTM language model")
def rescore(run: Run) -> Headline | None:
    """Rescore n-best lists of the best systems with both language models; tune the weights."""
    chosen = steps.decoding.neural_systems(run, steps.bundle.decoded_systems(run, CHAIN_SENONES))
    return steps.decoding.rescore_neural(run, chosen) if chosen else None


@recipe.stage(35, "Write the recogniser and aligner bundles and list the results")
def bundle(run: Run) -> Headline:
    """Write exp/<profile>/final, all that `toolkit transcribe` and `toolkit align` need.

    With corpus.features=kaldi there is no bundle, as nothing computes these features from audio.
    """
    return steps.bundle.write_final(run, steps.bundle.decoded_systems(run, CHAIN_SENONES))


if __name__ == "__main__":
    recipe.main()
