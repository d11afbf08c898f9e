"""What cuts of others may name, and that nothing but `parse_cut` reads the cuts of others."""

import ast
import json
from pathlib import Path

import pytest

from toolkit.corpus.cuts import TRANSFORMS, UnsafeCutError, parse_cut

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
    "toolkit/corpus/cuts.py": {"deserialize_item"},
    "toolkit/features/cut_audio.py": {"load_audio"},
    "toolkit/doctor.py": {"load_audio", "Recording.from_file"},  # a file of its own
}


def lhotse_readers(text):
    """The readers of lhotse that a module names."""
    tree, found = ast.parse(text), set()
    of_lhotse = {"lhotse"} | {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "lhotse"
        for alias in node.names
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom | ast.Import):
            found |= {alias.name for alias in node.names} & READERS
        elif isinstance(node, ast.Name):
            found |= {node.id} & READERS
        elif isinstance(node, ast.Attribute):
            found |= {node.attr} & (READERS | {"load_audio"})
            whose = ast.unparse(node.value)
            if whose.split(".")[0] in of_lhotse and node.attr in ("from_dict", "from_file"):
                found.add(f"{whose}.{node.attr}")
    return found


def test_nothing_else_reads_what_lhotse_wrote():
    found = {}
    for tree in ("toolkit", "local", "recipes"):
        for path in sorted((ROOT / tree).rglob("*.py")):
            name = path.relative_to(ROOT).as_posix()
            if "/exp/" not in name:
                readers = lhotse_readers(path.read_text(encoding="utf-8"))
                found[name] = readers - EXEMPT.get(name, set())
    assert {name: readers for name, readers in found.items() if readers} == {}


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
    ("cut", "what"),
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
def test_what_is_refused_names_the_cut_and_the_reason(cut, what):
    with pytest.raises(UnsafeCutError, match=r"x\.jsonl:3: u: ") as refused:
        parse_cut(cut, "x.jsonl:3")
    assert what in str(refused.value)


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
    found = parse_cut(cut, "x")
    assert [type(t).__name__ for t in found.recording.transforms] == [
        "Speed",
        "ReverbWithImpulseResponse",
    ]
    assert found.custom["targets"].storage_type == "shar"


def test_all_known_transforms_exist():
    from lhotse.augmentation import AudioTransform

    import toolkit.features.cut_audio  # noqa: F401

    assert set(AudioTransform.KNOWN_TRANSFORMS) >= TRANSFORMS


@pytest.mark.parametrize(
    "plain",
    [
        *([], "cut", None, {}, {"id": "u"}, {"id": 3, "type": "MonoCut"}),
        {"id": "u", "type": "Else"},
        {"id": "u", "type": "MonoCut", "width": 3},
        {"id": "u", "type": "x", "sources": []},
    ],
)
def test_what_is_no_cut_is_an_error_for_reading(plain):
    with pytest.raises((ValueError, TypeError, KeyError)):
        parse_cut(plain, "x")


def test_a_transform_that_needs_a_missing_package_is_an_error_for_reading(monkeypatch):
    def fail(plain):
        raise ModuleNotFoundError("No module named 'torchaudio'", name="torchaudio")

    monkeypatch.setattr("toolkit.corpus.cuts.deserialize_item", fail)
    with pytest.raises(ValueError, match="torchaudio is not installed, which a transform needs"):
        parse_cut({"id": "u", "type": "MonoCut"}, "x")
