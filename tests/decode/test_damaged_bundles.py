"""One value that is not finite, or one file of another bundle, is an error that names the file."""

import json
import math
import shutil
from dataclasses import replace

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from tests.decode.conftest import Recogniser, make_bundle
from tests.decode.test_ctc_bundle import WORDS, noise
from tests.decode.test_ctc_bundle import write as write_ctc
from toolkit.align.aligner import GmmAligner, write_aligner_bundle
from toolkit.align.config import EmConfig
from toolkit.decode.bundle import NetworkFiles, NeuralFiles, TunedSearch, write_speaker_bundle
from toolkit.decode.config import DecodeConfig
from toolkit.decode.recogniser import load_recogniser
from toolkit.decode.rescore import RescoringWeights
from toolkit.errors import ToolkitError
from toolkit.features.config import FrontendConfig
from toolkit.features.gmm_features import GmmFeatures, GmmFrontend
from toolkit.features.normalise import Cmvn, GlobalStats
from toolkit.fsa.config import Beam
from toolkit.hmm.gmm import Gmm
from toolkit.hmm.gmm_system import GmmSystem
from toolkit.hmm.senones import Senones
from toolkit.hmm.topology import Topology
from toolkit.hmm.transforms import MIN_FRAMES
from toolkit.lang.arpa import write_binary
from toolkit.lang.lang import Lang
from toolkit.lang.lexicon import Lexicon
from toolkit.lang.ngram import estimate
from toolkit.models.config import LstmConfig, WordLstmConfig
from toolkit.models.lstm import WordLstm
from toolkit.models.neural_lm import NeuralLm, Shortlist
from toolkit.models.scorer import save_priors
from toolkit.models.store import make_model, save_model

CEPSTRA, DIMENSION = 4, 6
FLOATS = ("F16", "BF16", "F32", "F64")
KINDS = ["network", "tdnnf", "speaker", "speaker_network", "ctc", "aligner"]


def write_neural_lm(folder, vocabulary):
    """An untrained LSTM language model, and weights."""
    torch.manual_seed(1)
    shortlist = Shortlist.of(dict.fromkeys(vocabulary, 1), vocabulary, None)
    model = WordLstm(WordLstmConfig(vocabulary=len(vocabulary) + 3, hidden=4))
    NeuralLm(model.eval(), shortlist).save(folder / "lm")
    RescoringWeights(0.5, 0.4, 0.0).save(folder / "weights.json")
    return folder / "lm", folder / "weights.json"


def network_bundle(recogniser, kind="lstm"):
    """A network, n-grams and a neural language model that rescore, senones, a calibration."""
    write_binary(recogniser.model(recogniser.text, 3), recogniser.folder / "larger.safetensors")
    (recogniser.folder / "tuned.json").write_text('{"acoustic_scale": 0.4, "word_penalty": 0.5}')
    tuned = recogniser.folder / "tuned.json"
    neural = NeuralFiles(*write_neural_lm(recogniser.folder, ["YES", "NO"]), tuned, 10)
    larger = recogniser.folder / "larger.safetensors"
    out = recogniser.folder / "bundle"
    rescoring = {"rescorer": larger, "rescorer_tuned": tuned, "neural": neural}
    return make_bundle(recogniser, out, kind=kind, tuned=tuned, **rescoring)


def write_gmm(folder, senones):
    """A GMM system with LDA: 4 cepstra, spliced, projected to 6 dimensions."""
    torch.manual_seed(0)
    frontend = GmmFrontend(1, torch.randn(DIMENSION, 3 * CEPSTRA * 3))
    count = torch.full((senones.num_pdfs,), 100.0).double()
    means = torch.randn(senones.num_pdfs, DIMENSION).double()
    moments = count, count[:, None] * means, count[:, None] * (means**2 + 1)
    gmm = Gmm.from_moments(*moments, torch.full((DIMENSION,), 0.01))
    folder.mkdir()
    GmmSystem(GmmFeatures(folder, frontend), senones, gmm).save(folder)
    return folder


def speaker_bundle(recogniser, with_network=False):
    """Adapted GMMs with a first pass, or a network on their features."""
    root, senones = recogniser.folder, recogniser.senones
    adapted, independent = (write_gmm(root / name, senones) for name in ("sat", "lda_mllt"))
    (root / "tuned.json").write_text('{"acoustic_scale": 0.3, "word_penalty": 1.0}')
    config = DecodeConfig(0.3, beam=Beam(100.0, 6.0))
    search, network = TunedSearch(recogniser.graph, config, root / "tuned.json"), None
    if with_network:
        model = make_model(LstmConfig(3 * DIMENSION, senones.num_pdfs, hidden=4, layers=1))
        save_model(root / "net", model)
        save_priors(root / "net", torch.ones(senones.num_pdfs))
        stats = GlobalStats.of(torch.randn(50, DIMENSION))
        Cmvn(stats.mean, stats, scope="global").save(root / "normaliser.json")
        senones.save(root / "senones")
        network = NetworkFiles(root / "net", root / "normaliser.json", root / "senones")
    write_speaker_bundle(
        adapted,
        search,
        root / "lang",
        FrontendConfig("plp", num_ceps=CEPSTRA),
        root / "bundle",
        network,
        first_pass=(independent, search, recogniser.graph, EmConfig()),
    )
    return root / "bundle"


def ctc_bundle(folder):
    """A CTC network whose texts n-grams and a neural language model score."""
    return write_ctc(folder, neural=write_neural_lm(folder, WORDS))


def aligner_bundle(folder):
    """An adapted GMM system and the speaker-independent one, both with a projection."""
    lang = Lang.of(Lexicon({"ABBA": [("A", "B")]}))
    lang.save(folder / "lang")
    senones = Senones.monophone(Topology(tuple(lang.real_phones)))
    systems = [write_gmm(folder / name, senones) for name in ("sat", "lda")]
    frontend = FrontendConfig("mfcc", num_ceps=CEPSTRA)
    write_aligner_bundle(systems[0], folder / "lang", frontend, folder / "bundle", None, systems[1])
    return folder / "bundle"


@pytest.fixture(scope="module")
def bundles(tmp_path_factory):
    """A bundle of each kind."""
    folders = {}
    for kind in KINDS:
        folder = tmp_path_factory.mktemp(kind)
        if kind == "ctc":
            folders[kind] = ctc_bundle(folder)
        elif kind == "aligner":
            folders[kind] = aligner_bundle(folder)
        elif kind.startswith("speaker"):
            folders[kind] = speaker_bundle(Recogniser(folder), kind == "speaker_network")
        else:
            folders[kind] = network_bundle(
                Recogniser(folder), "tdnnf" if kind == "tdnnf" else "lstm"
            )
    return folders


@pytest.fixture
def copy_of(bundles, tmp_path):
    return lambda kind: shutil.copytree(bundles[kind], tmp_path / kind)


def use(kind, bundle):
    """Load everything that a bundle holds, and recognise with it."""
    if kind == "aligner":
        return GmmAligner(bundle)
    generator = torch.Generator().manual_seed(1)
    recogniser = load_recogniser(bundle)
    if kind == "ctc":
        return recogniser.recognise(noise(1.0))
    if kind.startswith("speaker"):
        cepstra = torch.randn(MIN_FRAMES, CEPSTRA, generator=generator)  # enough to adapt to
        cepstra[:, 0].abs_()  # a negative C0 of PLP stands for digital silence
        return recogniser.recognise_batch([(cepstra, None)], details=True)
    features = torch.randn(60, 8, generator=generator) * 3 + 17
    return recogniser.recognise_features(features, details=True)


def file_names(bundle, pattern):
    return sorted(str(path.relative_to(bundle)) for path in bundle.rglob(pattern))


def float_tensors(path):
    with safe_open(path, "pt") as file:
        names = list(file.keys())
        return [name for name in names if file.get_slice(name).get_dtype() in FLOATS]


@pytest.mark.parametrize("kind", KINDS)
def test_the_whole_bundle_is_used(bundles, kind):
    use(kind, bundles[kind])


@pytest.mark.parametrize("value", [math.nan, -math.inf, math.inf], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_a_tensor_with_a_value_that_is_not_finite_is_named(copy_of, kind, value):
    """Every floating-point tensor of every file; none may hold infinities."""
    bundle, refused = copy_of(kind), 0
    for name in file_names(bundle, "*.safetensors"):
        path = bundle / name
        content, tensors = path.read_bytes(), load_file(path)
        with safe_open(path, "pt") as file:
            metadata = file.metadata()
        for tensor in float_tensors(path):
            damaged = tensors[tensor].clone()
            if not damaged.numel():
                continue
            damaged.view(-1)[damaged.numel() // 2] = value
            save_file({**tensors, tensor: damaged}, path, metadata)
            with pytest.raises(ToolkitError) as error:
                use(kind, bundle)
            assert str(path) in str(error.value)
            assert repr(tensor) in str(error.value)
            refused += 1
        path.write_bytes(content)
    assert refused >= 6
    use(kind, bundle)


def numbers(document, place=()):
    """The places of the floating-point numbers in plain data."""
    items = document.items() if isinstance(document, dict) else enumerate(document)
    for key, item in items:
        if isinstance(item, dict | list):
            yield from numbers(item, (*place, key))
        elif isinstance(item, float):
            yield (*place, key)


@pytest.mark.parametrize("kind", KINDS)
def test_a_setting_that_is_no_number_is_named(copy_of, kind):
    bundle = copy_of(kind)
    for name in file_names(bundle, "*.json"):
        path = bundle / name
        content = path.read_text()
        for *place, last in list(numbers(json.loads(content)))[:40]:
            document = json.loads(content)
            inner = document
            for key in place:
                inner = inner[key]
            inner[last] = math.nan
            path.write_text(json.dumps(document))
            with pytest.raises(ToolkitError) as error:
                use(kind, bundle)
            assert str(path) in str(error.value), (name, place, last)
        path.write_text(content)


def edit(path, **changes):
    """Replace tensors of a file: name=function of the tensor."""
    tensors = load_file(path)
    with safe_open(path, "pt") as file:
        metadata = file.metadata()
    for name, change in changes.items():
        tensors[name] = change(tensors[name].clone()).contiguous()
    save_file(tensors, path, metadata)


def edit_json(path, **changes):
    """Replace values of a file: {"a": {"b": value}} merged into what it holds."""

    def merge(document, new):
        for key, value in new.items():
            document[key] = merge(document[key], value) if isinstance(value, dict) else value
        return document

    path.write_text(json.dumps(merge(json.loads(path.read_text()), changes)))


def longer_row(matrix):
    return torch.cat([matrix, matrix[-1:]])


def one_pdf_more(arcs):
    arcs[arcs[:, 2] > 0, 2] += 1
    return arcs


def other_word(words):
    return torch.where(words > 0, 10**6, words)


def other_phones(folder):
    """Senones of a topology whose phones are in another order."""
    topology = Topology.load(folder / "topology.json")
    phones = (*topology.phones[:2], *topology.phones[:1:-1])
    Senones.monophone(replace(topology, phones=phones)).save(folder)


def fewer_states(folder):
    """Senones of a topology with a state less in each phone."""
    topology = Topology.load(folder / "topology.json")
    Senones.monophone(replace(topology, states=1, silence_states=1)).save(folder)


def foreign_ngrams(path):
    write_binary(estimate([["DOVE"], ["OWL"]], ["DOVE", "OWL"], 2, (1,))[0], path)


def foreign_neural_lm(folder):
    lm, _ = write_neural_lm(folder.parent / "foreign", ["DOVE", "OWL"])
    shutil.copytree(lm, folder, dirs_exist_ok=True)


def network_on(dimension, normaliser):
    """A network on features of another dimension, and its normaliser."""
    bundle = normaliser.parent
    outputs = Senones.load(bundle / "senones").num_pdfs
    save_model(bundle / "model", make_model(LstmConfig(3 * dimension, outputs, hidden=4, layers=1)))
    normaliser_of(dimension).save(normaliser)


def normaliser_of(dimension):
    stats = GlobalStats.of(torch.randn(50, dimension))
    return Cmvn(stats.mean, stats, scope="global")


EXCHANGES = [
    ("network", "graph.safetensors", lambda p: edit(p, arcs=one_pdf_more), "the acoustic model"),
    ("network", "graph.safetensors", lambda p: edit(p, aux_labels=other_word), "words.txt"),
    ("network", "rescoring.safetensors", foreign_ngrams, "none of the words of words.txt"),
    ("network", "neural_lm", foreign_neural_lm, "none of the words of words.txt"),
    ("network", "normaliser.json", lambda p: normaliser_of(7).save(p), "inputs and"),
    (
        "network",
        "recogniser.json",
        lambda p: edit_json(p, frontend={"num_mel_bins": 9}),
        "the front end has 9 values per frame",
    ),
    ("network", "senones", fewer_states, "tree.json has"),
    ("network", "phones.txt", lambda p: other_phones(p.parent / "senones"), "in another order"),
    (
        "speaker",
        "gmm",
        lambda p: edit(p / "projection.safetensors", projection=longer_row),
        "projection.safetensors has 7 rows, but gmm.safetensors",
    ),
    (
        "speaker",
        "first_pass/gmm",
        lambda p: edit(p / "projection.safetensors", projection=longer_row),
        "projection.safetensors has 7 rows, but gmm.safetensors",
    ),
    ("speaker", "gmm", fewer_states, "tree.json has"),
    (
        "speaker",
        "recogniser.json",
        lambda p: edit_json(p, frontend={"num_ceps": 5}),
        "the front end has 5 values per frame",
    ),
    ("speaker", "graph.safetensors", lambda p: edit(p, arcs=one_pdf_more), "the acoustic model"),
    (
        "speaker",
        "first_pass/graph.safetensors",
        lambda p: edit(p, arcs=one_pdf_more),
        "the acoustic model",
    ),
    (
        "speaker_network",
        "gmm/graph.safetensors",
        lambda p: edit(p, arcs=one_pdf_more),
        "the acoustic model",
    ),
    ("speaker_network", "senones", fewer_states, "tree.json has"),
    ("speaker_network", "normaliser.json", lambda p: normaliser_of(7).save(p), "and the priors"),
    (
        "speaker_network",
        "normaliser.json",
        lambda p: network_on(7, p),
        "is for 7 features",
    ),
    ("ctc", "lm.safetensors", foreign_ngrams, "none of the words of words.txt"),
    ("ctc", "neural_lm", foreign_neural_lm, "none of the words of words.txt"),
    (
        "ctc",
        "ctc.json",
        lambda p: edit_json(p, frontend={"num_mel_bins": 9}),
        "the front end has 9 values per frame",
    ),
    ("ctc", "normaliser.json", lambda p: normaliser_of(7).save(p), "different training runs"),
    (
        "aligner",
        "",
        lambda p: edit(p / "projection.safetensors", projection=longer_row),
        "projection.safetensors has 7 rows, but gmm.safetensors",
    ),
    (
        "aligner",
        "independent",
        lambda p: edit(p / "projection.safetensors", projection=longer_row),
        "projection.safetensors has 7 rows, but gmm.safetensors",
    ),
    (
        "aligner",
        "aligner.json",
        lambda p: edit_json(p, frontend={"num_ceps": 5}),
        "the front end computes 5 cepstra",
    ),
    ("aligner", "independent", fewer_states, "tree.json has"),
    ("aligner", "lang/phones.txt", lambda p: other_phones(p.parent.parent), "in another order"),
]


@pytest.mark.parametrize(
    ("kind", "name", "exchange", "message"),
    EXCHANGES,
    ids=[f"{kind}-{name}-{number}" for number, (kind, name, *_) in enumerate(EXCHANGES)],
)
def test_a_file_of_another_bundle_is_named(copy_of, kind, name, exchange, message):
    bundle = copy_of(kind)
    exchange(bundle / name)
    with pytest.raises(ToolkitError, match=message) as error:
        use(kind, bundle)
    assert str(bundle / name) in str(error.value)
