from toolkit.corpus.config import CorpusConfig
from toolkit.corpus.split_names import Splits


def test_purposes_follow_the_patterns_and_survive_the_disk(tmp_path):
    names = ["train", "dev-clean", "dev-other", "test-clean"]
    splits = Splits.of(names, CorpusConfig())
    assert splits == Splits("train", ("dev-clean", "dev-other"), ("test-clean",))
    assert splits.all == tuple(names)
    assert splits.decoded == tuple(names[1:])
    splits.save(tmp_path / "splits.json")
    assert Splits.load(tmp_path / "splits.json") == splits


def test_a_held_out_dev_is_tuned_on_whatever_the_pattern():
    assert Splits.of(["train", "dev", "test"], CorpusConfig(dev="valid*")).tune == ("dev",)
