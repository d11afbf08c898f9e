"""N-best lists, word times and confidences of a recogniser with made-up scores."""

from dataclasses import replace

from toolkit.align.times import read_ctm

TEXTS = {"a1": "YES NO", "doubt1": "YES NO", "b1": "NO YES YES", "hush": "", "mumble": "YES"}


def test_lists_times_and_confidences(recogniser, tmp_path):
    from toolkit.decode.search import DecodeConfig, Decoder
    from toolkit.decode.system import NbestConfig, write_nbest_and_ctm
    from toolkit.fsa.config import Beam

    config = DecodeConfig(acoustic_scale=1.0, beam=Beam(1000.0, 1000.0))
    out, tuned = tmp_path / "out", tmp_path / "tuned.json"
    tuned.write_text('{"acoustic_scale": 1.0, "word_penalty": 0.0}')
    scorers = {"dev": recogniser.scorer({"doubt1": "NO YES"}), "test": recogniser.scorer(TEXTS)}
    arguments = (
        scorers,
        ["dev"],
        Decoder(recogniser.graph, recogniser.words, config),
        tuned,
        recogniser.folder / "lang",
        recogniser.senones,
        NbestConfig(count=4),
        out,
        1,
    )
    errors = write_nbest_and_ctm(*arguments)
    assert errors.keys() == {"ece dev", "ece test"}
    assert all(0 <= error <= 1 for error in errors.values())

    # Frames of 10 ms, two per state: YES has three phones of two states, NO two, silences one.
    words = {}
    for entry in read_ctm(out / "test/words.ctm"):
        words.setdefault(entry.utterance, []).append(entry)
    spans = [(e.token, round(e.start, 3), round(e.duration, 3)) for e in words["b1"]]
    assert spans == [("NO", 0.02, 0.08), ("YES", 0.12, 0.12), ("YES", 0.26, 0.12)]
    assert words.keys() == {"a1", "doubt1", "b1"}  # nothing is said in "hush", "mumble" is lost
    sure, doubtful = (min(e.confidence for e in words[u]) for u in ("b1", "doubt1"))
    assert 0 < doubtful < sure < 1

    lines = [line.split("\t") for line in (out / "test/nbest.tsv").read_text().splitlines()[1:]]
    assert [line[:2] for line in lines[:4]] == [["a1", str(rank)] for rank in (1, 2, 3, 4)]
    assert lines[0][5] == "YES NO"
    assert len({line[5] for line in lines[:4]}) == 4
    table = [line.split("\t") for line in (out / "confidence.tsv").read_text().splitlines()]
    assert [row[:2] for row in table[1:]] == [["dev", "2"], ["test", "7"]]

    before = (out / "test/words.ctm").read_bytes()
    (out / "test/words.ctm").unlink()
    for scorer in scorers.values():
        scorer.log_likelihoods = None  # finished shards are not decoded again
    assert write_nbest_and_ctm(*arguments) == errors
    assert (out / "test/words.ctm").read_bytes() == before


def test_lattices_of_the_decode_are_not_searched_for_again(recogniser, tmp_path):
    from toolkit.decode.search import DecodeConfig, Decoder
    from toolkit.decode.system import NbestConfig, Pass, decode_passes, write_nbest_and_ctm
    from toolkit.fsa.config import Beam
    from toolkit.lang.arpa import write_binary

    config = DecodeConfig(2.0, scales=(1.0,), penalties=(-0.5,), beam=Beam(1000.0, 1000.0))
    write_binary(recogniser.model(recogniser.text, 3), tmp_path / "larger")
    decoder = Decoder(recogniser.graph, recogniser.words, config, tmp_path / "larger")
    scorers = {"dev": recogniser.scorer({"doubt1": "NO YES"}), "test": recogniser.scorer(TEXTS)}

    def decode(out, keep):
        passes = [Pass("2gram", out / "first_pass"), Pass("3gram", out)]
        arguments = (scorers, ["dev"], decoder, passes, out, 1, "./run.py")
        return decode_passes("made-up", *arguments, keep_lattices=keep)

    def listed(out, decoder):
        arguments = (scorers, ["dev"], decoder, out / "tuned.json", recogniser.folder / "lang")
        found = write_nbest_and_ctm(*arguments, recogniser.senones, NbestConfig(), out, jobs=1)
        return found, [
            (out / name).read_bytes()
            for name in ("test/nbest.tsv", "test/words.ctm", "dev/nbest.tsv", "calibration.json")
        ]

    decode(tmp_path / "anew", keep=False)
    assert not [*(tmp_path / "anew").rglob("searched.*")]
    expected = listed(tmp_path / "anew", decoder)
    decode(tmp_path / "kept", keep=True)
    assert [*(tmp_path / "kept").rglob("searched.*")]
    without_graph = replace(decoder, graph=tmp_path / "removed")
    assert listed(tmp_path / "kept", without_graph) == expected
    assert not [*(tmp_path / "kept").rglob("searched.*")]
