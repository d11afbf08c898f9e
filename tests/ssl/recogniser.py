"""A small recogniser of drawn speech."""

from toolkit.align.store import AlignmentStore, LowRateAlignments, write_shard
from toolkit.decode.config import DecodeConfig
from toolkit.decode.search import DecoderFiles
from toolkit.features.normalise import Cmvn, estimate_normaliser
from toolkit.features.shards import FeatureStore
from toolkit.fsa.config import Beam
from toolkit.fsa.decoding_graph import make_decoding_graph
from toolkit.hmm.senones import Senones
from toolkit.lang.arpa import write_arpa
from toolkit.lang.lang import Lang
from toolkit.lang.ngram import estimate
from toolkit.models.config import LstmConfig
from toolkit.ssl.recognition import recognise_and_align, recognise_phones
from toolkit.train.config import ChunkConfig, CrossEntropyConfig
from toolkit.train.cross_entropy import train_cross_entropy

CE = CrossEntropyConfig(
    epochs=5,
    initial_rate=2e-2,
    final_rate=2e-3,
    valid_utterances=3,
    threads=1,
    model=LstmConfig(hidden=24, layers=1, lookahead=1),
    chunks=ChunkConfig(frames=8, chunks_per_batch=4),
)


class System:
    """A network trained on drawn speech, and a graph of its words."""

    def __init__(self, speech, folder) -> None:
        self.folder, self.speech = folder, speech
        write_shard(folder / "ali.000000.tar", speech.states, [])
        self.senones = Senones.monophone(speech.topology.at_low_rate())
        self.normaliser = folder / "normaliser.json"
        estimate_normaliser(FeatureStore(speech.cepstra)).save(self.normaliser)
        self.targets = LowRateAlignments(AlignmentStore(folder), speech.topology, self.senones)
        self.model = folder / "model"
        self.train(self.model)
        text = list(speech.transcripts.values())
        write_arpa(
            estimate(text, Lang.load(speech.lang).vocabulary, 2, (1,))[0], folder / "lm.arpa"
        )
        graph = folder / "graph.safetensors"
        make_decoding_graph(speech.lang, folder / "lm.arpa", self.senones, graph)
        config = DecodeConfig(acoustic_scale=0.5, beam=Beam(20.0, 10.0))
        self.decoder = DecoderFiles(graph, speech.lang / "words.txt", config)
        (folder / "tuned.json").write_text('{"acoustic_scale": 0.5, "word_penalty": 0.0}')

    def train(self, out, stores=(), alignments=(), config=CE):
        return train_cross_entropy(
            [FeatureStore(self.speech.cepstra), *stores],
            [self.targets, *alignments],
            Cmvn.load(self.normaliser),
            config,
            self.senones.num_pdfs,
            out,
        )

    def recognise(self, features, out, config, **options):
        return recognise_phones(
            self.model, self.normaliser, features, self.decoder, self.folder / "tuned.json",
            self.speech.lang, self.senones, config, out, jobs=1, **options,
        )  # fmt: skip

    def label(self, features, out, config, **options):
        return recognise_and_align(
            self.model, self.normaliser, features, self.decoder, self.folder / "tuned.json",
            self.speech.lang, self.senones, config, out, jobs=1, **options,
        )  # fmt: skip
