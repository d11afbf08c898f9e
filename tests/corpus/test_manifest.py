"""Making, parsing, reading and writing cuts."""

import ast
import json
import shutil
from pathlib import Path

import pytest
import soundfile

from tests.dummies import dummy_recording
from toolkit.corpus.findings import Exclusion, read_exclusions, write_exclusions
from toolkit.corpus.manifest import (
    TRANSFORMS,
    ManifestError,
    UnsafeCutError,
    audio_folders,
    audio_of,
    empty_recording,
    flag_missing_speaker,
    make_cut,
    parse_cut,
    probe_recording,
    read_cuts,
    speaker_of,
    text_of,
    write_cuts,
)
from toolkit.storage.paths import PLACES, places_text


def cut_of(path, id="u1", **options):
    recording, fault = probe_recording(path, id)
    fault = fault and ("unreadable-audio", fault)
    return make_cut(id, recording, " A  B\t", "s1", fault=fault, **options)


@pytest.mark.parametrize("suffix", [".flac", ".wav"])
def test_header_is_read(audio, tmp_path, suffix):
    path = audio(tmp_path / f"a{suffix}", seconds=0.5, rate=8000, channels=2)
    recording, fault = probe_recording(path, "a")
    assert fault is None
    assert (recording.sampling_rate, recording.num_samples, recording.duration) == (8000, 4000, 0.5)
    assert recording.num_channels == 2


def test_sphere_header_is_read(tmp_path):
    path = tmp_path / "a.sph"
    soundfile.write(str(path), [0.1] * 1600, 16000, format="NIST", subtype="PCM_16")
    recording, fault = probe_recording(path, "a")
    assert fault is None
    assert recording.num_samples == 1600
    assert len(soundfile.read(str(path))[0]) == 1600


def test_unreadable_files_get_a_fault_with_the_reason(tmp_path):
    (tmp_path / "empty.flac").touch()
    (tmp_path / "text.wav").write_text("no audio")
    (tmp_path / "bare.raw").write_bytes(bytes(100))
    for name, reason in (
        ("empty.flac", "empty"),
        ("text.wav", "readable"),
        ("no.wav", "no such"),
        ("bare.raw", "raw samples without a header"),
    ):
        recording, fault = probe_recording(tmp_path / name, "a")
        assert recording.num_samples == 0
        assert reason in fault
        assert name in fault


def test_round_trip_keeps_everything_and_the_same_bytes(audio, tmp_path):
    good = cut_of(audio(tmp_path / "a.flac"))
    broken = cut_of(tmp_path / "none.flac", id="ü2")
    for name in ("one.jsonl", "two.jsonl"):
        assert write_cuts([good, broken, good], tmp_path / name) == 3
    assert read_cuts(tmp_path / "one.jsonl") == [good, broken, good]
    assert (tmp_path / "one.jsonl").read_bytes() == (tmp_path / "two.jsonl").read_bytes()
    assert (text_of(good), speaker_of(good)) == ("A B", "s1")
    assert audio_of(good) == str(tmp_path / "a.flac")
    assert broken.duration == 0
    assert broken.custom["fault"] == "unreadable-audio"


def test_an_invalid_line_is_named(tmp_path):
    (tmp_path / "train.jsonl").write_text('{"id": 1\n')
    with pytest.raises(ManifestError, match=r"train\.jsonl:1"):
        read_cuts(tmp_path / "train.jsonl")


@pytest.mark.parametrize(
    ("start", "end", "expected", "word"),
    [
        (0.25, 0.75, (0.25, 0.5), None),
        (0.25, -1, (0.25, 0.75), None),
        (0.25, None, (0.25, 0.75), None),
        (0.25, 1.4, (0.25, 0.75), "trimmed-segment"),
        (0.25, 1.01, (0.25, 0.75), None),
        (0.25, 1.011, (0.25, 0.75), "trimmed-segment"),
        (0.25, 1.6, (0.0, 0.0), "bad-segment"),
        (1.2, 1.3, (0.0, 0.0), "bad-segment"),
        (0.5, 0.5, (0.0, 0.0), "bad-segment"),
        (-0.1, 0.5, (0.0, 0.0), "bad-segment"),
        (1.2, -1, (0.0, 0.0), "bad-segment"),
    ],
)
def test_segments_of_a_one_second_recording(audio, tmp_path, start, end, expected, word):
    cut = cut_of(audio(tmp_path / "a.flac"), start=start, end=end)
    assert (cut.start, cut.duration) == expected
    custom = cut.custom or {}
    assert word in (custom.get("fault"), custom.get("note"))
    assert (word is None) == (custom == {})


def test_exclusions_leave_out_one_copy_in_one_split(audio, tmp_path):
    cuts = [cut_of(audio(tmp_path / f"{id}.flac"), id=id) for id in ("a", "b", "b", "c")]
    for split in ("train", "dev"):
        write_cuts(cuts, tmp_path / f"{split}.jsonl")
    excluded = tmp_path / "excluded.tsv"
    write_exclusions(
        [
            Exclusion("train", "b", 2, "duplicate-id: a\treason\nin lines"),
            Exclusion("train", "a", 1, "x"),
        ],
        excluded,
    )
    assert read_exclusions(excluded, "train") == {("a", 1), ("b", 2)}
    assert [cut.id for cut in read_cuts(tmp_path / "train.jsonl", excluded)] == ["b", "c"]
    assert len(read_cuts(tmp_path / "dev.jsonl", excluded)) == 4


def test_a_file_whose_name_is_not_utf8_gets_a_fault_that_says_so(tmp_path):
    """The manifest is UTF-8, and could not name it."""
    path = tmp_path / "a\udcff.wav"
    path.write_bytes(b"")
    write_cuts([cut_of(path)], tmp_path / "cuts.jsonl")
    (cut,) = read_cuts(tmp_path / "cuts.jsonl")
    assert "not UTF-8" in str(cut.custom)


def test_where_no_speaker_is_named_the_recording_or_its_channel_is(audio, tmp_path):
    cut = cut_of(audio(tmp_path / "a.wav", channels=2), "r")
    flag_missing_speaker(cut, "x.csv:2 names none")
    assert speaker_of(cut) == "r"
    reason = "x.csv:2 names none: its recording counts as its speaker"
    assert cut.custom == {"mix_channels": True, "no_speaker": reason}
    cut.channel, cut.custom = 1, None
    flag_missing_speaker(cut, "x.csv:2 names none")
    assert speaker_of(cut) == "r-1"


@pytest.fixture
def exp(tmp_path):
    exp = tmp_path / "exp"
    (exp / "stages").mkdir(parents=True)
    (exp / PLACES).write_text(places_text({"corpus.root": str(tmp_path / "speech")}))
    return exp


def dummy_cut_of(path, **arguments):
    recording = dummy_recording(1)
    recording.sources[0].source = str(path)
    return make_cut("u", recording, "A", "s", **arguments)


def test_audio_in_the_run_directory_is_found_in_the_new_place(exp, tmp_path):
    cut = dummy_cut_of(exp / "corpus" / "a.wav")
    cut.custom = {"components": {"echo": str(exp / "corpus" / "echo.wav")}}
    write_cuts([cut], exp / "data" / "train.jsonl")
    assert cut.custom["components"]["echo"] == str(exp / "corpus" / "echo.wav")  # not changed
    assert read_cuts(exp / "data" / "train.jsonl") == [cut]
    shutil.move(exp, tmp_path / "new")
    (moved,) = read_cuts(tmp_path / "new" / "data" / "train.jsonl")
    assert audio_of(moved) == str(tmp_path / "new" / "corpus" / "a.wav")
    assert moved.custom["components"] == {"echo": str(tmp_path / "new" / "corpus" / "echo.wav")}


def test_fault_details_are_stored_without_paths(exp, tmp_path):
    missing = tmp_path / "speech" / "a.wav"
    fault = ("missing-audio", f"no such file: {missing}")
    cuts = [
        dummy_cut_of(missing, fault=fault),
        dummy_cut_of("touch x |", fault=("refused-pipe", "touch x |")),
    ]
    path = exp / "data" / "train.jsonl"
    write_cuts(cuts, path)
    assert str(tmp_path) not in path.read_text()
    assert read_cuts(path) == cuts
    write_exclusions([Exclusion("train", "u", 1, f"x: {fault[1]}")], exp / "check" / "out.tsv")
    assert "x: no such file: {corpus.root}/a.wav\n" in (exp / "check" / "out.tsv").read_text()


def test_outside_of_a_run_directory_paths_stay_absolute(tmp_path):
    write_cuts([dummy_cut_of(tmp_path / "speech" / "a.wav")], tmp_path / "train.jsonl")
    assert str(tmp_path / "speech" / "a.wav") in (tmp_path / "train.jsonl").read_text()


def cuts(paths):
    return [make_cut(str(p), empty_recording(str(p), str(p)), "a", "s") for p in paths]


def make(root, *folders):
    for folder in folders:
        (root / folder).mkdir(parents=True)
    return cuts(root / folder / f"{n}.wav" for folder in folders for n in range(2))


def test_folders_outside_of_the_root(tmp_path):
    folders = audio_folders(make(tmp_path, "data/wav", "far/b", "far/a"), tmp_path / "data")
    assert folders == [tmp_path / "far/a", tmp_path / "far/b"]


def test_paths_upwards_lead_out_of_the_root(tmp_path):
    root = tmp_path / "data"
    corpus_cuts = make(tmp_path, "data/wav", "far")
    upwards = cuts([root / "../far/0.wav"])
    assert audio_folders([*corpus_cuts[:2], *upwards], root) == [root / "../far"]


def test_a_folder_above_another_stands_for_both(tmp_path):
    assert audio_folders(make(tmp_path, "a", "a/b/c"), tmp_path / "t.csv") == [tmp_path / "a"]


def test_many_folders_are_joined(tmp_path):
    corpus_cuts = make(tmp_path, *(f"x/{n}" for n in range(5)), "y")
    assert audio_folders(corpus_cuts, tmp_path / "t.csv", most=3) == [
        tmp_path / "x",
        tmp_path / "y",
    ]
    assert audio_folders(corpus_cuts, tmp_path / "t.csv", most=1) == [tmp_path]


def test_non_folders_are_left_out(tmp_path):
    assert audio_folders(cuts(["cat x |", "/not/there/a.wav", "/a.wav"]), tmp_path) == []
    assert audio_folders([], Path("t.csv")) == []


ROOT = Path(__file__).resolve().parents[2]
READERS = {
    *("deserialize_item", "deserialize_cut", "deserialize_array", "deserialize_custom_field"),
    *("load_manifest", "load_manifest_lazy", "load_manifest_lazy_or_eager", "load_jsonl"),
    *("CutSet", "RecordingSet", "SupervisionSet", "FeatureSet", "LazyManifestIterator"),
    *("from_dicts", "from_jsonl", "from_jsonl_lazy", "from_shar", "from_webdataset"),
    *("open_best", "SmartOpen", "load_features", "load_video", "move_audio_to_memory"),
}
"""What of lhotse makes objects of files, or opens whatever they name."""
EXEMPT = {
    "toolkit/corpus/manifest.py": {"deserialize_item"},
    "toolkit/features/cut_audio.py": {"load_audio"},
    "toolkit/doctor.py": {"load_audio", "Recording.from_file"},  # a file of its own
}


def lhotse_readers(text):
    """The readers of lhotse that a module names."""
    tree, readers = ast.parse(text), set()
    of_lhotse = {"lhotse"} | {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "lhotse"
        for alias in node.names
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom | ast.Import):
            readers |= {alias.name for alias in node.names} & READERS
        elif isinstance(node, ast.Name):
            readers |= {node.id} & READERS
        elif isinstance(node, ast.Attribute):
            readers |= {node.attr} & (READERS | {"load_audio"})
            whose = ast.unparse(node.value)
            if whose.split(".")[0] in of_lhotse and node.attr in ("from_dict", "from_file"):
                readers.add(f"{whose}.{node.attr}")
    return readers


def test_only_exempt_modules_use_lhotses_readers():
    readers_by_file = {}
    for tree in ("toolkit", "local", "recipes"):
        for path in sorted((ROOT / tree).rglob("*.py")):
            name = path.relative_to(ROOT).as_posix()
            if "/exp/" not in name:
                readers = lhotse_readers(path.read_text(encoding="utf-8"))
                readers_by_file[name] = readers - EXEMPT.get(name, set())
    assert {name: readers for name, readers in readers_by_file.items() if readers} == {}


@pytest.mark.parametrize(
    "text",
    [
        "from lhotse.serialization import deserialize_item as d",
        "import lhotse\nlhotse.load_manifest('x')",
        "from lhotse import CutSet",
        "from lhotse import MonoCut\nMonoCut.from_dict({})",
        "import lhotse.cut\nlhotse.cut.MonoCut.from_dict({})",
        "cut.load_audio()",
    ],
)
def test_readers_are_found(text):
    assert lhotse_readers(text)


RECORDING = {
    **{"id": "r", "sampling_rate": 16000, "num_samples": 16000, "duration": 1.0},
    "sources": [{"type": "file", "channels": [0], "source": "a.wav"}],
}


def mono(**fields):
    recording = json.loads(json.dumps(RECORDING))
    cut = {"id": "u", "type": "MonoCut", "start": 0.0, "duration": 1.0, "channel": 0}
    return {**cut, "supervisions": [], "recording": recording, **fields}


def array(storage):
    return {"storage_type": storage, "storage_path": "x", "storage_key": "y", "shape": [1]}


IMAGE = {"storage_type": "pillow_memory", "storage_path": "", "storage_key": "x"}


@pytest.mark.parametrize(
    ("cut", "reason"),
    [
        (mono(recording={**RECORDING, "sources": [{"type": "command", "channels": [0],
                                                   "source": "rm x"}]}),
         "'rm x', which is not run"),
        (mono(custom={"deep": [{"x": {"type": "url", "channels": [0], "source": "s3://b/x"}}]}),
         "'s3://b/x', which is not fetched"),
        (mono(recording={**RECORDING, "sources": [{"type": "shar", "channels": [0],
                                                   "source": ""}]}), "'shar'"),
        (mono(custom={"x": array("memory_raw")}), "'memory_raw'"),
        (mono(custom={"x": {"array": array("lilcom_url"), "temporal_dim": 0, "frame_shift": 1,
                            "start": 0}}), "'lilcom_url'"),
        (mono(custom={"x": {"width": 1, "height": 1, **IMAGE}}), "'pillow_memory'"),
        (mono(recording={**RECORDING, "transforms": [{"name": "Own", "kwargs": {}}]}), "'Own'"),
    ],
)  # fmt: skip
def test_a_refused_cut_is_named_with_the_reason(cut, reason):
    with pytest.raises(UnsafeCutError, match=r"x\.jsonl:3: u: ") as refused:
        parse_cut(cut, "x.jsonl:3")
    assert reason in str(refused.value)


def test_local_files_arrays_and_known_transforms_are_parsed():
    cut = mono(custom={"source": "radio", "type": "news", "sources": ["a"], "name": "x",
                       "targets": array("shar"), "codes": array("numpy_files")})  # fmt: skip
    cut["recording"]["transforms"] = [
        {"name": "Speed", "kwargs": {"factor": 0.9}},
        {"name": "ReverbWithImpulseResponse", "kwargs": {"rir": RECORDING}},
    ]
    tracks = [{"cut": mono(), "type": "MonoCut", "offset": 0.0} for _ in "ab"]
    mixed = parse_cut({"id": "m", "type": "MixedCut", "tracks": tracks}, "x")
    assert (mixed.id, len(mixed.tracks)) == ("m", 2)
    parsed = parse_cut(cut, "x")
    assert [type(t).__name__ for t in parsed.recording.transforms] == [
        "Speed",
        "ReverbWithImpulseResponse",
    ]
    assert parsed.custom["targets"].storage_type == "shar"


def test_all_known_transforms_exist():
    from lhotse.augmentation import AudioTransform

    import toolkit.features.cut_audio  # noqa: F401

    assert set(AudioTransform.KNOWN_TRANSFORMS) >= TRANSFORMS


@pytest.mark.parametrize(
    "data",
    [
        *([], "cut", None, {}, {"id": "u"}, {"id": 3, "type": "MonoCut"}),
        {"id": "u", "type": "Else"},
        {"id": "u", "type": "MonoCut", "width": 3},
        {"id": "u", "type": "x", "sources": []},
    ],
)
def test_data_that_is_not_a_cut_is_an_error(data):
    with pytest.raises((ValueError, TypeError, KeyError)):
        parse_cut(data, "x")


def test_a_transform_that_needs_a_missing_package_is_an_error_for_reading(monkeypatch):
    def fail(data):
        raise ModuleNotFoundError("No module named 'torchaudio'", name="torchaudio")

    monkeypatch.setattr("toolkit.corpus.manifest.deserialize_item", fail)
    with pytest.raises(ValueError, match="a transform needs torchaudio, which is not installed"):
        parse_cut({"id": "u", "type": "MonoCut"}, "x")
