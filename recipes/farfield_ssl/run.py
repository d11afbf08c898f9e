#!/usr/bin/env python3
"""Far-field speech recognition: a student LSTM trained on a teacher's soft targets."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
from toolkit.stages.bootstrap import use_project_environment

use_project_environment(ROOT)

from recipes.farfield_ssl.config import ALIGNER, PARTS, PROFILES
from recipes.steps import gmm, learning
from recipes.steps.breakdown import write_breakdown
from recipes.steps.chain import train_chain
from recipes.steps.data import get_corpus
from recipes.steps.decoding import compile_network_graph
from recipes.steps.discriminative import make_denominators, train_on_lattices
from recipes.steps.farfield import (
    align_twins,
    decode_systems,
    extract_features,
    make_rooms,
    validation,
    write_manifests,
)
from recipes.steps.features import decoded_features, training_features
from recipes.steps.frontend import decode_arrays, enhance_arrays
from recipes.steps.gmm import tie_senones
from recipes.steps.language import check_splits, prepare_language, train_language_models
from recipes.steps.learning import student_normaliser
from recipes.steps.network import decode_network, train_network
from recipes.steps.placements import compare_placements, show_placements
from recipes.steps.semi_supervised import recognise_for_chain, train_on_recognised_phones
from recipes.steps.unlabelled import check_executor, label_with_teacher, prepare_unlabelled
from toolkit.stages.recipe import Recipe
from toolkit.stages.run import Run

recipe = Recipe("farfield_ssl", Path(__file__), PROFILES, title=__doc__, on_finish=show_placements)
CE, LFMMI = "objective=ce", "objective=lfmmi"
"""What asks for the stages that train and decode teacher and student in one way or the other."""
CHAIN_SENONES = "chain_teacher/graphs"
"""The folder of the senones of lattice-free MMI, which have a tree of their own."""


@recipe.stage(1, "Get clean speech: synthesise or download it, unless corpus.root is set")
def get_audio(run: Run) -> dict[str, float] | None:
    """Any corpus that `local` can read."""
    return get_corpus(run)


@recipe.stage(2, "Simulate far-field recordings in rooms, with noise and device playback")
def simulate(run: Run) -> dict[str, float]:
    """Labelled, unlabelled, validation and test speech at five placements (C32)."""
    return make_rooms(run)


@recipe.stage(3, "Write the manifests")
def manifests(run: Run) -> dict[str, float]:
    """Manifests of the unlabelled speech have no transcripts, and no stage reads them."""
    return write_manifests(run)


@recipe.stage(4, "Check the data")
def check(run: Run) -> dict[str, float]:
    """Checks all sets with transcripts."""
    return check_splits(run)


@recipe.stage(5, "Prepare lexicon, phones and words")
def language(run: Run) -> dict[str, float]:
    """Words of the labelled transcripts and the most frequent ones of the LM text."""
    return prepare_language(run)


@recipe.stage(6, "Estimate the n-gram language models")
def lm(run: Run) -> dict[str, float]:
    """Modified Kneser-Ney on lm.text, or else the labelled transcripts; a 4-gram rescores (C2)."""
    return train_language_models(run)


@recipe.stage(7, "Extract features")
def features(run: Run) -> dict[str, float]:
    """Log-mel of far-field speech for the networks (C5), PLP of its clean twins for GMMs (C4)."""
    return extract_features(run)


@recipe.stage(8, "Train monophone GMMs on the clean twins of the labelled speech")
def train_mono(run: Run) -> dict[str, float]:
    """The twins have the same ids and the same frames, without room and noise."""
    return gmm.train_mono(run, "clean")


@recipe.stage(9, "Train triphone GMMs on deltas")
def train_tri(run: Run) -> dict[str, float]:
    """A phonetic tree on the monophones' alignments."""
    return gmm.train_tri(run, "clean")


@recipe.stage(10, "Train LDA + MLLT GMMs")
def train_lda(run: Run) -> dict[str, float]:
    """Spliced frames, projected to 40 dimensions (C4)."""
    return gmm.train_lda(run, "clean")


@recipe.stage(11, "Align the clean twins; the far-field speech uses the same alignments")
def align(run: Run) -> dict[str, float]:
    """An HMM state for every 10 ms frame."""
    return align_twins(run, ALIGNER)


@recipe.stage(12, "Tie senones at the low frame rate")
def tie(run: Run) -> dict[str, float]:
    """A separate tree for 30 ms frames (C3, C4)."""
    return tie_senones(run, ALIGNER, "clean")


@recipe.stage(13, "Compile the decoding graph of these senones")
def compile_graph(run: Run) -> dict[str, float]:
    """H, C, L and G of all networks but those of lattice-free MMI."""
    return compile_network_graph(run)


@recipe.stage(
    14, "Train the baseline LSTM with cross entropy", distributed=True, background_when=CE
)
def baseline_ce(run: Run) -> dict[str, float]:
    """Chunks, then whole utterances (C7); realigned and retrained align.rounds times (C4)."""
    fbank, valid = training_features(run, "fbank"), validation(run, ALIGNER)
    return train_network(run, "baseline_ce", fbank, run.config.baseline, ALIGNER, valid)


@recipe.stage(15, "Make the baseline's denominator lattices", background_when=CE)
def baseline_lattices(run: Run) -> dict[str, float]:
    """Lattices with a weak language model, and reference alignments by the network itself (C8)."""
    return make_denominators(
        run, "baseline_ce", training_features(run, "fbank"), "lattices/baseline"
    )


@recipe.stage(
    16, "Train the baseline with sMBR on the lattices", distributed=True, background_when=CE
)
def baseline(run: Run) -> dict[str, float]:
    """The system to beat (C33)."""
    return train_on_lattices(
        run, "baseline", "baseline_ce", training_features(run, "fbank"), "lattices/baseline"
    )


@recipe.stage(17, "Train the teacher BLSTM with cross entropy", distributed=True, when=CE)
def teacher_ce(run: Run) -> dict[str, float]:
    """The same training and the baseline's targets with another network (C9)."""
    return learning.train_teacher(run, "teacher_ce", ALIGNER, "baseline_ce")


@recipe.stage(18, "Make the teacher's denominator lattices", when=CE)
def teacher_lattices(run: Run) -> dict[str, float]:
    """Made like those of the baseline."""
    return make_denominators(run, "teacher_ce", training_features(run, "fbank"), "lattices/teacher")


@recipe.stage(19, "Train the teacher with sMBR on the lattices", distributed=True, when=CE)
def teacher(run: Run) -> dict[str, float]:
    """Trained like the baseline (C9)."""
    return train_on_lattices(
        run, "teacher", "teacher_ce", training_features(run, "fbank"), "lattices/teacher"
    )


@recipe.stage(20, "Decode with the baseline and the teacher")
def decode_labelled(run: Run) -> dict[str, float]:
    """Every placement; acoustic scale and word penalty are tuned on val only."""
    return decode_systems(run, "baseline", *["teacher"] * ("teacher" in run.config.systems))


@recipe.stage(21, "Prepare the unlabelled features with the data pipeline", check=check_executor)
def prepare(run: Run) -> dict[str, float]:
    """Select, group, extract, shuffle, estimate statistics (C16 to C19), by `executor`."""
    return prepare_unlabelled(run)


@recipe.stage(
    22, "Evaluate the teacher: calibration, and what is lost by keeping only k logits", when=CE
)
def evaluate_teacher(run: Run) -> dict[str, float]:
    """Calibrated posteriors can serve as confidences (C10, C11)."""
    return learning.measure_teacher(run, "teacher", "baseline_ce", ALIGNER)


@recipe.stage(23, "Compute the teacher's targets and repartition", check=check_executor, when=CE)
def label(run: Run) -> dict[str, float]:
    """The k highest logits of every frame (C11, C20, C21)."""
    return label_with_teacher(run, "teacher", run.need("fbank/normaliser.json"))


@recipe.stage(
    24,
    "Train the student by scheduled learning",
    distributed=True,
    when=CE,
    background_when="self_training",
)
def student_ce(run: Run) -> dict[str, float]:
    """Sub-epochs of unlabelled speech, each followed by the labelled speech (C10, C12)."""
    return learning.train_student(run, "student_ce", ALIGNER, "baseline_ce")


@recipe.stage(
    25, "Make the student's denominator lattices", when=CE, background_when="self_training"
)
def student_lattices(run: Run) -> dict[str, float]:
    """Lattices of the labelled speech only (C14)."""
    fbank, normaliser = training_features(run, "fbank"), student_normaliser(run)
    return make_denominators(run, "student_ce", fbank, "lattices/student", normaliser)


@recipe.stage(
    26,
    "Train the student with sMBR on the lattices",
    distributed=True,
    when=CE,
    background_when="self_training",
)
def student_smbr(run: Run) -> dict[str, float]:
    """Trained like the baseline and the teacher."""
    fbank, normaliser = training_features(run, "fbank"), student_normaliser(run)
    return train_on_lattices(
        run, "student_smbr", "student_ce", fbank, "lattices/student", normaliser
    )


@recipe.stage(
    27, "Decode with the student, before and after sMBR", when=CE, background_when="self_training"
)
def decode_student(run: Run) -> dict[str, float]:
    """The same graph, with scale and penalty tuned again on val."""
    return decode_systems(run, "student_ce", "student_smbr", normaliser=student_normaliser(run))


@recipe.stage(28, "Recognise the unlabelled speech and keep the most confident utterances", when=CE)
def recognise(run: Run) -> dict[str, float]:
    """For self-training: the teacher's words and alignments instead of its posteriors (C13)."""
    return learning.recognise_unlabelled(run, "teacher")


@recipe.stage(
    29, "Train a network on the recognised utterances (self-training)", distributed=True, when=CE
)
def self_training(run: Run) -> dict[str, float]:
    """Cross entropy, together with the labelled speech; a network of the student's size (C13)."""
    return learning.train_on_recognised(run, "self_training", ALIGNER, "baseline_ce")


@recipe.stage(30, "Decode with the self-trained network", when=CE)
def decode_self_trained(run: Run) -> dict[str, float]:
    """Decoded like the student before sMBR."""
    return decode_systems(run, "self_training", normaliser=student_normaliser(run))


@recipe.stage(31, "Train a teacher with lattice-free MMI", distributed=True, when=LFMMI)
def chain_teacher(run: Run) -> dict[str, float]:
    """A TDNN-F on the phones of the labelled speech, with a tree of its own (C9)."""
    return train_chain(run, "chain_teacher", ALIGNER, training_features(run, "fbank"), "clean")


@recipe.stage(32, "Compile the decoding graph of lattice-free MMI", when=LFMMI)
def compile_chain_graph(run: Run) -> dict[str, float]:
    """Of the teacher's senones, which are the student's too."""
    return compile_network_graph(run, CHAIN_SENONES)


@recipe.stage(33, "Decode with the teacher of lattice-free MMI", when=LFMMI)
def decode_chain_teacher(run: Run) -> dict[str, float]:
    """Scores without priors, at acoustic scale 1 or near it."""
    return decode_network(
        run, "chain_teacher", decoded_features(run, "fbank"), graphs=CHAIN_SENONES
    )


@recipe.stage(34, "Recognise the unlabelled speech: the phones of its lattices", when=LFMMI)
def recognise_phones(run: Run) -> dict[str, float]:
    """What may have been said, with posteriors, in place of one transcript (C13)."""
    return recognise_for_chain(run, "chain_teacher")


@recipe.stage(35, "Train a student with lattice-free MMI", distributed=True, when=LFMMI)
def chain_student(run: Run) -> dict[str, float]:
    """On the recognised and the labelled speech together."""
    return train_on_recognised_phones(
        run, "chain_student", "chain_teacher", ALIGNER, student_normaliser(run)
    )


@recipe.stage(36, "Decode with the student of lattice-free MMI", when=LFMMI)
def decode_chain_student(run: Run) -> dict[str, float]:
    """In the teacher's graph, with scale and penalty chosen again on val."""
    fbank, normaliser = decoded_features(run, "fbank"), student_normaliser(run)
    return decode_network(run, "chain_student", fbank, normaliser, graphs=CHAIN_SENONES)


@recipe.stage(
    37,
    "Enhance the array recordings: echo cancellation and beamforming",
    when="rooms.array_hours",
)
def front_end(run: Run) -> dict[str, float]:
    """Uses the playback channel; echo and noise are known, and measured before and after (C1)."""
    return enhance_arrays(run)


@recipe.stage(
    38, "Decode the array recordings with and without enhancement", when="rooms.array_hours"
)
def decode_front_end(run: Run) -> dict[str, float]:
    """The same utterances, decoded with the student and the weights tuned on val."""
    if run.config.objective == "ce":
        return decode_arrays(run, "student_smbr", student_normaliser(run))
    return decode_arrays(run, "chain_student", student_normaliser(run), CHAIN_SENONES)


@recipe.stage(39, "Compare the placements and list the results")
def results(run: Run) -> dict[str, float]:
    """Results of every system, relative gains with intervals (C33), and a breakdown of time."""
    asked = {stage.number for stage in recipe.stages if stage.is_enabled(run.config)}
    write_breakdown(run, {part: sorted(asked.intersection(own)) for part, own in PARTS.items()})
    return compare_placements(run, "baseline", run.config.systems)


if __name__ == "__main__":
    recipe.main()
