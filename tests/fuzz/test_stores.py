"""Damaged manifests, features, alignments and records."""

import json

import numpy as np
import pytest
import torch

from tests.fuzz.hostile import *  # noqa: F403
from tests.fuzz.trial import Reader
from tests.ssl.target_store import TargetStore
from toolkit.align.store import AlignmentStore, Outcome, read_table
from toolkit.align.store import write_shard as write_alignments
from toolkit.corpus.manifest import iter_cuts, make_cut, write_cuts
from toolkit.corpus.split import Splits
from toolkit.features.config import FrontendConfig
from toolkit.features.gmm_features import load_transforms, save_transforms
from toolkit.features.normalise import Cmvn, GlobalStats
from toolkit.features.shards import SHARDS, FeatureStore, TarWriter, write_manifest, write_shard
from toolkit.lang.units import Characters
from toolkit.ssl.targets import MANIFEST, k_best
from toolkit.train.ctc.records import RECORDS, Record, Records, record_path, write_file

NAMES = ("anna-1", "anna-2", "bert-1")
GENERATOR = torch.Generator().manual_seed(0)
FRONTEND = FrontendConfig(num_mel_bins=3)


def cuts():
    from tests.dummies import dummy_recording

    return [make_cut(name, dummy_recording(0), "GOOD ÉTÉ", name[:4]) for name in NAMES]


def features(folder):
    frames = [torch.randn(4 + n, 3, generator=GENERATOR) for n in range(len(NAMES))]
    rows = [(cut, cut.id[:4], x) for cut, x in zip(cuts(), frames, strict=True)]
    shards = []
    for number, part in enumerate((rows[:2], rows[2:])):
        counts = write_shard(folder / SHARDS, number, part, FRONTEND)
        shards.append(dict(zip(("utterances", "frames"), counts, strict=True)))
    write_manifest(folder, FRONTEND, shards)


def read_features(folder):
    store = FeatureStore(folder)
    for name in store.ids:
        (
            store.cut(name),
            store.load(name),
            store.cmn_state(name).after(store.load(name), store.counted(name)),
        )
    return [store.speaker_mean(speaker) for speaker in store.speakers]


def alignments(folder):
    states = {name: torch.arange(5 + n) for n, name in enumerate(NAMES)}
    outcomes = [Outcome(name, "ok", -41.5, 10.0, "") for name in NAMES]
    outcomes.append(Outcome("carl-1", "failed", float("nan"), 0.0, "no path"))
    write_alignments(folder / "ali.000000.tar", states, outcomes)


def read_alignments(folder):
    read_table(folder / "ali.000000.tsv")
    store = AlignmentStore(folder)
    return [store.load(name) for name in store.ids]


def records(folder):
    rng = np.random.default_rng(0)
    for number, names in enumerate((NAMES[:2], NAMES[2:])):
        named_records = [
            (
                name,
                Record(
                    rng.standard_normal((4, 3)).astype(np.float16),
                    np.arange(2, dtype=np.int32),
                    7,
                    rng.standard_normal(3),
                ),
            )
            for name in names
        ]
        write_file(record_path(folder, number), "plan", named_records)
    manifest = {"symbols": Characters().symbols, "dimension": 3, "files": 2, "utterances": 3}
    (folder / RECORDS).write_text(json.dumps(manifest))


def read_records(folder):
    stored = Records(folder)
    return [stored.read(number) for number in range(len(stored))]


def targets(folder):
    (folder / SHARDS).mkdir()
    with open(folder / SHARDS / "targets.000000.tar", "wb") as file:
        tar = TarWriter(file)
        for name in NAMES:
            logits = torch.randn(4, 6, generator=GENERATOR)
            tar.add_array(name, k_best(logits, 2).pack(), {"k": 2})
        tar.close()
    (folder / MANIFEST).write_text(json.dumps({"senones": 6, "offset": 0}))


def read_targets(folder):
    store = TargetStore(folder)
    return [store.load(name) for name in store.ids]


READERS = {
    "manifest": Reader(
        lambda folder: write_cuts(cuts(), folder / "train.jsonl"),
        lambda folder: list(iter_cuts(folder / "train.jsonl")),
    ),
    "splits": Reader(
        lambda folder: Splits("train", ("dev",), ("test",)).save(folder / "splits.json"),
        lambda folder: Splits.load(folder / "splits.json").all,
    ),
    "features": Reader(features, read_features, names=NAMES),
    "normaliser": Reader(
        lambda folder: Cmvn(
            torch.zeros(2, dtype=torch.float64), GlobalStats.of(torch.randn(9, 2))
        ).save(folder / "normaliser.json"),
        lambda folder: normalise_with(Cmvn.load(folder / "normaliser.json")),
    ),
    "transforms": Reader(
        lambda folder: save_transforms(folder / "fmllr.safetensors", {"anna": torch.eye(2, 3)}),
        lambda folder: load_transforms(folder / "fmllr.safetensors"),
    ),
    "alignments": Reader(alignments, read_alignments, names=NAMES),
    "records": Reader(records, read_records, names=NAMES),
    "targets": Reader(targets, read_targets, names=NAMES),
}


def normalise_with(normaliser):
    """Normalise features of the normaliser's dimension."""
    return normaliser.apply(torch.zeros(3, len(normaliser.prior_mean)))


def test_a_tar_without_end_is_an_error(tmp_path):
    from toolkit.features.shards import index_arrays, member_header

    header = bytearray(member_header("a.npy", 0))
    header[124:136] = b"-0000001000\0"  # back to where it began
    (tmp_path / "x.tar").write_bytes(bytes(header) + bytes(2048))
    with (
        pytest.raises(Exception, match="goes beyond the end of the file"),
        open(tmp_path / "x.tar", "rb") as file,
    ):
        list(index_arrays(file))
