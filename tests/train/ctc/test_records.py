import json
from dataclasses import asdict

import numpy as np
import pytest
import torch

from toolkit.features.shards import FeatureStore
from toolkit.lang.units import Characters
from toolkit.train.config import RecordConfig
from toolkit.train.ctc import records as module
from toolkit.train.ctc.records import RecordError, Records, count_too_long, write_records
from toolkit.train.errors import TrainingDataError

CONFIG = RecordConfig(per_file=3, max_excluded=1.0)


def texts_of(number):
    return {f"u{i}": "ALL A" if i % 3 else "IT IS A" for i in range(number)}


def contents(folder):
    return {p.relative_to(folder): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_records_hold_features_labels_and_states(write_store, tmp_path):
    features, texts = write_store([40, 41, 52, 63, 40, 45, 60]), texts_of(7)
    progress = []
    headline = write_records(
        features,
        texts,
        Characters(),
        CONFIG,
        tmp_path / "r",
        progress=lambda *x: progress.append(x),
    )
    store, records = FeatureStore(features), Records(tmp_path / "r")
    assert records.names == store.ids
    assert (records.dimension, records.symbols) == (3, Characters().symbols)
    assert asdict(records.frontend) == store.manifest["frontend"]
    for i, name in enumerate(store.ids):
        record = records.read(i)
        assert torch.equal(torch.from_numpy(record.features).float(), store.load(name))
        assert Characters().decode(record.labels) == texts[name]
        assert record.cmn_frames == store.cmn_state(name).frames
        assert np.array_equal(record.cmn_sum, store.cmn_state(name).sum.numpy())
        assert records.frames[i] == store.num_frames(name)
        assert records.label_lengths[i] == len(record.labels)
    size = sum(p.stat().st_size for p in (tmp_path / "r" / "files").iterdir())
    hours = 341 / 360_000
    expected = {"hours": hours, "utterances": 7, "kept_percent": 100, "too_long": 0, "excluded": 0}
    assert headline == pytest.approx({**expected, "MB_per_hour": size / 1e6 / hours})
    assert progress == [(3, 7), (6, 7), (7, 7)]


def test_long_utterances_are_dropped_and_listed_and_the_rest_counted(write_store, tmp_path):
    features = write_store([1670, 1671, 90, 3000])
    limits = RecordConfig(max_excluded=0.0)  # dropping long ones is no fault
    headline = write_records(features, texts_of(4), Characters(), limits, tmp_path)
    assert (headline["kept_percent"], headline["too_long"], headline["excluded"]) == (50, 2, 0)
    assert count_too_long(features, limits) == 2
    assert Records(tmp_path).names == ["u0", "u2"]
    assert (tmp_path / "excluded.tsv").read_text() == (
        "u1\t16.71 s, longer than 16.7 s\nu3\t30.00 s, longer than 16.7 s\n"
    )
    manifest = json.loads((tmp_path / "records.json").read_text())
    assert (manifest["kept"], manifest["frames"]) == (0.5, 1760)


def test_faults_are_listed_and_limited(write_store, tmp_path):
    # 11 + 2 * 5 frames give 6 outputs, as many as "al_l a" has labels
    features = write_store([60, 60, 60, 21, 20])
    texts = {"u1": "ROOM 3", "u2": " ", "u3": "ALL A", "u4": "ALL A"}
    headline = write_records(features, texts, Characters(), CONFIG, tmp_path)
    lines = dict(line.split("\t") for line in (tmp_path / "excluded.tsv").read_text().splitlines())
    assert lines["u0"] == lines["u2"] == "no transcript"
    assert lines["u1"].startswith("'3' is not among the 27 letters")
    assert lines["u4"] == "20 frames, too few for 6 labels"
    assert (headline["utterances"], headline["excluded"]) == (1, 4)
    strict = RecordConfig(max_excluded=0.5)
    with pytest.raises(TrainingDataError, match=r"4 of 5 .* u0 \(no transcript\)"):
        write_records(features, texts, Characters(), strict, tmp_path)
    with pytest.raises(TrainingDataError, match="0 usable utterances are left"):
        write_records(features, {}, Characters(), CONFIG, tmp_path)


def test_equal_labels_in_succession_need_a_blank(write_store, tmp_path):
    class Repeating(Characters):
        def encode(self, text):
            return [1, 1, 1]

    # 3 labels and 2 blanks between them: 5 outputs, 11 + 4 * 2 frames
    write_records(write_store([19, 18]), texts_of(2), Repeating(), CONFIG, tmp_path)
    assert Records(tmp_path).names == ["u0"]


def test_copies_have_the_transcript_of_their_original(write_store, tmp_path, monkeypatch):
    features = write_store([60, 60])
    monkeypatch.setattr(module, "original_id", lambda name: "original")
    texts = {"original": "A", "u1": "B"}
    write_records(features, texts, Characters(), CONFIG, tmp_path)
    records = Records(tmp_path)
    assert [records.read(i).labels.tolist() for i in range(2)] == [[1], [2]]


def test_bytes_do_not_depend_on_the_number_of_processes(write_store, tmp_path):
    features = write_store([40, 41, 52, 63, 40])
    write_records(features, texts_of(5), Characters(), CONFIG, tmp_path / "one")
    write_records(features, texts_of(5), Characters(), CONFIG, tmp_path / "two", jobs=2)
    assert contents(tmp_path / "one") == contents(tmp_path / "two")


def stamps(folder):
    """Return {number of record file: (inode, mtime)}; both change when it is rewritten."""
    files = {int(path.name.split(".")[1]): path.stat() for path in folder.glob("files/*")}
    return {number: (file.st_ino, file.st_mtime_ns) for number, file in files.items()}


def test_writing_resumes_with_missing_or_different_files(write_store, tmp_path):
    features, texts, out = write_store([40] * 9), texts_of(9), tmp_path / "r"

    def write(texts):
        """Write the records; return the numbers of the written files."""
        stamps_before, calls = stamps(out), []
        write_records(
            features, texts, Characters(), CONFIG, out, progress=lambda *x: calls.append(x)
        )
        written = [
            number for number, stamp in stamps(out).items() if stamp != stamps_before.get(number)
        ]
        assert len(calls) == len(written)
        return written

    def interrupt(done, total):
        if done == 6:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_records(features, texts, Characters(), CONFIG, out, progress=interrupt)
    with pytest.raises(RecordError, match="not a folder of finished records"):
        Records(out)
    assert write(texts) == [2]
    whole = contents(out)

    second = out / "files" / "records.000001.safetensors"
    second.write_bytes(second.read_bytes()[:-1])
    stray = out / "files" / "records.000007.safetensors"
    stray.write_bytes(b"of an earlier plan")
    assert write(texts) == [1]
    assert contents(out) == whole

    assert write({**texts, Records(out).names[-1]: "CHANGED"}) == [2]


def test_a_folder_whose_manifest_does_not_fit_its_files_is_refused(write_store, tmp_path):
    write_records(write_store([40] * 5), texts_of(5), Characters(), CONFIG, tmp_path)
    path = tmp_path / "records.json"
    path.write_text(path.read_text().replace('"utterances": 5', '"utterances": 6'))
    with pytest.raises(RecordError, match="contains 5 utterances"):
        Records(tmp_path)


@pytest.mark.parametrize(
    "wrong",
    [{"per_file": 0}, {"max_seconds": 0}, {"window": 0}, {"stride": 0}, {"max_excluded": 1.1}],
)
def test_impossible_settings_are_refused(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        RecordConfig(**wrong)
