"""Recognition of every utterance alone: what a bundle makes of speakers that it does not know."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from toolkit.decode.bundle.folder import load_recogniser
from toolkit.decode.bundle.speaker import SpeakerRecogniser
from toolkit.features.store import FeatureStore
from toolkit.processes.workers import map_in_processes


def recognise_alone(bundle: Path, features: Path, jobs: int) -> dict[str, str]:
    """Recognise every utterance of a split as the first and only one of its speaker.

    The mean of the normalisation begins anew with each utterance, and a system that adapts to
    speakers has that utterance alone to adapt to.

    Args:
      bundle: the folder of one system.
      features: the split's features by the bundle's front end, before normalisation.
      jobs: worker processes, each with the bundle in its memory.

    Returns:
      Text by utterance id; of utterances without features, last, it is empty.
    """
    store = FeatureStore(features)
    ids = store.ids
    shares = [share for share in (ids[n::jobs] for n in range(jobs)) if share]
    texts: dict[str, str] = {}
    for part in map_in_processes(partial(_recognise, bundle, features), shares, jobs):
        texts.update(part)
    recognised = {utterance: texts[utterance] for utterance in ids}
    return recognised | {cut.id: "" for cut in store.failed_cuts}


def _recognise(bundle: Path, features: Path, ids: Sequence[str]) -> dict[str, str]:
    recogniser, store = load_recogniser(bundle), FeatureStore(features)
    if isinstance(recogniser, SpeakerRecogniser):
        return {name: recogniser.recognise([store.load(name)])[0].text for name in ids}
    return {name: recogniser.recognise_features(store.load(name)).text for name in ids}
