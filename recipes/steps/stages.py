"""Stages that the hybrid recipes share; each recipe gives them its numbers and titles.

They import their step when they run, so that `--list` loads no numeric library.
"""

from recipes import steps
from toolkit.stages.declaration import Headline
from toolkit.stages.run import Run


def check_data(run: Run) -> Headline:
    """Find all faults at once, before anything expensive; unusable utterances are excluded."""
    return steps.data.check_splits(run)


def prepare_words(run: Run) -> Headline:
    """Take the words of transcripts and the most frequent of the LM text; G2P for OOV words."""
    return steps.data.prepare_language(run)


def train_lm(run: Run) -> Headline:
    """Estimate modified Kneser-Ney n-grams on lm.text or transcripts; a larger LM rescores (C2)."""
    return steps.data.train_language_models(run)


def train_tri(run: Run, split: str = "train") -> Headline:
    """Train with a phonetic tree, from the monophones' alignments."""
    return steps.gmm.train_tri(run, split)


def train_lda(run: Run, split: str = "train") -> Headline:
    """Train on spliced frames, projected to 40 dimensions (C4)."""
    return steps.gmm.train_lda(run, split)


def tie(run: Run, system: str, split: str = "train") -> Headline:
    """Build a separate tree for 30 ms frames, on the LDA + MLLT features of a system (C3, C4)."""
    return steps.gmm.tie_senones(run, system, split)


def compile_graph(run: Run) -> Headline:
    """Compose H, C, L and G for the networks, whose training does not depend on the n-grams."""
    return steps.decoding.compile_network_graph(run)
