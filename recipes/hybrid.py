"""What the stages of the hybrid recipes share: the steps that a run repeats for each system."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from lhotse import MonoCut

from toolkit.align.adaptation import adapt_speakers
from toolkit.align.scorer import GmmScorer
from toolkit.corpus.manifest import read_cuts, text_of
from toolkit.corpus.splits import Splits
from toolkit.decode.first_pass import DecodeConfig
from toolkit.decode.graph import make_decoding_graph
from toolkit.decode.system import decode_system
from toolkit.hmm.senones import Senones
from toolkit.lang.config import NgramConfig
from toolkit.score.read import read_transcripts
from toolkit.stages.run import Run


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


def train_gmm(run: Run, train: Callable[..., dict[str, float]], system: str) -> dict[str, float]:
    """Train a GMM system on the cepstra of the training data."""
    return train(
        cepstra=run.need("plp/train"),
        transcripts={cut.id: text_of(cut).split() for cut in cuts(run, "train")},
        lang=run.need("lang"),
        config=getattr(run.config, system),
        out=run.make(system),
        jobs=run.jobs,
        progress=run.progress,
    )


def decode_gmm(
    run: Run, system: str, transforms: Mapping[str, Path] | None = None
) -> dict[str, float]:
    """Decode with a GMM system, adapted to the speakers if there are transforms."""
    model = run.need(system)
    scorers = {
        s: GmmScorer(model, run.need(f"plp/{s}"), (transforms or {}).get(s))
        for s in splits(run).decoded
    }
    return decode(run, system, Senones.load(model), scorers, run.config.gmm_decode)


def adapt(run: Run, adapted: str, first_pass: str) -> dict[str, Path]:
    """Estimate the speakers' transforms from what a first pass has recognised, by split."""
    transforms = {}
    for split in splits(run).decoded:
        hypotheses = read_transcripts(run.need(f"decode/{first_pass}/{split}/text"), "text").texts
        transforms[split] = run.make(f"fmllr/{split}.safetensors")
        adapt_speakers(
            run.need(adapted),
            run.need(first_pass),
            run.need(f"plp/{split}"),
            {utterance: words.split() for utterance, words in hypotheses.items()},
            run.need("lang"),
            getattr(run.config, adapted).em,
            transforms[split],
            run.jobs,
        )
    return transforms


def decode(
    run: Run, system: str, senones: Senones, scorers: dict, config: DecodeConfig
) -> dict[str, float]:
    """Make the graph, tune on the development splits, score all."""
    out = run.make(f"decode/{system}")
    graph = out / "graph.safetensors"
    if not graph.exists():
        make_decoding_graph(run.need("lang"), run.need("lm/lm.arpa"), senones, graph)
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
