#!/usr/bin/env python3
"""Far-field speech recognition: a student LSTM trained on a teacher's soft targets."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
from toolkit.stages.bootstrap import use_project_environment

use_project_environment(ROOT)

from recipes import steps
from recipes.farfield_ssl.config import ALIGNER, PARTS, PROFILES, Config
from recipes.steps import stages
from toolkit.stages.declaration import Headline
from toolkit.stages.recipe import Recipe
from toolkit.stages.run import Run

recipe = Recipe(
    "farfield_ssl",
    Path(__file__),
    PROFILES,
    title=__doc__,
    on_finish=lambda folder: steps.farfield.show_placements(folder),
    modules=[f"recipes.steps.{name}" for name in ("data", "farfield", "learning")],
)
CE, LFMMI = "objective=ce", "objective=lfmmi"
"""The settings that enable the stages of each objective."""
STUDENT = "self_training"
"""Setting with which the student's stages run in the background, if there are enough cores."""
STUDENT_NORMALISER = "unlabelled/normaliser.json"
"""The normaliser of the student's input: statistics of the unlabelled speech (C19)."""
CHAIN_SENONES = "chain_teacher/graphs"
"""The folder of the senones of lattice-free MMI, which come from a separate tree."""


def check_executor(config: Config) -> None:
    """Check that the data pipeline can start on this machine."""
    steps.learning.check_executor(config)


@recipe.stage(1, "Get clean speech: synthesise or download it, unless corpus.root is set")
def get_audio(run: Run) -> Headline | None:
    """Make or download the clean corpus, or use any that `local` can read."""
    return steps.data.get_corpus(run)


@recipe.stage(2, "Simulate far-field recordings in rooms, with noise and device playback")
def simulate(run: Run) -> Headline:
    """Simulate labelled, unlabelled, validation and test speech at five placements (C32)."""
    return steps.farfield.make_rooms(run)


@recipe.stage(3, "Write the manifests")
def manifests(run: Run) -> Headline:
    """Write the manifests; those of the unlabelled speech have no transcripts."""
    return steps.farfield.write_manifests(run)


recipe.add(4, "Check the data", stages.check_data)
recipe.add(5, "Prepare lexicon, phones and words", stages.prepare_words)
recipe.add(6, "Estimate the n-gram language models", stages.train_lm)


@recipe.stage(7, "Extract features")
def features(run: Run) -> Headline:
    """Extract log-mel of far-field speech for networks (C5), PLP of clean twins for GMMs (C4)."""
    return steps.farfield.extract_features(run)


@recipe.stage(8, "Train monophone GMMs on the clean twins of the labelled speech")
def train_mono(run: Run) -> Headline:
    """Train on the clean twins, which have the same ids and frames, without room and noise."""
    return steps.gmm.train_mono(run, "clean")


recipe.add(9, "Train triphone GMMs on deltas", stages.train_tri, split="clean")
recipe.add(10, "Train LDA + MLLT GMMs", stages.train_lda, split="clean")


@recipe.stage(11, "Align the clean twins; the far-field speech uses the same alignments")
def align(run: Run) -> Headline:
    """Align the clean twins: an HMM state for every 10 ms frame."""
    return steps.farfield.align_twins(run, ALIGNER)


recipe.add(12, "Tie senones at the low frame rate", stages.tie, system=ALIGNER, split="clean")
recipe.add(13, "Compile the decoding graph of these senones", stages.compile_graph)


@recipe.stage(14, "Train the baseline with cross entropy", distributed=True, background_when=CE)
def baseline_ce(run: Run) -> Headline:
    """Train on chunks, then whole utterances (C7); realign and retrain align.rounds times (C4)."""
    config, valid = run.config.baseline, steps.farfield.validation(run, ALIGNER)
    return steps.networks.train_network(run, "baseline_ce", None, config, ALIGNER, valid)


@recipe.stage(15, "Make the baseline's denominator lattices", background_when=CE)
def baseline_lattices(run: Run) -> Headline:
    """Make lattices with a weak language model, and reference alignments (C8)."""
    return steps.networks.make_denominators(run, "baseline_ce", "lattices/baseline")


@recipe.stage(16, "Train the baseline with sMBR", distributed=True, background_when=CE)
def baseline(run: Run) -> Headline:
    """Train the baseline with sMBR: the system to beat (C33)."""
    return steps.networks.train_on_lattices(run, "baseline", "baseline_ce", "lattices/baseline")


@recipe.stage(17, "Train the teacher BLSTM with cross entropy", distributed=True, when=CE)
def teacher_ce(run: Run) -> Headline:
    """Train the teacher in the same way as the baseline, on the baseline's targets (C9)."""
    return steps.learning.train_teacher(run, "teacher_ce", ALIGNER, "baseline_ce")


@recipe.stage(18, "Make the teacher's denominator lattices", when=CE)
def teacher_lattices(run: Run) -> Headline:
    """Make the teacher's lattices in the same way as the baseline's."""
    return steps.networks.make_denominators(run, "teacher_ce", "lattices/teacher")


@recipe.stage(19, "Train the teacher with sMBR on the lattices", distributed=True, when=CE)
def teacher(run: Run) -> Headline:
    """Train the teacher with sMBR, like the baseline (C9)."""
    return steps.networks.train_on_lattices(run, "teacher", "teacher_ce", "lattices/teacher")


@recipe.stage(20, "Decode with the baseline and the teacher")
def decode_labelled(run: Run) -> Headline:
    """Decode every placement; acoustic scale and word penalty are tuned on val only."""
    systems = ["baseline", *(["teacher"] if "teacher" in run.config.systems else [])]
    return steps.farfield.decode_systems(run, systems)


@recipe.stage(21, "Prepare the unlabelled features with the data pipeline", check=check_executor)
def prepare(run: Run) -> Headline:
    """Select, group, extract and shuffle speech, and estimate statistics (C16 to C19)."""
    return steps.learning.prepare_unlabelled(run)


@recipe.stage(22, "Evaluate the teacher: calibration, cost of storing only k logits", when=CE)
def evaluate_teacher(run: Run) -> Headline:
    """Measure calibration, since only calibrated posteriors can serve as confidences (C10, C11)."""
    return steps.learning.measure_teacher(run, "teacher", "baseline_ce", ALIGNER)


@recipe.stage(23, "Compute the teacher's targets and repartition", check=check_executor, when=CE)
def label(run: Run) -> Headline:
    """Store the k highest logits of every frame (C11, C20, C21)."""
    return steps.learning.label_with_teacher(run, "teacher", run.need("fbank/normaliser.json"))


@recipe.stage(
    24,
    "Train the student by scheduled learning",
    distributed=True,
    when=CE,
    background_when=STUDENT,
)
def student_ce(run: Run) -> Headline:
    """Train on sub-epochs of unlabelled speech, each followed by the labelled speech (C10, C12)."""
    return steps.learning.train_student(run, "student_ce", ALIGNER, "baseline_ce")


@recipe.stage(25, "Make the student's denominator lattices", when=CE, background_when=STUDENT)
def student_lattices(run: Run) -> Headline:
    """Make lattices of the labelled speech only (C14)."""
    return steps.networks.make_denominators(
        run, "student_ce", "lattices/student", STUDENT_NORMALISER
    )


@recipe.stage(26, "Train the student with sMBR", distributed=True, when=CE, background_when=STUDENT)
def student_smbr(run: Run) -> Headline:
    """Train the student with sMBR, like the baseline and the teacher."""
    return steps.networks.train_on_lattices(
        run, "student_smbr", "student_ce", "lattices/student", STUDENT_NORMALISER
    )


@recipe.stage(27, "Decode with the student before and after sMBR", when=CE, background_when=STUDENT)
def decode_student(run: Run) -> Headline:
    """Decode with the same graph; scale and penalty are tuned again on val."""
    return steps.farfield.decode_systems(run, ["student_ce", "student_smbr"], STUDENT_NORMALISER)


@recipe.stage(28, "Recognise the unlabelled speech and keep the most confident utterances", when=CE)
def recognise(run: Run) -> Headline:
    """Recognise and align: self-training takes the teacher's words, not its posteriors (C13)."""
    return steps.learning.recognise_unlabelled(run, "teacher")


@recipe.stage(29, "Train a network on the recognised utterances", distributed=True, when=CE)
def self_training(run: Run) -> Headline:
    """Train a network of the student's size by cross entropy, with the labelled speech (C13)."""
    return steps.learning.train_on_recognised(run, "self_training", ALIGNER, "baseline_ce")


@recipe.stage(30, "Decode with the self-trained network", when=CE)
def decode_self_trained(run: Run) -> Headline:
    """Decode like the student before sMBR."""
    return steps.farfield.decode_systems(run, ["self_training"], STUDENT_NORMALISER)


@recipe.stage(31, "Train a teacher with lattice-free MMI", distributed=True, when=LFMMI)
def chain_teacher(run: Run) -> Headline:
    """Train a TDNN-F on the phones of the labelled speech, with a separate tree (C9)."""
    return steps.networks.train_chain(run, "chain_teacher", ALIGNER, cepstra="clean")


@recipe.stage(32, "Compile the decoding graph of lattice-free MMI", when=LFMMI)
def compile_chain_graph(run: Run) -> Headline:
    """Compile the graph of the teacher's senones, which the student shares."""
    return steps.decoding.compile_network_graph(run, CHAIN_SENONES)


@recipe.stage(33, "Decode with the teacher of lattice-free MMI", when=LFMMI)
def decode_chain_teacher(run: Run) -> Headline:
    """Decode with scores without priors, at acoustic scale 1 or near it."""
    return steps.decoding.decode_network(run, "chain_teacher", graphs=CHAIN_SENONES)


@recipe.stage(34, "Recognise the unlabelled speech: the phones of its lattices", when=LFMMI)
def recognise_phones(run: Run) -> Headline:
    """Store phone sequences with posteriors instead of a single transcript (C13)."""
    return steps.learning.recognise_for_chain(run, "chain_teacher")


@recipe.stage(35, "Train a student with lattice-free MMI", distributed=True, when=LFMMI)
def chain_student(run: Run) -> Headline:
    """Train on the recognised and the labelled speech together."""
    return steps.learning.train_on_recognised_phones(run, "chain_student", "chain_teacher", ALIGNER)


@recipe.stage(36, "Decode with the student of lattice-free MMI", when=LFMMI)
def decode_chain_student(run: Run) -> Headline:
    """Decode in the teacher's graph, with scale and penalty tuned again on val."""
    return steps.decoding.decode_network(
        run, "chain_student", None, STUDENT_NORMALISER, graphs=CHAIN_SENONES
    )


@recipe.stage(
    37, "Enhance the array recordings: echo cancellation and beamforming", when="rooms.array_hours"
)
def front_end(run: Run) -> Headline:
    """Enhance array recordings with the playback channel, and measure echo and noise (C1)."""
    return steps.farfield.enhance_arrays(run)


@recipe.stage(
    38, "Decode the array recordings with and without enhancement", when="rooms.array_hours"
)
def decode_front_end(run: Run) -> Headline:
    """Decode the same utterances with the student and the decoding weights tuned on val."""
    if run.config.objective == "ce":
        return steps.farfield.decode_arrays(run, "student_smbr", STUDENT_NORMALISER)
    return steps.farfield.decode_arrays(run, "chain_student", STUDENT_NORMALISER, CHAIN_SENONES)


@recipe.stage(39, "Compare the placements and list the results")
def results(run: Run) -> Headline:
    """Collect all results, relative gains with intervals (C33), and a breakdown of time."""
    # Leave out stages that these settings skip: their markers may come from earlier settings.
    enabled = {stage.number for stage in recipe.stages if stage.is_enabled(run.config)}
    parts = {part: sorted(enabled.intersection(stages)) for part, stages in PARTS.items()}
    steps.farfield.write_breakdown(run, parts)
    return steps.farfield.compare_placements(run, "baseline", run.config.systems)


if __name__ == "__main__":
    recipe.main()
