#!/usr/bin/env python3
"""The hybrid recogniser: from audio to word error rates with HMMs and an LSTM."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
from toolkit.stages.bootstrap import use_project_environment

use_project_environment(ROOT)

from dataclasses import replace

from lhotse import MonoCut

from local import fetch, manifests
from recipes.librispeech.config import PROFILES
from toolkit.align.corpus import align_corpus
from toolkit.align.graphs import TranscriptCompiler
from toolkit.align.monophone import train_monophone
from toolkit.align.scorer import GmmScorer
from toolkit.align.store import AlignmentStore, LowRateAlignments
from toolkit.corpus.check import check
from toolkit.corpus.manifest import read_cuts, text_of, write_cuts
from toolkit.corpus.splits import Splits
from toolkit.decode.first_pass import DecodeConfig
from toolkit.decode.graph import make_decoding_graph
from toolkit.decode.recogniser import write_bundle
from toolkit.decode.system import decode_system
from toolkit.features.cepstra import SpeakerNormalisedCepstra
from toolkit.features.extract import extract
from toolkit.features.normalise import Normaliser, estimate_normaliser
from toolkit.features.store import FeatureStore
from toolkit.hmm.topology import Topology
from toolkit.lang.config import NgramConfig
from toolkit.lang.lang import Lang
from toolkit.lang.lm import prepare_lm, word_weights
from toolkit.lang.prepare import prepare_lang, source_lexicon
from toolkit.models.scorer import NeuralScorer
from toolkit.score.results import collect_results, print_results
from toolkit.stages.recipe import Recipe
from toolkit.stages.run import Run
from toolkit.train.cross_entropy import train_cross_entropy

recipe = Recipe("librispeech", Path(__file__), PROFILES, title=__doc__)


def splits(run: Run) -> Splits:
    """The names of the splits and what each is for."""
    return Splits.load(run.need("data/splits.json"))


def cuts(run: Run, split: str) -> list[MonoCut]:
    """A split's utterances without those that the check excluded."""
    return read_cuts(run.need(f"data/{split}.jsonl"), run.need("check/excluded.tsv"))


def texts(run: Run) -> dict[str, dict[str, str]]:
    """Transcripts by split and utterance."""
    return {s: {cut.id: text_of(cut) for cut in cuts(run, s)} for s in splits(run).all}


def lm_config(run: Run) -> NgramConfig:
    """The language model's settings; the demo corpus brings text of its own."""
    own = run.need("corpus") / "lm.txt"
    config = run.config.lm
    return replace(config, text=own) if config.text is None and own.exists() else config


@recipe.stage(1, "Get the audio: made, downloaded, or found at corpus.root")
def get_audio(run: Run) -> dict[str, float] | None:
    """Only what is missing is made: with corpus.root nothing is copied."""
    corpus, out = run.config.corpus, run.make("corpus")
    out.mkdir(exist_ok=True)
    return None if corpus.root else fetch(corpus, out, run.jobs, run.progress)


@recipe.stage(2, "Write the manifests")
def write_manifests(run: Run) -> dict[str, float]:
    """One line per utterance, faulty or not: the next stage judges."""
    corpus = run.config.corpus
    root = run.need_outside(corpus.root) if corpus.root else run.need("corpus")
    parts = manifests(corpus, root)
    data = run.make("data")
    for split, found in parts.items():
        write_cuts(found, data / f"{split}.jsonl")
    Splits.of(parts, corpus).save(data / "splits.json")
    return {split: len(found) for split, found in parts.items()}


@recipe.stage(3, "Check the data")
def check_data(run: Run) -> dict[str, float]:
    """Every fault in one pass, before anything expensive; what cannot be used is excluded."""
    manifests = {split: run.need(f"data/{split}.jsonl") for split in splits(run).all}
    lexicon = source_lexicon(run.config.lang).shortest()
    return check(manifests, lexicon, run.make("check"), run.config.check, run.jobs, run.progress)


@recipe.stage(4, "Prepare lexicon, phones and words")
def prepare_language(run: Run) -> dict[str, float]:
    """Words of the transcripts and the commonest of the LM text; G2P for what the lexicon lacks."""
    return prepare_lang(run.config.lang, texts(run), word_weights(lm_config(run)), run.make("lang"))


@recipe.stage(5, "Estimate the n-gram language model")
def train_lm(run: Run) -> dict[str, float]:
    """Modified Kneser-Ney on lm.text, or else on the training transcripts."""
    vocabulary = Lang.load(run.need("lang")).vocabulary
    return prepare_lm(lm_config(run), texts(run), vocabulary, run.make("lm"))


@recipe.stage(6, "Extract features")
def extract_features(run: Run) -> dict[str, float]:
    """Raw, once, at 100 Hz: PLP for the GMMs (C4), log-mel for the networks (C5)."""
    names = splits(run).all
    hours = {}
    plp, fbank = run.make("plp"), run.make("fbank")
    for done, split in enumerate(names):
        extract(cuts(run, split), run.config.cepstra, plp / split, run.jobs)
        facts = extract(cuts(run, split), run.config.fbank, fbank / split, run.jobs)
        hours[f"hours {split}"] = facts["hours"]
        run.progress(done + 1, len(names))
    estimate_normaliser(FeatureStore(fbank / "train"), run.config.prior_frames).save(
        run.make("normaliser.json")
    )
    return hours


@recipe.stage(7, "Train monophone GMMs")
def train_mono(run: Run) -> dict[str, float]:
    """Flat start and Viterbi training on the shortest utterances."""
    lang = Lang.load(run.need("lang"))
    store = FeatureStore(run.need("plp/train"))
    return train_monophone(
        SpeakerNormalisedCepstra(store),
        {u: text_of(store.cut(u)).split() for u in store.ids},
        TranscriptCompiler(lang, Topology(tuple(lang.real_phones))),
        run.config.mono,
        run.make("mono"),
        run.jobs,
        run.progress,
    )


@recipe.stage(8, "Decode with the monophones")
def decode_mono(run: Run) -> dict[str, float]:
    """The first word error rates, and a check on everything before."""
    return decode(
        run,
        system="mono",
        topology=Topology.load(run.need("mono/topology.json")),
        scorers={s: GmmScorer(run.need("mono"), run.need(f"plp/{s}")) for s in splits(run).decoded},
        config=run.config.mono_decode,
    )


@recipe.stage(12, "Align the training data")
def align(run: Run) -> dict[str, float]:
    """A pdf for every 10 ms frame: the targets of the network."""
    return align_corpus(
        GmmScorer(run.need("mono"), run.need("plp/train")),
        Topology.load(run.need("mono/topology.json")),
        run.need("lang"),
        run.config.align,
        run.make("ali"),
        run.jobs,
        run.progress,
    )


@recipe.stage(13, "Train the LSTM with cross entropy on shuffled 32-frame chunks")
def train_ce(run: Run) -> dict[str, float]:
    """Chunked backpropagation through time, one feature offset per epoch in rotation (C7)."""
    topology = Topology.load(run.need("mono/topology.json"))
    return train_cross_entropy(
        FeatureStore(run.need("fbank/train")),
        LowRateAlignments(AlignmentStore(run.need("ali")), topology),
        Normaliser.load(run.need("normaliser.json")),
        run.config.ce,
        topology.at_low_rate().num_pdfs,
        run.make("lstm_ce"),
        run.device,
        run.progress,
    )


@recipe.stage(17, "Decode with the LSTM")
def decode_lstm(run: Run) -> dict[str, float]:
    """Log-posteriors less log-priors into a graph of low-frame-rate HMMs (C2, C3)."""
    return decode(
        run,
        system="lstm_ce",
        topology=Topology.load(run.need("mono/topology.json")).at_low_rate(),
        scorers={
            s: NeuralScorer(
                run.need("lstm_ce"), run.need("normaliser.json"), run.need(f"fbank/{s}")
            )
            for s in splits(run).decoded
        },
        config=run.config.decode,
    )


@recipe.stage(18, "Bundle the recogniser and list the results")
def bundle(run: Run) -> dict[str, float]:
    """exp/<profile>/final is all that `toolkit transcribe` needs."""
    write_bundle(
        model=run.need("lstm_ce"),
        normaliser=run.need("normaliser.json"),
        graph=run.need("decode/lstm_ce/graph.safetensors"),
        lang=run.need("lang"),
        frontend=run.config.fbank.frontend,
        config=run.config.decode,
        tuned=run.need("decode/lstm_ce/tuned.json"),
        out=run.make("final"),
    )
    rows = [run.need(f"decode/{system}/rows.json") for system in ("mono", "lstm_ce")]
    results = run.make("results.json")
    best = collect_results(rows, results)
    print_results(results)
    return best


def decode(
    run: Run, system: str, topology: Topology, scorers: dict, config: DecodeConfig
) -> dict[str, float]:
    """Make the graph, tune on the development splits, score all."""
    out = run.make(f"decode/{system}")
    graph = out / "graph.safetensors"
    if not graph.exists():
        make_decoding_graph(run.need("lang"), run.need("lm/lm.arpa"), topology, graph)
    return decode_system(
        system,
        scorers,
        splits(run).tune,
        graph,
        run.need("lang/words.txt"),
        f"{run.config.lm.order}gram",
        config,
        out,
        run.jobs,
        run.command,
        run.progress,
    )


if __name__ == "__main__":
    recipe.main()
