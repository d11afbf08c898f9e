"""Training of networks: cross entropy, sMBR on lattices (C8), lattice-free MMI, and an LSTM LM."""

from collections.abc import Collection, Iterator
from functools import partial
from pathlib import Path

from recipes.steps.data import (
    has_copies,
    lattice_lm_config,
    lm_sources,
    need_user_files,
    training_features,
    transcripts_of,
)
from recipes.steps.decoding import (
    network_lang,
)
from recipes.steps.gmm import align_config, tree_config
from toolkit.align.corpus import align_at_offsets, align_corpus
from toolkit.align.store import (
    AlignmentStore,
    AugmentedAlignments,
    LowRateAlignments,
    OffsetAlignments,
    PdfAlignments,
)
from toolkit.align.train_gmm import build_low_rate_senones
from toolkit.decode.denominators import make_lattices
from toolkit.features.low_frame_rate import LOW_RATE_FACTOR
from toolkit.features.normalise import Cmvn
from toolkit.features.shards import FeatureStore
from toolkit.fsa.decoding_graph import make_decoding_graph
from toolkit.fsa.denominator import Denominator, make_denominator, phone_ngram
from toolkit.fsa.discriminative import PdfClasses
from toolkit.fsa.lattice_store import GraphCodec, LatticeStore
from toolkit.hmm.config import TreeConfig
from toolkit.hmm.senones import Senones
from toolkit.hmm.topology import Topology
from toolkit.lang.lang import Lang
from toolkit.lang.lm import prepare_lm
from toolkit.lang.prepare import read_sentences
from toolkit.lang.text_policy import LmText, TextPolicy
from toolkit.models.scorer import NeuralScorer
from toolkit.processes import ranks
from toolkit.processes.ranks import on_rank_zero
from toolkit.stages.run import Run
from toolkit.train.config import CrossEntropyConfig
from toolkit.train.corpus import Alignments
from toolkit.train.cross_entropy import train_cross_entropy
from toolkit.train.language_model import train_neural_lm
from toolkit.train.lfmmi import AlignedPhones, train_lfmmi
from toolkit.train.sequence import train_sequence

DENOMINATOR = "denominator.safetensors"


def train_network(
    run: Run,
    system: str,
    features: Path | None = None,
    config: CrossEntropyConfig | None = None,
    aligner: str = "sat",
    valid: tuple[FeatureStore, LowRateAlignments] | None = None,
) -> dict[str, float]:
    """Train a network with cross entropy on the training data and its augmented copies.

    In each of `align.rounds` rounds, the network aligns the data at each of its three offsets, and
    another network is trained on these targets (C4). So every epoch has targets of its own offset.
    Senones are unchanged; weights are initialised again, so that no round inherits the errors of
    earlier rounds. The networks of earlier rounds and their alignments are in `rounds/`.

    Args:
      run: the run of the stage.
      system: name of the network.
      features: the folder of the splits' features; by default `fbank`.
      config: the network and its training; by default the section `ce`.
      aligner: the GMM system that has aligned the data.
      valid: held-out data; by default some training utterances are held out.
    """
    features = features or training_features(run, "fbank")
    align, lang, out = run.config.align, run.need("lang"), run.make(system)
    senones, normaliser = Senones.load(run.need("senones")), features / "normaliser.json"
    train = FeatureStore(features / "train")
    copies = [FeatureStore(features / "copies")] if has_copies(run) else []
    alignments: Alignments = targets(run, aligner)
    headline: dict[str, float] = {}
    # Rounds 0 ... R - 1 make networks that realign the data; round R makes the result.
    for number in range(align.rounds + 1):
        folder = out if number == align.rounds else out / f"rounds/{number}"
        headline = train_cross_entropy(
            [train, *copies],
            [alignments, *(AugmentedAlignments(alignments, store) for store in copies)],
            Cmvn.load(normaliser),
            config or run.config.ce,
            senones.num_pdfs,
            folder,
            run.device,
            run.progress,
            valid,
        )
        if folder != out:
            # One frame in three is scored; each offset of the subsampling gets its alignments.
            scorers = [
                NeuralScorer(folder, normaliser, train.path, offset, device=run.device)
                for offset in range(LOW_RATE_FACTOR)
            ]
            on_rank_zero(partial(align_at_offsets, scorers, senones, lang, align, folder, run.jobs))
            alignments = OffsetAlignments.open(folder, senones)
    return headline


def targets(run: Run, aligner: str, name: str = "ali") -> LowRateAlignments:
    """Return senone alignments made with a GMM system, by default those of the training data."""
    topology = Topology.load(run.need(f"{aligner}/topology.json"))
    return LowRateAlignments(
        AlignmentStore(run.need(name)), topology, Senones.load(run.need("senones"))
    )


def make_denominators(
    run: Run,
    system: str,
    name: str = "denominators",
    normaliser: str | None = None,
) -> dict[str, float]:
    """Make denominator lattices with a weak LM, and reference alignments, of the training data.

    With `sequence_copies`, they are made for augmented copies, too.

    Args:
      run: the run of the stage.
      system: the network whose scores and alignments are used; its input is `fbank`.
      name: the folder to write.
      normaliser: file of the normaliser of the network's input; by default that of `fbank`.
    """
    # 1. The graph of a weak language model.
    features = training_features(run, "fbank")
    out, lang = run.make(name), network_lang(run)
    senones = Senones.load(run.need("senones"))
    words = Lang.load(lang)
    lm = lattice_lm_config(run)
    texts = {"train": transcripts_of(run, "train")}
    # A weak LM (few n-grams) leaves competing words in the lattices for sMBR to learn from.
    prepare_lm(lm, texts, words.vocabulary, out, policy=words.policy)
    make_decoding_graph(lang, out / "lm.arpa", senones, out / "graph.safetensors")
    # 2. Reference alignments and lattices of the training data, and of its copies.
    normaliser_file = run.need(normaliser) if normaliser else features / "normaliser.json"
    headline: dict[str, float] = {}
    for part in _sequence_parts(run):
        scorer = NeuralScorer(run.need(system), normaliser_file, features / part, device=run.device)
        for folder in ("ali", "lattices"):
            (out / part / folder).mkdir(parents=True, exist_ok=True)
        # The reference path of sMBR: the transcript, aligned by the network itself.
        align_corpus(scorer, senones, lang, align_config(run), out / part / "ali", run.jobs)
        counts = make_lattices(
            scorer,
            out / "graph.safetensors",
            run.config.lattices,
            out / part / "lattices",
            run.jobs,
            progress=run.progress,
        )
        headline |= {name if part == "train" else f"{name} {part}": x for name, x in counts.items()}
    return headline


def _sequence_parts(run: Run) -> list[str]:
    """Return the names of the feature stores for sequence training."""
    return ["train", "copies"] if has_copies(run) and run.config.sequence_copies else ["train"]


def train_on_lattices(
    run: Run,
    system: str,
    start: str,
    name: str = "denominators",
    normaliser: str | None = None,
) -> dict[str, float]:
    """Train a network further with sMBR on its lattices from `make_denominators`.

    Args:
      run: the run of the stage.
      system: name of the trained network.
      start: the network to start from; its input is `fbank`.
      name: the folder of its lattices.
      normaliser: file of the normaliser of the network's input; by default that of `fbank`.
    """
    features = training_features(run, "fbank")
    senones = Senones.load(run.need("senones"))
    denominators, parts = run.need(name), _sequence_parts(run)
    codec = GraphCodec(denominators / "graph.safetensors")
    return train_sequence(
        model=run.need(start),
        features=[FeatureStore(features / part) for part in parts],
        lattices=[LatticeStore(denominators / part / "lattices", codec) for part in parts],
        references=[
            PdfAlignments(AlignmentStore(denominators / part / "ali"), senones) for part in parts
        ],
        classes=PdfClasses.of(senones),
        normaliser=Cmvn.load(run.need(normaliser or "fbank/normaliser.json")),
        config=run.config.sequence,
        out=run.make(system),
        device=run.device,
        progress=run.progress,
    )


def train_chain(
    run: Run,
    system: str,
    aligner: str,
    features_name: str = "fbank",
    cepstra: str = "train",
    senones: str | None = None,
) -> dict[str, float]:
    """Train a network with LF-MMI on a GMM system's alignments and their augmented copies.

    Args:
      run: the run of the stage.
      system: name of the network.
      aligner: the GMM system that has aligned the data.
      features_name: the folder of the splits' features.
      cepstra: the split on whose cepstra the tree is grown; it has the utterances of `train`.
      senones: the folder with tree and denominator of an earlier network on the same alignments;
        None: they are made.
    """
    out, features = run.make(system), training_features(run, features_name)
    if senones is None:
        graphs, tree = out / "graphs", tree_config(run, run.config.chain_tree)
        ranks.on_rank_zero(partial(_make_graphs, run, aligner, cepstra, tree, graphs))
    else:
        graphs = run.need(senones)
    stores, phones = transcribed_phones(run, aligner, features)
    return train_lfmmi(
        stores,
        phones,
        Senones.load(graphs),
        Denominator.load(graphs / DENOMINATOR),
        Cmvn.load(features / "normaliser.json"),
        run.config.lfmmi,
        out,
        run.device,
        run.progress,
    )


def transcribed_phones(
    run: Run, aligner: str, features: Path
) -> tuple[list[FeatureStore], list[AlignedPhones]]:
    """Return features and phones: a list each, of transcribed speech and its augmented copies.

    Args:
      run: the run of the stage.
      aligner: the GMM system whose alignments of the speech are in `ali`.
      features: the folder of the splits' features.
    """
    topology = Topology.load(run.need(f"{aligner}/topology.json"))
    aligned = AlignmentStore(run.need("ali"))
    stores = [FeatureStore(features / "train")]
    phones = [AlignedPhones(aligned, topology)]
    if has_copies(run):
        stores.append(FeatureStore(features / "copies"))
        phones.append(AlignedPhones(AugmentedAlignments(aligned, stores[1]), topology))
    return stores, phones


def phone_sequences(phones: AlignedPhones) -> Iterator[list[int]]:
    """Return the phones of each utterance, for their n-gram."""
    return (phones.load(name).phones.tolist() for name in phones.ids)


def _make_graphs(run: Run, aligner: str, cepstra: str, config: TreeConfig, out: Path) -> None:
    """Tie the senones and estimate the denominator."""
    if (out / DENOMINATOR).exists():  # written last: an interrupted run has done all of this
        return
    system, alignments = run.need(aligner), run.need("ali")
    build_low_rate_senones(system, run.need(f"plp/{cepstra}"), alignments, config, out, run.jobs)
    senones, topology = Senones.load(out), Topology.load(system / "topology.json")
    sentences = phone_sequences(AlignedPhones(AlignmentStore(alignments), topology))
    phones = phone_ngram(sentences, run.config.lfmmi.ngram)
    make_denominator(phones, senones).save(out / DENOMINATOR)


def train_lstm_lm(run: Run) -> dict[str, float]:
    """Train an LSTM LM on the LM text and the training transcripts, for the words of `lang/`."""
    lang = Lang.load(run.need("lang"))
    return train_for_words(run, lang.vocabulary, lang.policy)


def train_for_words(run: Run, vocabulary: Collection[str], policy: TextPolicy) -> dict[str, float]:
    """Train an LSTM LM on the LM text and the training transcripts.

    Args:
      run: the run of the stage.
      vocabulary: the recogniser's words.
      policy: how text and transcripts become words.
    """
    sources = lm_sources(run)
    text = sources.text
    # With an ARPA model `lm_sources` has not recorded the text, since the n-grams do not read it.
    if sources.arpa is not None:
        need_user_files(run, text)
    policy = policy.with_lexicon(frozenset(vocabulary))
    transcripts = [words for _, words in sorted(transcripts_of(run, "train").items())]

    def sentences() -> Iterator[list[str]]:
        if text is not None:
            yield from read_sentences(text, LmText(policy))
        yield from filter(None, map(policy.words, transcripts))

    out, config = run.make("lstm_lm"), run.config.lstm_lm
    return train_neural_lm(sentences, vocabulary, config, out, run.device, run.progress)
