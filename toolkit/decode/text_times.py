"""Word times of texts that were decoded, where no lattice gives them: by forced alignment."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from toolkit.align.ctm import CtmEntry, write_ctm
from toolkit.align.scored import Scored, map_scored, map_scored_shards
from toolkit.align.scorer import Scorer
from toolkit.decode.bundle.ctc.word_times import CtcWordAligner
from toolkit.decode.ctc.decoder import CtcDecodeError, LogProbs
from toolkit.decode.first_pass import Decoder
from toolkit.decode.system import Scorers
from toolkit.decode.word_times import WordAligner
from toolkit.hmm.senones import Senones
from toolkit.lang.units.units import UnitsError
from toolkit.score.transcripts import read_transcripts

TEXT, WORDS = "text", "words.ctm"


def write_word_times(
    scorers: Scorers, decoder: Decoder, lang: Path, senones: Senones, out: Path, jobs: int
) -> None:
    """Write `words.ctm`, without confidences, beside the `text` of every split.

    Utterances whose alignment the beam loses are left out.

    Args:
      scorers: the acoustic model on each split.
      decoder: the search that has found the texts, for its acoustic scale and beam.
      lang: the folder of the lexicon.
      senones: those of the acoustic model.
      out: the folder with a folder for each split.
      jobs: worker processes; threads beside a network on a GPU.
    """
    scale, beam = decoder.config.acoustic_scale, decoder.config.beam.search
    for split, scorer in scorers.items():
        texts = read_transcripts(out / split / TEXT, "text").texts
        work = _Shard(texts, lang, senones, scale, beam)
        found = map_scored_shards(work, scorer, jobs, "word times")
        write_ctm((entry for shard in found for entry in shard), out / split / WORDS)


@dataclass(frozen=True)
class _Shard:
    """Aligns the texts of a feature shard; picklable."""

    texts: Mapping[str, str]
    lang: Path
    senones: Senones
    scale: float
    beam: float

    def __call__(
        self, scorer: Scorer, threads: int, shard: tuple[int, Sequence[str]]
    ) -> list[CtmEntry]:
        shift = scorer.frame_shift
        aligner = WordAligner(self.lang, self.senones, None, shift, self.beam)

        def align(scored: Scored) -> list[CtmEntry]:
            words, scores = self.texts[scored.utterance].split(), scored.log_likelihoods
            spans = aligner.spans(words, scores * self.scale, self.scale) or []
            return [
                CtmEntry(scored.utterance, "1", start * shift, (end - start) * shift, word)
                for word, (start, end) in zip(words, spans, strict=bool(spans))
            ]

        ids = [utterance for utterance in shard[1] if self.texts.get(utterance)]
        return [entry for one in map_scored(align, scorer, ids, threads) for entry in one]


def write_ctc_word_times(
    posteriors: Mapping[str, LogProbs], aligner: CtcWordAligner, folder: Path
) -> None:
    """Write `words.ctm` beside the `text` of a split that a CTC search has decoded.

    Texts that the units cannot write, or that are too long for the posteriors, are left out.

    Args:
      posteriors: [T, C] log-probabilities by utterance.
      aligner: of the network's units.
      folder: that of the split.
    """
    texts = read_transcripts(folder / TEXT, "text").texts
    entries: list[CtmEntry] = []
    for utterance, log_probs in posteriors.items():
        try:
            words = aligner(texts.get(utterance, "").split(), log_probs).words
        except (CtcDecodeError, UnitsError):
            continue
        entries += [
            CtmEntry(utterance, "1", max(0.0, w.start), w.end - max(0.0, w.start), w.word)
            for w in words
        ]
    write_ctm(entries, folder / WORDS)
