"""Recognition by speaker: GMMs, adapted to the speaker or not, and networks on their features."""

import tempfile
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path

from lhotse import MonoCut, Recording
from torch import Tensor

from toolkit.align.gmm.adaptation import adapt_speakers
from toolkit.align.gmm.features import write_gmm_features
from toolkit.align.gmm.lattice_adaptation import LatticeSearch, refine_on_lattices
from toolkit.align.scorer import GmmScorer, Scorer
from toolkit.corpus.manifest import make_cut
from toolkit.decode.bundle.search import BundleSearch
from toolkit.decode.bundle.settings import (
    CALIBRATION,
    FIRST_PASS,
    GMM,
    GRAPH,
    MODEL,
    NORMALISER,
    SENONES,
    BundleError,
    read_settings,
)
from toolkit.decode.transcript import Recognised
from toolkit.decode.word_times import WordAligner
from toolkit.features.frontend import Frontend
from toolkit.features.shards import SHARDS, write_manifest, write_shard
from toolkit.fsa.files import load_fst
from toolkit.fsa.fst import Fst
from toolkit.fsa.lattice import ScoredLattice
from toolkit.fsa.search import search_with_retries
from toolkit.hmm.senones import Senones
from toolkit.models.scorer import NeuralScorer

SPEAKER = "speaker"
CEPSTRA = "cepstra"
FEATURES = "features"


class SpeakerRecogniser:
    """Recognises all utterances of a speaker with a bundle from `write_speaker_bundle`.

    They go through the functions that decode the splits of a recipe, in a temporary folder: mean
    normalisation over all utterances, and where the system is adapted a first pass, from whose
    words the speaker's fMLLR transform is estimated (C4), to be refined on an adapted pass.

    Args:
      bundle: the folder of the system.
      device: where the network computes, if the system has one.
      fast: leave out rescoring.

    Raises:
      BundleError: the folder is not such a bundle.
    """

    def __init__(self, bundle: Path, device: str = "cpu", fast: bool = False) -> None:
        self._bundle, self._device = Path(bundle), device
        self._settings = read_settings(self._bundle)
        if not self._settings.by_speaker:
            raise BundleError(f"{bundle} recognises by utterance, not by speaker")
        self.frontend_config = self._settings.frontend
        self.frontend = Frontend(self.frontend_config)
        self._search = BundleSearch(self._bundle, self._settings, fast)

    @property
    def _has_network(self) -> bool:
        return (self._bundle / MODEL).is_dir()

    @cached_property
    def word_aligner(self) -> WordAligner:
        """Finds word times and confidences."""
        calibration = self._bundle / CALIBRATION
        folder, scorer = (SENONES, NeuralScorer) if self._has_network else (GMM, GmmScorer)
        return WordAligner(
            self._bundle,
            Senones.load(self._bundle / folder),
            calibration if calibration.exists() else None,
            scorer.frame_shift,
            self._search.beams[0].search,
        )

    @cached_property
    def _first_graph(self) -> Fst:
        return load_fst(self._bundle / FIRST_PASS / GRAPH)

    def recognise(self, utterances: Sequence[Tensor], details: bool = False) -> list[Recognised]:
        """Recognise the utterances of one speaker.

        Args:
          utterances: for each its cepstra [T, F], in order of time, not normalised.
          details: find word times and confidences too.

        Returns:
          The result of each utterance.
        """
        heard = {f"{i:06d}": x for i, x in enumerate(utterances) if len(x)}
        found = [Recognised("", () if details else None)] * len(utterances)
        if heard:
            with tempfile.TemporaryDirectory() as work:
                for name, result in self._recognised(heard, details, Path(work)):
                    found[int(name)] = result
        return found

    def _recognised(
        self, utterances: dict[str, Tensor], details: bool, work: Path
    ) -> Iterator[tuple[str, Recognised]]:
        config = self.frontend_config
        shift = config.frame_shift_ms / 1000
        stored = [(_cut(name, len(x) * shift), SPEAKER, x) for name, x in utterances.items()]
        written, frames = write_shard(work / CEPSTRA / SHARDS, 0, stored, config)
        write_manifest(work / CEPSTRA, config, [{"utterances": written, "frames": frames}])
        scorer = self._scorer(work, self._transforms(work))
        aligner = self.word_aligner if details else None
        for name in utterances:
            scores = scorer.log_likelihoods(name) * self._search.scale
            yield name, self._search.best(self._search.lattice(scores), scores, aligner)

    def _transforms(self, work: Path) -> Path | None:
        """Estimate the speaker's transform from the words of a first pass; its file."""
        first = self._settings.first_pass
        if first is None:
            return None
        scorer = GmmScorer(self._bundle / FIRST_PASS / GMM, work / CEPSTRA)
        scale = first.weights.acoustic_scale
        beams = first.beam.with_retries(first.retries)
        hypotheses = {}
        for name in scorer.store.ids:
            scores = scorer.log_likelihoods(name) * scale
            lattice, _ = search_with_retries(scores, self._first_graph, beams)
            best = lattice and ScoredLattice.of(lattice, scores, scale).best_words(first.weights)
            hypotheses[name] = self._search.text(best or []).split()
        transforms = work / "fmllr" / "transforms.safetensors"
        adapt_speakers(
            self._bundle / GMM,
            self._bundle / FIRST_PASS / GMM,
            work / CEPSTRA,
            hypotheses,
            self._bundle,
            first.adaptation,
            transforms,
            jobs=1,
        )
        graph = self._bundle / GMM / GRAPH if self._has_network else self._bundle / GRAPH
        search = LatticeSearch(graph, first.lattice_scale, beams)
        gmm, cepstra = self._bundle / GMM, work / CEPSTRA
        refine_on_lattices(gmm, cepstra, transforms, search, transforms, jobs=1)
        return transforms

    def _scorer(self, work: Path, transforms: Path | None) -> Scorer:
        if not self._has_network:
            return GmmScorer(self._bundle / GMM, work / CEPSTRA, transforms)
        write_gmm_features(self._bundle / GMM, work / CEPSTRA, transforms, work / FEATURES)
        model, normaliser = self._bundle / MODEL, self._bundle / NORMALISER
        return NeuralScorer(model, normaliser, work / FEATURES, device=self._device)


def _cut(name: str, seconds: float) -> MonoCut:
    return make_cut(name, Recording(name, [], 16000, round(16000 * seconds), seconds), "", SPEAKER)
