"""Stages that the hybrid recipes share; each recipe gives them its own numbers."""

from recipes import steps
from toolkit.stages.declaration import Headline, shared_stage
from toolkit.stages.run import Run


@shared_stage("Check the data")
def check_data(run: Run) -> Headline:
    """Find all faults at once, before anything expensive; unusable utterances are excluded."""
    return steps.data.check_splits(run)


@shared_stage("Prepare lexicon, phones and words")
def prepare_words(run: Run) -> Headline:
    """Take the words of transcripts and the most frequent of the LM text; G2P for OOV words."""
    return steps.data.prepare_language(run)


@shared_stage("Estimate the n-gram language models")
def train_lm(run: Run) -> Headline:
    """Estimate modified Kneser-Ney on lm.text or the transcripts; a larger model rescores (C2)."""
    return steps.data.train_language_models(run)


@shared_stage("Train triphone GMMs on deltas")
def train_tri(run: Run, split: str = "train") -> Headline:
    """Train with a phonetic tree, from the monophones' alignments."""
    return steps.gmm.train_tri(run, split)


@shared_stage("Train LDA + MLLT GMMs")
def train_lda(run: Run, split: str = "train") -> Headline:
    """Train on spliced frames, projected to 40 dimensions (C4)."""
    return steps.gmm.train_lda(run, split)


@shared_stage("Tie senones at the low frame rate")
def tie(run: Run, system: str, split: str = "train") -> Headline:
    """Build a separate tree for 30 ms frames, on the LDA + MLLT features of a system (C3, C4)."""
    return steps.gmm.tie_senones(run, system, split)


@shared_stage("Compile the decoding graph of these senones")
def compile_graph(run: Run) -> Headline:
    """Compose H, C, L and G for the networks, whose training does not depend on the n-grams."""
    return steps.decoding.compile_network_graph(run)
