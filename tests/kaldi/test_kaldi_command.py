"""Each command of `toolkit kaldi`, as a round trip."""

import sys

import pytest
import torch
from click.testing import CliRunner

from toolkit import cli
from toolkit.align.store import AlignmentStore, Outcome, write_shard
from toolkit.corpus.manifest import make_cut, probe_recording, read_cuts, write_cuts
from toolkit.features.shards import write_manifest
from toolkit.features.shards import write_shard as write_features
from toolkit.hmm.topology import Topology
from toolkit.kaldi.feature_dir import KaldiFormat
from toolkit.kaldi.features import cuts_without_audio
from toolkit.lang.lang import Lang
from toolkit.lang.lexicon import Lexicon


def run(*arguments, status=0):
    result = CliRunner().invoke(cli.main, ["kaldi", *map(str, arguments)])
    assert result.exit_code == status, result.output
    return result


def test_data_out_and_in(audio, tmp_path):
    cuts = []
    for id in ("a-1", "a-2"):
        header, _ = probe_recording(audio(tmp_path / f"{id}.wav"), id)
        cuts.append(make_cut(id, header, "" if id == "a-2" else "X Y", "a"))
    write_cuts(cuts, tmp_path / "train.jsonl")
    result = run("export-data", "--cuts", tmp_path / "train.jsonl", "--out", tmp_path / "data")
    assert result.stdout == f"{tmp_path / 'data'}: 1 utterances of 1 speakers\n"
    assert "Left out: a-2: no word in its transcript" in result.stderr
    assert "no faults; Kaldi would accept it" in run("show", tmp_path / "data").stdout
    run("import-data", tmp_path / "data", "--out", tmp_path / "back.jsonl")
    assert read_cuts(tmp_path / "back.jsonl") == cuts[:1]
    (tmp_path / "data/spk2utt").write_text("b a-1\n")
    assert "does not have" in run("show", tmp_path / "data", status=1).stdout
    (tmp_path / "data/spk2utt").write_text("a a-1\n")
    (tmp_path / "data/text").write_bytes(b"a-1 X Y\r\n")
    assert "U+000D (carriage return)" in run("show", tmp_path / "data", status=1).stdout
    (tmp_path / "data/text").write_text("a-1\n")
    report = run("show", tmp_path / "data")
    assert "no faults; Kaldi would accept it" in report.stdout
    assert "text:1: a-1 has no word." in report.stderr


def test_lang_out_and_in(tmp_path):
    lang = Lang.of(Lexicon({"A": [("AH",)], "CAT": [("K", "AE", "T")]}).with_positions())
    lang.save(tmp_path / "lang")
    run("export-lang", "--lang", tmp_path / "lang", "--out", tmp_path / "local")
    dictionary = tmp_path / "local/dict"
    run("import-lang", dictionary, "--position-dependent", "--out", tmp_path / "one")
    result = run("import-lang", tmp_path / "local/lang", "--out", tmp_path / "two")
    assert "words left out, because the toolkit adds its own: <UNK>" in result.stderr
    for name in ("one", "two"):
        for path in (tmp_path / "lang").iterdir():
            assert (tmp_path / name / path.name).read_bytes() == path.read_bytes(), path.name


@pytest.fixture
def features(tmp_path):
    """A store of three utterances of 9 frames."""
    cuts = cuts_without_audio({f"a-{n}": 9 for n in range(3)}, dict.fromkeys("a", "a"), {})
    form = KaldiFormat(2)
    rows = [(cut, cut["supervisions"][0]["speaker"], torch.rand(9, 2)) for cut in cuts]
    utterances, frames = write_features(tmp_path / "fbank/shards", 0, rows, form)
    write_manifest(tmp_path / "fbank", form, [{"utterances": utterances, "frames": frames}])
    return tmp_path / "fbank"


def test_features_out_and_in(features, tmp_path):
    pytest.importorskip("kaldi_native_io")
    run("export-features", "--features", features, "--out", tmp_path / "data")
    assert "a-0  FM 9 x 2" in run("show", tmp_path / "data/feats.scp").stdout
    data = ["--data", tmp_path / "data", "--out", tmp_path / "back"]
    result = run("import-features", tmp_path / "data/feats.scp", *data)
    assert "3 utterances, 27 frames; largest rounding error: 0\n" in result.stdout
    name = "shards/features.000000.tar"
    assert (tmp_path / "back" / name).read_bytes() == (features / name).read_bytes()
    run("import-features", tmp_path / "data/feats.scp", "--out", tmp_path / "x", status=2)
    (tmp_path / "data/text").write_text("a-0 X\na-1 Y\na-2 Z\nb-0 X\nb-1 X\n")
    (tmp_path / "data/utt2spk").write_text("a-0 a\na-2 a\n")
    result = run("import-features", tmp_path / "data/feats.scp", *data)
    text, speakers = tmp_path / "data/text", tmp_path / "data/utt2spk"
    assert result.stderr == (
        f"Note: 2 utterances in {text} have no features, such as b-0.\n"
        f"Note: 1 utterances with features are not in {speakers}, such as a-1.\n"
    )


def test_alignments_out_and_in(features, tmp_path):
    pytest.importorskip("kaldi_native_io")
    topology = Topology(("SIL", "SPN", "A"))
    topology.save(tmp_path / "system/topology.json")
    states = {f"a-{n}": torch.tensor([10, 10, 10, 11, 11, 11, 12, 12, 12]) for n in range(3)}
    outcomes = [Outcome(u, "ok", -1.0, 10.0, "") for u in states]
    write_shard(tmp_path / "ali/ali.000000.tar", states, outcomes)
    system = ["--system", tmp_path / "system"]
    run("export-alignments", "--ali", tmp_path / "ali", *system, "--out", tmp_path / "out")
    run("import-alignments", tmp_path / "out/ali.scp", *system, "--out", tmp_path / "one")
    times = tmp_path / "out/phones.ctm"
    run("import-alignments", times, *system, "--features", features, "--out", tmp_path / "two")
    for name in ("one", "two"):
        store = AlignmentStore(tmp_path / name)
        assert {u: store.load(u).tolist() for u in store.ids} == {
            u: s.tolist() for u, s in states.items()
        }
    run("import-alignments", times, *system, "--out", tmp_path / "x", status=2)
    (tmp_path / "empty.ark").write_bytes(b"")
    result = run(
        "import-alignments", tmp_path / "empty.ark", *system, "--out", tmp_path / "x", status=1
    )
    assert f"{tmp_path / 'empty.ark'} contains no alignments" in result.stderr


def test_invalid_numbers_are_refused(features, tmp_path):
    table = tmp_path / "x.scp"
    assert "--count" in run("show", table, "--count", -1, status=2).stderr
    data = ["import-features", table, "--out", tmp_path / "out", "--data"]
    for option, value in (("--sampling-rate", 0), ("--sampling-rate", 16), ("--frame-shift", 0.01)):
        assert option in run(*data, tmp_path, option, value, status=2).stderr
    assert "no such folder" in run(*data, tmp_path / "gone", status=2).stderr
    packed = run("import-data", tmp_path, "--out", tmp_path / "x.jsonl.gz", status=2)
    assert "Give a name that ends in .jsonl" in packed.stderr
    files = ["decode", table, table, "--words", table]
    for count in (-3, 0, 1, 1 << 31):
        assert "--max-active" in run(*files, "--max-active", count, status=2).stderr
    # Fewer states than a search keeps at least by default: the next fault is the missing graph.
    assert "x.scp" in run(*files, "--max-active", 20, status=1).stderr


def test_without_kaldi_native_io_the_command_to_install_it_is_named(
    features, tmp_path, monkeypatch
):
    monkeypatch.setitem(sys.modules, "kaldi_native_io", None)
    result = run("export-features", "--features", features, "--out", tmp_path / "o", status=1)
    assert "pip install kaldi_native_io" in result.stderr
