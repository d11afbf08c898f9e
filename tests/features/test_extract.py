import hashlib
import json
import logging
import os
from dataclasses import asdict
from pathlib import Path

import pytest
import torch

from toolkit.engines import FRONTEND_VARIABLE
from toolkit.features import extract as module
from toolkit.features.audio import AudioError
from toolkit.features.config import ExtractConfig, FrontendConfig
from toolkit.features.cut_audio import load_cut_audio
from toolkit.features.extract import ExtractError, extract, pack_shards
from toolkit.features.frontend import Frontend, engine_version
from toolkit.features.shards import FeatureStore
from toolkit.startup import BLAS_VARIABLE

CONFIG = ExtractConfig(FrontendConfig(kind="mfcc"), hours_per_shard=1.2 / 3600)


@pytest.fixture
def cuts(make_cut):
    return [
        make_cut(f"{speaker}{number}", speaker, seconds=0.3 + 0.05 * number)
        for number in range(3)
        for speaker in ("a", "b", "c", "d")
    ]


def digests(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def test_the_store_holds_the_features_of_the_front_end(cuts, tmp_path):
    calls = []
    headline = extract(cuts, CONFIG, tmp_path / "f", progress=lambda *call: calls.append(call))
    store = FeatureStore(tmp_path / "f")
    assert sorted(store.ids) == sorted(cut.id for cut in cuts)
    assert store.manifest["frontend"] == asdict(CONFIG.frontend)
    frontend = Frontend(CONFIG.frontend)
    for cut in cuts:
        expected = frontend(load_cut_audio(cut))
        torch.testing.assert_close(store.load(cut.id), expected, rtol=2**-11, atol=1e-6)
    assert len(store.shards) == 3  # 4.2 s in shards of 1.2 s, rounded down: 3.5
    assert calls[-1] == (12, 12)
    assert [done for done, _ in calls] == sorted({done for done, _ in calls})
    assert headline["utterances"] == 12
    assert headline["hours"] == pytest.approx(4.2 / 3600)
    assert headline["xRT"] > 0


def test_the_engine_is_stored_and_logged_once(cuts, tmp_path, monkeypatch, caplog, engine):
    module.log_engine.cache_clear()
    caplog.set_level(logging.INFO, "toolkit")
    monkeypatch.setenv(FRONTEND_VARIABLE, engine)
    for name in ("one", "two"):
        extract(cuts, CONFIG, tmp_path / name)
    assert FeatureStore(tmp_path / "one").manifest["engine"] == engine_version(engine)
    assert [record.message for record in caplog.records] == [
        f"features are computed by {engine_version(engine)}"
    ]


def test_another_engine_completes_a_begun_extraction(cuts, tmp_path, monkeypatch):
    monkeypatch.setenv(FRONTEND_VARIABLE, "torch")
    extract(cuts, CONFIG, tmp_path / "f")
    for path in sorted((tmp_path / "f" / "done").iterdir())[1:]:
        marker = json.loads(path.read_text())
        path.write_text(json.dumps({**marker, "engine": "kaldifeat 1.24"}))
    first = sorted((tmp_path / "f" / "done").iterdir())[0]
    marker = json.loads(first.read_text())
    del marker["engine"]  # as shards were marked before there were two
    first.write_text(json.dumps(marker))
    extract(cuts[:-1], CONFIG, tmp_path / "f")
    assert FeatureStore(tmp_path / "f").manifest["engine"].startswith("kaldifeat 1.24, torch ")


def test_bytes_depend_neither_on_jobs_nor_on_the_order_of_the_cuts(cuts, tmp_path, monkeypatch):
    if BLAS_VARIABLE not in os.environ:  # torch came before toolkit: workers must not tune either
        monkeypatch.setenv(BLAS_VARIABLE, "")
    extract(cuts, CONFIG, tmp_path / "one")
    extract(reversed(cuts), CONFIG, tmp_path / "two", jobs=2)
    assert digests(tmp_path / "one") == digests(tmp_path / "two")
    assert len(digests(tmp_path / "one")) == 3 + 3 * 3


def shard_files(folder: Path) -> dict[str, tuple[int, int]]:
    """The files of all shards with the inode and time that change when a shard is rewritten."""
    status = {str(path.relative_to(folder)): path.stat() for path in folder.glob("*/*")}
    return {name: (file.st_ino, file.st_mtime_ns) for name, file in status.items()}


def test_resumes_at_the_first_missing_shard(cuts, tmp_path):
    out = tmp_path / "f"
    extract(cuts, CONFIG, tmp_path / "whole")

    def interrupt(done, total):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        extract(cuts, CONFIG, out, progress=interrupt)
    first = shard_files(out)
    assert len(first) == 3
    assert all("000000" in name for name in first)
    (out / "shards" / ".features.000001.tar.1234.tmp").write_bytes(b"left by a killed process")
    calls = []
    headline = extract(cuts, CONFIG, out, progress=lambda *call: calls.append(call))
    assert [total for _, total in calls] == [12, 12]  # the second shard and the third
    finished = shard_files(out)
    assert len(finished) == 9
    assert finished | first == finished
    assert digests(out) == digests(tmp_path / "whole")
    resumed_headline = extract(cuts, CONFIG, out, progress=lambda *call: calls.append(call))
    assert len(calls) == 2
    assert shard_files(out) == finished
    assert resumed_headline == {k: v for k, v in headline.items() if k != "xRT"}


def test_another_front_end_or_cut_is_extracted_anew(cuts, tmp_path):
    out = tmp_path / "f"
    extract(cuts, CONFIG, out)
    fbank = ExtractConfig(FrontendConfig(num_mel_bins=10), hours_per_shard=1.0)
    extract(cuts, fbank, out)
    store = FeatureStore(out)
    assert store.load("a0").shape == (30, 10)
    assert len(list((out / "shards").iterdir())) == 2
    extract(cuts[:-1], fbank, out)
    assert cuts[-1].id not in FeatureStore(out)


def test_extraction_lists_failures_and_continues(cuts, tmp_path, caplog):
    Path(cuts[5].recording.sources[0].source).write_bytes(b"broken")
    config = ExtractConfig(CONFIG.frontend, CONFIG.hours_per_shard, max_failed_share=0.1)
    headline = extract(cuts, config, tmp_path / "f")
    assert (headline["failed"], headline["utterances"]) == (1, 11)
    assert "1 of 12 utterances have no features, such as" in caplog.text
    (line,) = (tmp_path / "f" / "failed.tsv").read_text().splitlines()
    assert line.split("\t")[0] == cuts[5].id
    store = FeatureStore(tmp_path / "f")
    assert len(store) == 11
    assert store.failed_cuts == [cuts[5]]
    remaining_ids = [cut.id for cut in cuts if cut.id.startswith("b") and cut.id != cuts[5].id]
    assert store.cmn_state(remaining_ids[1]).frames == store.num_frames(remaining_ids[0])


def test_too_many_failures_are_an_error(cuts, tmp_path):
    Path(cuts[5].recording.sources[0].source).write_bytes(b"broken")
    with pytest.raises(ExtractError, match=rf"1 of 12 .*{cuts[5].id}.*failed\.tsv"):
        extract(cuts, CONFIG, tmp_path / "f")
    assert not (tmp_path / "f" / "features.json").exists()


@pytest.mark.parametrize("device", ["cpu", "cpu:0"])
def test_utterances_shorter_than_a_window_are_listed(cuts, make_cut, tmp_path, caplog, device):
    """The corpus check excludes them from training. Decoding counts their words as deletions."""
    short = [make_cut(f"short{number}", "a", seconds=0.02) for number in range(2)]
    headline = extract([*cuts, *short], CONFIG, tmp_path / "f", device=device)
    assert (headline["failed"], headline["utterances"]) == (2, 12)
    assert "2 of 14 utterances have no features" in caplog.text
    store = FeatureStore(tmp_path / "f")
    assert sorted(store.ids) == sorted(cut.id for cut in cuts)
    assert store.failed_cuts == short
    assert extract([*cuts, *short], CONFIG, tmp_path / "f")["failed"] == 2  # by the markers
    with pytest.raises(ExtractError, match="2 of 2 utterances have no features"):
        extract(short, CONFIG, tmp_path / "none")


def test_stores_that_do_not_list_failures_have_none(small_store):
    assert small_store.store.failed_cuts == []


def test_an_exception_names_the_utterance(cuts, tmp_path, monkeypatch):
    def fail(cut, rate):
        raise ZeroDivisionError

    monkeypatch.setattr(module, "load_cut_audio", fail)
    with pytest.raises(ExtractError, match="a0: ZeroDivisionError"):
        extract(cuts, CONFIG, tmp_path / "f")


def test_refuses_no_cuts_and_double_ids(cuts, tmp_path):
    with pytest.raises(ExtractError, match="no cuts"):
        extract([], CONFIG, tmp_path / "f")
    with pytest.raises(ExtractError, match="a0"):
        extract([*cuts, cuts[0]], CONFIG, tmp_path / "f")


def test_shards_hold_whole_speakers_and_have_similar_durations(make_cut):
    lengths = {"huge": 40, "a": 3, "b": 4, "c": 5, "d": 6, "e": 7}
    cuts = []
    for speaker, count in lengths.items():
        template = make_cut(f"{speaker}-x", speaker, seconds=0.1)
        for number in range(count):
            cut = template.with_id(f"{speaker}-{number:02}")
            cuts.append(cut)
    shards = pack_shards(cuts, 1.0 / 3600)
    speakers = [{cut.supervisions[0].speaker for cut in shard} for shard in shards]
    assert sorted(name for shard_speakers in speakers for name in shard_speakers) == sorted(lengths)
    loads = sorted(len(shard) for shard in shards)
    assert loads[-1] == 40
    assert loads[-2] - loads[0] <= 7  # the shortest speaker that could still be moved
    assert shards == pack_shards(cuts[::-1], 1.0 / 3600)
    assert len(pack_shards(cuts, 100.0)) == 1


def test_cuts_of_a_speaker_are_sorted_by_time_or_id(make_cut):
    timed = [make_cut(name, "a", time=t) for name, t in (("x", 3), ("y", 1), ("z", 2))]
    untimed = [make_cut("q", "b"), make_cut("p", "b", time=9)]
    (shard,) = pack_shards(timed + untimed, 1.0)
    assert [cut.id for cut in shard] == ["y", "z", "x", "p", "q"]


@pytest.mark.parametrize("options", [{"hours_per_shard": 0.0}, {"max_failed_share": 1.5}])
def test_refuses_impossible_settings(options):
    with pytest.raises(ValueError, match=next(iter(options))):
        ExtractConfig(**options)


def test_only_unchanged_shards_are_linked_from_the_previous_store(cuts, tmp_path, make_cut):
    from toolkit.features.cut_audio import AddNoise

    noise = make_cut("noise").recording.sources[0].source
    for cut in cuts:
        if cut.supervisions[0].speaker == "b":
            cut.recording.transforms = [AddNoise(noise, 0.0, 10.0)]
    audio = {cut.recording.sources[0].source: f"digest of {cut.id}" for cut in cuts}
    old, new = tmp_path / "old", tmp_path / "new"
    extract(cuts, CONFIG, old, audio=audio)
    changed = next(cut for cut in cuts if cut.supervisions[0].speaker == "c")
    audio[changed.recording.sources[0].source] = "of other audio"
    extract(cuts, CONFIG, new, audio=audio, previous=old)
    store = FeatureStore(new)
    linked_speakers = {
        store.speaker(ids[0])
        for number, ids in enumerate(store.shards)
        if (new / f"shards/features.{number:06d}.tar").samefile(
            old / f"shards/features.{number:06d}.tar"
        )
    }
    assert [store.speaker(ids[0]) for ids in store.shards] == ["a", "b", "c"]
    assert linked_speakers == {"a"}
    extract(cuts, CONFIG, tmp_path / "whole", audio=audio)
    assert digests(new) == digests(tmp_path / "whole")


def test_another_device_stores_what_the_cpu_stores(cuts, tmp_path, make_cut):
    """The device `cpu:0` runs the code for GPUs on the CPU."""
    short = make_cut("short", "b", seconds=0.01)
    broken = make_cut("broken", "c", seconds=0.3)
    Path(broken.recording.sources[0].source).write_bytes(b"broken")
    config = ExtractConfig(CONFIG.frontend, CONFIG.hours_per_shard, max_failed_share=0.5)
    expected = extract([*cuts, short, broken], config, tmp_path / "cpu")
    headline = extract([*cuts, short, broken], config, tmp_path / "device", jobs=3, device="cpu:0")
    assert {**headline, "xRT": 0} == {**expected, "xRT": 0}
    stores = FeatureStore(tmp_path / "cpu"), FeatureStore(tmp_path / "device")
    assert stores[0].shards == stores[1].shards
    for name in stores[0].ids:
        features = [store.load(name) for store in stores]
        torch.testing.assert_close(*features, rtol=2**-10, atol=1e-4)
    failed = [(tmp_path / name / "failed.tsv").read_text() for name in ("cpu", "device")]
    assert failed[0] == failed[1]
    assert failed[0].count("\n") == 2


def test_an_exception_on_another_device_names_the_utterance(cuts, tmp_path, monkeypatch):
    def fail(cut, rate):
        raise RuntimeError("a bug") if cut.id == "b1" else AudioError("broken")

    monkeypatch.setattr(module, "load_cut_audio", fail)
    with pytest.raises(ExtractError, match=r"b1: .*a bug"):
        extract(cuts, CONFIG, tmp_path / "f", jobs=2, device="cpu:0")
