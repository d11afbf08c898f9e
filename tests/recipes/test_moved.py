"""A run directory and its corpus can be moved separately without any stage becoming stale."""

import json
import shutil

from tests.recipes.small_recipe import ALL, SPLITS
from toolkit.corpus.manifest import audio_of, read_cuts
from toolkit.features.cut_audio import load_cut_audio
from toolkit.features.shards import FeatureStore


def move(small):
    """Move the run directory to one place and the corpus to another; nothing stays behind."""
    exp, corpus = small.folder / "second" / "deep" / "run", small.folder / "disk" / "corpus"
    for old, new in ((small.exp, exp), (small.corpus, corpus)):
        new.parent.mkdir(parents=True)
        shutil.move(old, new)
    small.exp, small.corpus = exp, corpus


def test_after_a_move_every_stage_is_done_and_can_run_again(small):
    contents = small.contents()
    move(small)
    states = small.states()
    assert [*states] == ALL
    assert all(" done " in row for row in states.values()), states
    assert small.run().ran == []
    for stage in (2, 3, 6, 7):
        # What the forced stage makes is the same to the byte, so that no other runs.
        assert small.run("--force", stage).ran == [stage]
        assert small.contents() == contents
    cuts = read_cuts(small.exp / "data" / "dev.jsonl")
    assert [len(load_cut_audio(cut)) for cut in cuts] == [8000, 8000]
    stored = FeatureStore(small.exp / "fbank" / "dev")
    assert {audio_of(stored.cut(id)) for id in stored.ids} == {audio_of(cut) for cut in cuts}


def test_no_absolute_path_is_left_in_what_later_stages_read(small):
    for name, content in small.contents().items():
        assert str(small.folder).encode() not in content, name
    for split in SPLITS:
        lines = (small.exp / "data" / f"{split}.jsonl").read_text().splitlines()
        sources = [json.loads(line)["recording"]["sources"][0]["source"] for line in lines]
        assert sources[0].startswith("{corpus.root}/wav/"), sources
    assert "`{corpus.root}/wav" in (small.exp / "check" / "excluded.tsv").read_text().replace(
        "no such file: ", "`"
    )
    for stage in ALL:
        inputs = json.loads((small.exp / "stages" / f"{stage:02d}.json").read_text())["inputs"]
        assert not [name for name in inputs if name.startswith("/")]


def test_a_partial_stage_continues_after_a_move(small):
    path = small.exp / "stages" / "06.json"
    marker = json.loads(path.read_text())
    path.unlink()
    done = small.exp / "fbank" / "train"
    partial = small.exp / ".partial" / "06" / "fbank" / "train"
    record = {key: marker[key] for key in ("parameters", "inputs", "attempts")}
    shutil.copytree(done, partial)
    (small.exp / ".partial" / "06.json").write_text(json.dumps({**record, "forced": False}))
    inodes = {p.name: p.stat().st_ino for p in partial.glob("shards/*.tar")}
    assert len(inodes) > 1
    move(small)
    assert "resuming" in small.run().output
    tars = (small.exp / "fbank" / "train").glob("shards/*.tar")
    assert {p.name: p.stat().st_ino for p in tars} == inodes


def test_another_corpus_in_the_new_place_is_noticed(small):
    move(small)
    with open(small.corpus / "table.csv", "a") as file:
        file.write("wav/ann/0.wav,a dog,ann,train\n")
    states = small.states()
    changed = f"stale: input `{small.corpus}/table.csv` changed"
    assert "".join(changed.split()) in "".join(states[2].split())  # long paths are broken
    assert " done " in states[1]
