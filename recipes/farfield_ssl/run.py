#!/usr/bin/env python3
"""Far field: a teacher, a lake of unlabelled speech, and the better student they make."""

import sys
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
from toolkit.stages.bootstrap import use_project_environment

use_project_environment(ROOT)

from recipes.farfield_ssl.config import ALIGNER, PARTS, PROFILES, SYSTEMS
from recipes.steps import learning
from recipes.steps.breakdown import write_breakdown
from recipes.steps.data import get_corpus
from recipes.steps.farfield import (
    align_twins,
    decode_systems,
    extract_features,
    make_rooms,
    validation,
    write_manifests,
)
from recipes.steps.frontend import decode_arrays, enhance_arrays
from recipes.steps.hybrid import (
    make_denominators,
    tie_senones,
    train_gmm,
    train_network,
    train_on_lattices,
)
from recipes.steps.language import check_splits, prepare_language, train_language_models
from recipes.steps.learning import student_normaliser
from recipes.steps.placements import compare_placements, show_placements
from recipes.steps.unlabelled import check_executor, label_with_teacher, prepare_unlabelled
from toolkit.align.gmm import lda_mllt, monophone, triphone
from toolkit.stages.recipe import Recipe
from toolkit.stages.run import Run

recipe = Recipe("farfield_ssl", Path(__file__), PROFILES, title=__doc__, show=show_placements)


@recipe.stage(1, "Get clean speech: made, downloaded, or found at corpus.root")
def get_audio(run: Run) -> dict[str, float] | None:
    """Any corpus that `local` reads."""
    return get_corpus(run)


@recipe.stage(2, "Put it into rooms, with noise and what the devices play")
def simulate(run: Run) -> dict[str, float]:
    """Labelled, unlabelled, validation and test speech at five placements (C32)."""
    return make_rooms(run)


@recipe.stage(3, "Write the manifests")
def manifests(run: Run) -> dict[str, float]:
    """Those of the unlabelled speech have no transcripts, and no stage reads any."""
    return write_manifests(run)


@recipe.stage(4, "Check the data")
def check(run: Run) -> dict[str, float]:
    """All that has transcripts."""
    return check_splits(run)


@recipe.stage(5, "Prepare lexicon, phones and words")
def language(run: Run) -> dict[str, float]:
    """Words of the labelled transcripts and the commonest of the LM text."""
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
    return train_gmm(run, monophone.train_monophone, "mono", "clean")


@recipe.stage(9, "Train triphone GMMs on deltas")
def train_tri(run: Run) -> dict[str, float]:
    """A phonetic tree on the monophones' alignments."""
    train = partial(triphone.train_triphone, previous=run.need("mono"))
    return train_gmm(run, train, "tri", "clean")


@recipe.stage(10, "Train LDA + MLLT GMMs")
def train_lda(run: Run) -> dict[str, float]:
    """Spliced frames, projected to 40 dimensions (C4)."""
    train = partial(lda_mllt.train_lda_mllt, previous=run.need("tri"))
    return train_gmm(run, train, "lda_mllt", "clean")


@recipe.stage(11, "Align the clean twins; their far-field copies take the alignments")
def align(run: Run) -> dict[str, float]:
    """An HMM state for every 10 ms frame."""
    return align_twins(run, ALIGNER)


@recipe.stage(12, "Tie the senones of the low frame rate, make their decoding graph")
def tie(run: Run) -> dict[str, float]:
    """A tree of its own for 30 ms frames (C3, C4)."""
    return tie_senones(run, ALIGNER, "clean")


@recipe.stage(13, "Train the baseline LSTM with cross entropy", parallel=True)
def baseline_ce(run: Run) -> dict[str, float]:
    """Chunks, then whole utterances (C7), of the labelled far-field speech."""
    fbank, valid = run.need("fbank"), validation(run, ALIGNER)
    return train_network(run, "baseline_ce", fbank, run.config.baseline, ALIGNER, valid)


@recipe.stage(14, "Make the baseline's lattices")
def baseline_lattices(run: Run) -> dict[str, float]:
    """What it takes for possible with a weak language model, and its own alignment (C8)."""
    return make_denominators(run, "baseline_ce", run.need("fbank"), "lattices/baseline")


@recipe.stage(15, "Train the baseline on lattices (sMBR)", parallel=True)
def baseline(run: Run) -> dict[str, float]:
    """The system to beat (C33)."""
    return train_on_lattices(run, "baseline", "baseline_ce", run.need("fbank"), "lattices/baseline")


@recipe.stage(16, "Train the teacher BLSTM with cross entropy", parallel=True)
def teacher_ce(run: Run) -> dict[str, float]:
    """The same recipe and targets, another network (C9)."""
    fbank, valid = run.need("fbank"), validation(run, ALIGNER)
    return train_network(run, "teacher_ce", fbank, run.config.teacher, ALIGNER, valid)


@recipe.stage(17, "Make the teacher's lattices")
def teacher_lattices(run: Run) -> dict[str, float]:
    """As the baseline's."""
    return make_denominators(run, "teacher_ce", run.need("fbank"), "lattices/teacher")


@recipe.stage(18, "Train the teacher on lattices (sMBR)", parallel=True)
def teacher(run: Run) -> dict[str, float]:
    """As the baseline (C9)."""
    return train_on_lattices(run, "teacher", "teacher_ce", run.need("fbank"), "lattices/teacher")


@recipe.stage(19, "Decode with baseline and teacher")
def decode_labelled(run: Run) -> dict[str, float]:
    """Every placement; scale and penalty are chosen on val alone."""
    return decode_systems(run, "baseline", "teacher")


@recipe.stage(20, "Select, group, extract, shuffle, take statistics", check=check_executor)
def prepare(run: Run) -> dict[str, float]:
    """The data pipeline (C16 to C19), on `executor`."""
    return prepare_unlabelled(run)


@recipe.stage(21, "Judge the teacher: calibration, and what the k best logits keep")
def judge(run: Run) -> dict[str, float]:
    """Posteriors that are right as often as they say stand for confidences (C10, C11)."""
    return learning.judge_teacher(run, "teacher", "baseline_ce", ALIGNER)


@recipe.stage(22, "Let the teacher label it, repartition", check=check_executor)
def label(run: Run) -> dict[str, float]:
    """The k highest logits of every frame (C11, C20, C21)."""
    return label_with_teacher(run, "teacher", run.need("fbank/normaliser.json"))


@recipe.stage(23, "Train the student: scheduled learning", parallel=True)
def student_ce(run: Run) -> dict[str, float]:
    """Sub-epochs of unlabelled speech, each followed by the labelled speech (C10, C12)."""
    return learning.train_student(run, "student_ce", ALIGNER, "baseline_ce")


@recipe.stage(24, "Make the student's lattices")
def student_lattices(run: Run) -> dict[str, float]:
    """Of the labelled speech alone (C14)."""
    fbank, heard = run.need("fbank"), student_normaliser(run)
    return make_denominators(run, "student_ce", fbank, "lattices/student", heard)


@recipe.stage(25, "Train the student on lattices (sMBR)", parallel=True)
def student_smbr(run: Run) -> dict[str, float]:
    """As baseline and teacher."""
    fbank, heard = run.need("fbank"), student_normaliser(run)
    return train_on_lattices(run, "student_smbr", "student_ce", fbank, "lattices/student", heard)


@recipe.stage(26, "Decode with the student, before and after sMBR")
def decode_student(run: Run) -> dict[str, float]:
    """The same graph, tuned anew on val."""
    return decode_systems(run, "student_ce", "student_smbr", normaliser=student_normaliser(run))


@recipe.stage(27, "Recognise the unlabelled speech, keep the surest utterances")
def recognise(run: Run) -> dict[str, float]:
    """The teacher's words and alignments instead of its posteriors (C13)."""
    return learning.recognise_unlabelled(run, "teacher")


@recipe.stage(28, "Train on them: self-training", parallel=True)
def self_training(run: Run) -> dict[str, float]:
    """Cross entropy with the labelled speech, the student's size (C13)."""
    return learning.train_on_recognised(run, "self_training", ALIGNER, "baseline_ce")


@recipe.stage(29, "Decode with the self-trained network")
def decode_self_trained(run: Run) -> dict[str, float]:
    """As the student before sMBR."""
    return decode_systems(run, "self_training", normaliser=student_normaliser(run))


@recipe.stage(30, "Front end: cancel the echo on the arrays, form a beam")
def front_end(run: Run) -> dict[str, float] | None:
    """With the playback channel; echo and noise before and after are known here (C1)."""
    return enhance_arrays(run) if run.config.rooms.array_hours else None


@recipe.stage(31, "Decode with and without the front end")
def decode_front_end(run: Run) -> dict[str, float] | None:
    """The same utterances, by the student as tuned on val."""
    if not run.config.rooms.array_hours:
        return None
    return decode_arrays(run, "student_smbr", student_normaliser(run))


@recipe.stage(32, "Compare the placements, list the results")
def results(run: Run) -> dict[str, float]:
    """Rows of every system, relative gains with their intervals (C33), and where the time went."""
    write_breakdown(run, PARTS)
    return compare_placements(run, "baseline", SYSTEMS)


if __name__ == "__main__":
    recipe.main()
