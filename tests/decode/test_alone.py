"""Recognition of stored utterances, each as the only one of its speaker."""

import pytest

from tests.dummies import dummy_recording
from toolkit.corpus.manifest import make_cut, write_cuts
from toolkit.decode.recogniser import NetworkRecogniser, recognise_alone
from toolkit.features.shards import FAILED_CUTS, SHARDS, FeatureStore, write_manifest, write_shard


@pytest.fixture
def stored(tmp_path, babble):
    """Store the features of four utterances of one speaker by a recogniser's front end."""

    def store(frontend):
        folder, config = tmp_path / "features", frontend.config
        utterances = [
            (make_cut(f"u{n}", dummy_recording(0), "", "ann"), "ann", frontend(babble(n, 1.5)))
            for n in range(4)
        ]
        written, frames = write_shard(folder / SHARDS, 0, utterances, config)
        write_manifest(folder, config, [{"utterances": written, "frames": frames}])
        return folder

    return store


def test_the_mean_begins_anew_with_each_utterance(bundle, stored):
    folder = bundle()
    recogniser = NetworkRecogniser(folder)
    features = stored(recogniser.frontend)
    store = FeatureStore(features)
    alone = {name: recogniser.recognise_features(store.load(name)).text for name in store.ids}
    with_mean = {
        name: recogniser.recognise_features(store.load(name), store.state(name)).text
        for name in store.ids
    }
    assert alone != with_mean
    for jobs in 1, 3:
        texts = recognise_alone(folder, features, jobs)
        assert list(texts) == store.ids
        assert texts == alone


def test_the_text_of_an_utterance_without_features_is_empty(bundle, stored):
    folder = bundle()
    features = stored(NetworkRecogniser(folder).frontend)
    texts = recognise_alone(folder, features, jobs=1)
    write_cuts([make_cut("short", dummy_recording(0), "UP", "ann")], features / FAILED_CUTS)
    assert recognise_alone(folder, features, jobs=1) == texts | {"short": ""}
