"""Text files of users and other programs: lexicons, tables, transcripts, times."""

import gzip
import json

import numpy as np
import soundfile

from tests.fuzz.hostile import *  # noqa: F403
from tests.fuzz.trial import Reader
from toolkit.align.ctm_textgrid import read_ctm
from toolkit.align.inputs import read_inputs
from toolkit.config.fields import read_plain
from toolkit.corpus.config import CorpusConfig
from toolkit.corpus.cut_files import read_cut_file
from toolkit.corpus.findings import read_exclusions
from toolkit.corpus.manifest import ManifestError
from toolkit.corpus.table import read_table
from toolkit.corpus.wav_scp import read_scp
from toolkit.decode.sources import Inputs
from toolkit.hmm.phone_sets import read_roots
from toolkit.hmm.topology import Topology
from toolkit.hmm.tree_growing import read_extra_questions, read_questions
from toolkit.kaldi.data_dir import read_kaldi_dir
from toolkit.kaldi.dict_lang import read_lang, read_lexicon, write_lang
from toolkit.kaldi.validate import data_dir_faults, data_dir_remarks
from toolkit.lang.arpa import read_arpa
from toolkit.lang.dictionary import read_dictionary
from toolkit.lang.lang import Lang
from toolkit.lang.lexicon import Lexicon
from toolkit.lang.prepare import read_sentences, read_words
from toolkit.lang.tables import SymbolTable
from toolkit.lang.text_policy import AS_GIVEN, EnglishRules, TextPolicy
from toolkit.score.nist.formats import read_stm
from toolkit.score.nist.glm import Glm
from toolkit.score.nist.grammar import Grammar, nist_aligner
from toolkit.score.normalise import WordMap
from toolkit.score.results import Result, read_results, record_results, results_table
from toolkit.score.transcripts import read_speakers, read_transcripts
from toolkit.score.wer import score

CSV = """audio,text,speaker,start,end,split
a.wav,GOOD MORNING,anna,0,1.5,train
b.wav,"A, B",,1,-1,dev
"""
RESULT = Result("mono", "dev", "small", 12.5, 4.25, 1, 2, 3, 48, 0.03, "run.py", 10.0, 15.0)
ARPA = """\\data\\
ngram 1=4
ngram 2=3

\\1-grams:
-1.0\t<s>\t-0.3
-0.9\t</s>
-0.5\tA\t-0.2
-0.7\tB\t-0.1

\\2-grams:
-0.2\t<s> A
-0.4\tA B
-0.3\tB </s>

\\end\\
"""


def text(name, content):
    return lambda folder: (folder / name).write_text(content, encoding="utf-8")


def zipped(name, content):
    return lambda folder: (folder / name).write_bytes(gzip.compress(content.encode(), mtime=0))


def kaldi_files(folder):
    (folder / "wav.scp").write_text("r1 a.wav\nr2 flac -c -d -s b.flac |\nr3 rm -rf x |\n")
    (folder / "text").write_text("u1 GOOD MORNING\nu2 ÉTÉ\nu3\n", encoding="utf-8")
    (folder / "utt2spk").write_text("u1 anna\nu2 bert\nu3 carl\n")
    (folder / "segments").write_text("u1 r1 0.0 1.5\nu2 r2 1.0 -1\nu3 r3 2 3\n")


def dict_files(folder):
    (folder / "lexiconp.txt").write_text("!SIL 1 SIL\nA 0.5 a1\nA 1.0 a n\n")
    (folder / "silence_phones.txt").write_text("SIL\nSPN\n")
    (folder / "optional_silence.txt").write_text("SIL\n")
    (folder / "nonsilence_phones.txt").write_text("a a1\nn\n")


STEREO = np.zeros((8000, 2), np.int16)
CHANNELS = "audio,text,channel\na.wav,GOOD,A\na.wav,MORNING,2\n"


def channels(folder):
    """A data directory whose recordings are channels of a file."""
    soundfile.write(str(folder / "a.wav"), STEREO, 8000)
    (folder / "wav.scp").write_text(
        "r1 a.wav\nr2 sph2pipe -f wav -p -c 2 a.wav |\nr3 sox a.wav -t wav - remix 1 |\nr4 a.wav\n"
    )
    (folder / "text").write_text("u1 GOOD\nu2 MORNING\nu3 A\nu4 B\n")
    (folder / "segments").write_text("u1 r1 0 1 0\nu2 r2 0 1\nu3 r3 0 1 1\nu4 r4 0 1\n")
    (folder / "reco2file_and_channel").write_text("r1 a A\nr2 a B\nr3 a 1\nr4 a 2\n")


def channel_table(folder):
    soundfile.write(str(folder / "a.wav"), STEREO, 8000)
    (folder / "c.csv").write_text(CHANNELS)


def path_map(folder):
    """Settings that map paths, and a wav.scp whose paths they map."""
    (folder / "corpus.json").write_text('{"map_paths": ["/old/disk=/new", "C:\\\\rec=/data"]}\n')
    (folder / "wav.scp").write_text("r1 /old/disk/a.wav\nr2 C:\\rec\\b.wav\n")


def read_mapped(folder):
    config = read_plain(folder / "corpus.json", CorpusConfig, ManifestError, "write it again")
    return read_scp(folder / "wav.scp", path_map=config.map_paths)


def lhotse_arrays(folder):
    """Recordings and supervisions as JSON arrays, and a cut of them."""
    soundfile.write(str(folder / "a.wav"), STEREO, 8000)
    sources = [{"type": "file", "channels": [0, 1], "source": "a.wav"}]
    recording = {"id": "r", "sampling_rate": 8000, "num_samples": 8000, "duration": 1.0}
    recording["sources"] = sources
    supervision = {
        "id": "s",
        "recording_id": "r",
        "start": 0.0,
        "duration": 1.0,
        "channel": 1,
        "text": "A",
    }
    cut = {"id": "c", "type": "MonoCut", "start": 0.0, "duration": 1.0, "channel": 1}
    cut |= {"supervisions": [supervision], "recording": recording}
    for name, item in (("recordings", recording), ("supervisions", supervision), ("cuts", cut)):
        (folder / f"{name}.json").write_text(json.dumps([item]))


LEXICON = Lexicon({"A": [("AH0",), ("EY1",)], "BEE": [("B", "IY1")], "É": [("EY1", "B")]})
TOPOLOGY = Topology(("SIL", "SPN", "a", "b"), ("SIL", "SPN"))


def read_phone_sets(folder):
    read_extra_questions(folder / "questions.txt", TOPOLOGY)
    return read_roots(folder / "roots.txt", TOPOLOGY), read_questions(
        folder / "questions.txt", TOPOLOGY
    )


def phone_sets(folder):
    roots = "shared split SIL SPN\nnot-shared not-split a\nshared split b\n"
    (folder / "roots.txt").write_text(roots)
    (folder / "questions.txt").write_text("SIL SPN\na\na b\n")


def texts_and_audio(folder):
    """The inputs of `toolkit align`: audio, a folder of texts, and speakers."""
    (folder / "audio" / "ann").mkdir(parents=True)
    (folder / "texts" / "ann").mkdir(parents=True)
    for name in ("ann/a", "b"):
        soundfile.write(str(folder / "audio" / f"{name}.wav"), STEREO, 8000)
    (folder / "texts" / "ann" / "a.lab").write_text("GOOD MORNING\nof two lines\n")
    (folder / "texts" / "b.txt").write_text("É [cough] (laughs) 1990s\n", encoding="utf-8")
    (folder / "lines").write_text("ann/a GOOD\nb MORNING\n")
    (folder / "spk").write_text("ann/a anna\nb bert\n")


def use_texts(folder):
    for text_of in ("texts", "lines"):
        for recording in read_inputs(folder / "audio", folder / text_of, folder / "spk"):
            for policy in POLICIES:
                recording.spoken(policy)


POLICIES = (TextPolicy(), TextPolicy("letters-upper-1"), TextPolicy(AS_GIVEN, "noise"))
WRITTEN = "It's [noise] 20% {LG} (uh) <unk> !SIL, Mr. O'Brien's ﬁancée\n<s> ÉTÉ </s>\n"


def use_policies(folder):
    for policy in POLICIES:
        for line in read_sentences(folder / "text", policy):
            line = " ".join(line)
            policy.tokens(line), policy.transcript(line), policy.found_tags(line)
            policy.lm_words(line), policy.unit_text(line), policy.without_tags(line)
    read_words(folder / "text", EnglishRules())


def use_scp(folder):
    for source in Inputs(allow_pipes=False).sources([str(folder / "wav.scp")], None, folder):
        list(source.blocks(8000, 1.0))


READERS = {
    "phone-sets": Reader(phone_sets, read_phone_sets),
    "texts-to-align": Reader(texts_and_audio, use_texts, files="[tls]*/**/*"),
    "lines-to-align": Reader(texts_and_audio, use_texts, files="[ls][ip]*"),
    "text-policies": Reader(text("text", WRITTEN), use_policies),
    "wav-scp": Reader(channels, use_scp, names=("r1", "r2", "r3", "r4")),
    "kaldi-lang": Reader(
        lambda folder: write_lang(Lang.of(LEXICON.with_positions()), folder), read_lang
    ),
    "word-map": Reader(
        text("map", ";; note\nIT'S => IT IS\n[UH] => [] / [ ] __ [ ]\nA B => C\nX =>\n"),
        lambda folder: WordMap.read(folder / "map"),
    ),
    "path-map": Reader(path_map, read_mapped),
    "channels": Reader(channels, read_kaldi_dir),
    "table-with-channels": Reader(channel_table, lambda folder: read_table(folder / "c.csv")),
    "array-of-cuts": Reader(lhotse_arrays, lambda folder: read_cut_file(folder / "cuts.json")),
    "supervisions": Reader(
        lhotse_arrays, lambda folder: read_cut_file(folder / "supervisions.json")
    ),
    "lexicon": Reader(
        text("lexicon.txt", "A AH0\nA(2) EY1\nBEE B IY1\n;;; note\n<UNK> SPN\n"),
        lambda folder: read_dictionary(folder / "lexicon.txt").lexicon.with_positions(),
    ),
    "zipped-lexicon": Reader(
        zipped("lexicon.gz", "A AH0\nBEE B IY1\n"),
        lambda f: read_dictionary(f / "lexicon.gz").lexicon,
    ),
    "dictionary": Reader(
        text("d.txt", "ab\t0.99\t0.1\t2.3\t1.0\ta1 b\nab\t1\ta b\ncd 1 c d\nef 0.5 0.2 e\n"),
        lambda folder: read_dictionary(folder / "d.txt"),
    ),
    "kaldi-dictionary": Reader(dict_files, read_lexicon),
    "arpa": Reader(text("lm.arpa", ARPA), lambda folder: read_arpa(folder / "lm.arpa")),
    "zipped-arpa": Reader(zipped("lm.gz", ARPA), lambda folder: read_arpa(folder / "lm.gz")),
    "table": Reader(
        text("words.txt", "<eps> 0\nA 1\nB 2\n"),
        lambda folder: list(SymbolTable.read(folder / "words.txt")),
    ),
    "sentences": Reader(
        text("lm.txt", "good morning\nand, Mrs. O'Brien's café\n"),
        lambda folder: list(read_sentences(folder / "lm.txt", EnglishRules())),
    ),
    "kaldi": Reader(kaldi_files, read_kaldi_dir),
    "ctm": Reader(
        text("words.ctm", ";; note\nu1 1 0.00 0.25 GOOD 0.99\nu1 1 0.25 0.5 MORNING\n"),
        lambda folder: read_ctm(folder / "words.ctm"),
    ),
    "references": Reader(
        text("text", "u-1 GOOD MORNING\nu-2 É\nu-3\n"),
        lambda folder: read_transcripts(folder / "text", leave_out_faulty=True),
    ),
    "transcripts": Reader(
        text("text", "u-1 GOOD MORNING\nu-2 É\nu-3\n"),
        lambda folder: read_transcripts(folder / "text"),
    ),
    "trn": Reader(
        text("hyp.trn", "GOOD MORNING (u-1)\n(u-2)\n"),
        lambda folder: read_transcripts(folder / "hyp.trn"),
    ),
    "alternatives": Reader(
        text("hyp.trn", "GOOD { MORNING / { A / @ } B } (UH) (u-1)\nwo- x* y;t (u-2)\n"),
        lambda folder: [
            score(
                {"u": words},
                {"u": "GOOD A"},
                aligner=nist_aligner(Grammar(fragments=True, optional=True)),
            )
            for words in read_transcripts(folder / "hyp.trn").texts.values()
            if words
        ],
        names=("u: ",),
    ),
    "scored-ctm": Reader(
        text(
            "hyp.ctm",
            "r1 1 0.00 0.25 GOOD NA x y\nr1 1 * * <ALT_BEGIN>\nr1 1 0.25 -0.5 A\n"
            "r1 1 * * <ALT>\nr1 1 0.25 0.5 B\nr1 1 * * <ALT_END>\n",
        ),
        lambda folder: read_transcripts(folder / "hyp.ctm"),
    ),
    "mapping-rules": Reader(
        text("x.glm", ';; x\n* NAME = "x"\n[A] => [{ B / C D }] / [ ] __ [ ]\n"E" => "(F)"\n'),
        lambda folder: Glm.read(folder / "x.glm", "stm", "ref")("A E (A E)"),
    ),
    "data-directory": Reader(
        kaldi_files, lambda folder: [*data_dir_faults(folder), *data_dir_remarks(folder)]
    ),
    "json-transcripts": Reader(
        text("hyp.json", '{"u-1": "GOOD", "u-2": {"text": "A B", "speaker": "anna"}}'),
        lambda folder: read_transcripts(folder / "hyp.json"),
    ),
    "json-lines": Reader(
        text("hyp.jsonl", '{"audio": "x/u-1.wav", "text": "GOOD"}\n{"id": "u-2", "text": ""}\n'),
        lambda folder: read_transcripts(folder / "hyp.jsonl"),
    ),
    "ctm-as-transcripts": Reader(
        text("hyp.ctm", "u1 1 0.00 0.25 GOOD 0.99\nu1 1 0.25 0.5 MORNING\n"),
        lambda folder: read_transcripts(folder / "hyp.ctm"),
    ),
    "results": Reader(
        lambda folder: record_results(folder / "results.json", [RESULT]),
        lambda folder: results_table(read_results(folder / "results.json")),
    ),
    "stm": Reader(
        text("ref.stm", ";; note\nr1 1 anna 0.00 1.50 <o,f0> GOOD\nr1 1 bert 1.5 2 MORNING\n"),
        lambda folder: read_stm(folder / "ref.stm"),
    ),
    "table-of-a-corpus": Reader(text("c.csv", CSV), lambda folder: read_table(folder / "c.csv")),
    "speakers": Reader(
        text("utt2spk", "u-1 anna\nu-2 bert\n"), lambda folder: read_speakers(folder / "utt2spk")
    ),
    "exclusions": Reader(
        text("excluded.tsv", "split\tutterance\tcopy\treason\ntrain\tu1\t1\ttoo short\n"),
        lambda folder: read_exclusions(folder / "excluded.tsv", "train"),
    ),
}
