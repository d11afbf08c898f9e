"""Damaged models and their parts."""

from dataclasses import replace

import numpy as np
import torch

from tests.fuzz.hostile import *  # noqa: F403
from tests.fuzz.trial import Reader
from toolkit.decode.speech import SpeechDetector
from toolkit.features.config import FrontendConfig
from toolkit.features.gmm_features import GmmFrontend
from toolkit.features.normalise import Cmvn, GlobalStats
from toolkit.hmm.gmm import Gmm
from toolkit.hmm.senones import Senones
from toolkit.hmm.topology import Topology
from toolkit.lang.arpa import read_arpa, read_binary, write_binary
from toolkit.lang.g2p import G2p
from toolkit.lang.lang import Lang
from toolkit.lang.lexicon import Lexicon
from toolkit.lang.probabilities import EntryProbabilities, LexiconProbabilities
from toolkit.lang.text_policy import AS_GIVEN, TextPolicy
from toolkit.lang.units import Characters, load_units, train_pieces
from toolkit.models.config import CtcConfig, LstmConfig
from toolkit.models.ctc import CtcModel
from toolkit.models.lstm import LstmModel
from toolkit.models.scorer import NeuralModel, load_log_priors, save_priors
from toolkit.models.store import load_model, save_model
from toolkit.train.checkpoints import read_state, write_state
from toolkit.train.runlog import Created, Evaluated, RunLogWriter, Sentences, Step, read_run_log

ARPA = "\\data\\\nngram 1=3\nngram 2=2\n\n\\1-grams:\n-1\t<s>\t-0.3\n-1\t</s>\n-0.5\tA\t-0.2\n\n"
ARPA += "\\2-grams:\n-0.2\t<s> A\n-0.3\tA </s>\n\n\\end\\\n"
WORDS = {"AB": [("A", "B")], "A": [("A",)], "BA": [("B", "A")], "ABBA": [("A", "B", "A")]}
FRONTEND, SOUND = FrontendConfig(num_mel_bins=3), torch.linspace(0, 9, 90).reshape(30, 3)
TOPOLOGY = Topology(("SIL", "SPN", "A", "B"), silence_states=3)


def ctc_model(folder):
    config = CtcConfig(input_dim=4, channels=(3,), kernels=(3,), lstm_layers=2, hidden=3)
    save_model(folder, CtcModel(config))


def neural_model(folder):
    save_model(folder, LstmModel(LstmConfig(6, 3, hidden=2, layers=1)))
    save_priors(folder, torch.tensor([3, 0, 5]))
    stats = GlobalStats.of(torch.randn(9, 2))
    Cmvn(torch.zeros(2, dtype=torch.float64), stats).save(folder / "normaliser.json")


def gaussians(folder):
    means = torch.randn(3, 2)
    Gmm(torch.tensor([0, 0, 1]), torch.tensor([0.5, 0.5, 1.0]), means, means.exp()).save(
        folder / "gmm.safetensors"
    )


def gmm_frontend(folder):
    GmmFrontend(splice=1, projection=torch.eye(2, 18)).save(folder)


def pronunciations(folder):
    lang = Lang.of(Lexicon(WORDS))
    entries = {entry: EntryProbabilities(1.0, 0.25, 0.5, 1.5) for entry in lang.lexicon.pairs()}
    probabilities = LexiconProbabilities(entries, 0.9, 1.25, 0.5, 0.25)
    replace(lang, probabilities=probabilities).save(folder)


def language_model(folder):
    (folder / "x.arpa").write_text(ARPA)
    write_binary(read_arpa(folder / "x.arpa"), folder / "lm.safetensors")
    (folder / "x.arpa").unlink()


def use_language_model(folder):
    read_binary(folder / "lm.safetensors").token_logprobs(np.array([1, 2, 0]))


def checkpoint(folder):
    state = {
        "model": {"w": torch.randn(2, 3)},
        "steps": [1, 2.5, None, "x"],
        3: {"b": torch.ones(1)},
    }
    write_state(folder / "epoch-0001-step-00000001.safetensors", state)


def run_log(folder):
    log = RunLogWriter(folder / "log.jsonl", iter(range(100)).__next__)
    log.create(Created(parameters=5, batch=2, about={"run": "demo", "machine": {"cpu": "x"}}))
    log.write(Step(step=1, epoch=1, loss=float("nan"), examples=2, seconds_in_step=0.5))
    log.write(Sentences(step=1, references=("A B",), hypotheses=("A",)))
    log.write(Evaluated(step=1, epoch=1, wer=50.0))


def use_run_log(folder):
    log = read_run_log(folder)
    return log.created, log.starts, log.seconds


READERS = {
    "lstm-model": Reader(
        lambda folder: save_model(folder, LstmModel(LstmConfig(4, 3, hidden=2, layers=2))),
        load_model,
    ),
    "neural-model": Reader(
        neural_model,
        lambda f: NeuralModel(f, f / "normaliser.json").log_likelihoods(torch.zeros(7, 2)),
    ),
    "ctc-model": Reader(ctc_model, load_model),
    "priors": Reader(lambda f: save_priors(f, torch.tensor([3, 0, 5])), load_log_priors),
    "speech-detector": Reader(
        lambda f: SpeechDetector(FRONTEND).save(f / "speech.safetensors"),
        lambda f: SpeechDetector.load(f / "speech.safetensors", FRONTEND).score(SOUND),
    ),
    "gmm": Reader(
        gaussians, lambda f: Gmm.load(f / "gmm.safetensors").log_likelihoods(torch.zeros(2, 2))
    ),
    "gmm-frontend": Reader(gmm_frontend, GmmFrontend.load),
    "senones": Reader(
        lambda folder: Senones.monophone(TOPOLOGY).save(folder),
        lambda folder: Senones.load(folder).num_pdfs,
    ),
    "language": Reader(lambda folder: Lang.of(Lexicon(WORDS)).save(folder), Lang.load),
    "pronunciations": Reader(pronunciations, Lang.load),
    "language-model": Reader(language_model, use_language_model),
    "g2p": Reader(
        lambda folder: G2p.train(Lexicon(WORDS)).save(folder / "g2p.npz"),
        lambda folder: G2p.load(folder / "g2p.npz").guess(["BAB"]),
    ),
    "language-as-given": Reader(
        lambda folder: replace(Lang.of(Lexicon(WORDS)), normaliser=AS_GIVEN, tags="noise").save(
            folder
        ),
        lambda folder: Lang.load(folder).policy.tokens("A [B] {C}"),
        names=("the normaliser ",),
    ),
    "characters-as-given": Reader(
        Characters(["a", "B", "é"], TextPolicy(AS_GIVEN, "keep")).save,
        lambda folder: load_units(folder).encode("aB é"),
        names=("letters of the units",),
    ),
    "characters": Reader(Characters().save, load_units),
    "pieces": Reader(
        lambda folder: train_pieces("bpe", 32, ["A BAA", "AB ABBA"]).save(folder),
        lambda folder: load_units(folder).encode("ABBA"),
    ),
    "checkpoint": Reader(
        checkpoint, lambda f: read_state(f / "epoch-0001-step-00000001.safetensors")
    ),
    "run-log": Reader(run_log, use_run_log),
}
