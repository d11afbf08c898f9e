"""What is asked of the lake of unlabelled speech."""

from dataclasses import replace

import pytest
from lhotse import Recording
from lhotse.audio import AudioSource

from local.farfield.lake import write_lake
from toolkit.corpus.manifest import make_cut
from toolkit.pipeline.lake import LakeError
from toolkit.pipeline.local import LocalExecutor
from toolkit.pipeline.objects import ObjectStore
from toolkit.pipeline.steps.sample import SelectConfig
from toolkit.pipeline.steps.select import select

START = 1_770_000_000.0


def cut(number, seconds):
    source = AudioSource(type="file", channels=[0], source=f"audio/{number}.flac")
    recording = Recording(f"{number}", [source], 16000, int(16000 * seconds), seconds)
    made = make_cut(f"u{number:03d}", recording, "", f"s{number % 3}")
    made.custom = {"time": START + number}
    return made


@pytest.fixture
def lake(tmp_path):
    """Utterances of 5 s, a few too long or too short to be chosen."""
    cuts = [cut(number, 5.0) for number in range(100)]
    cuts += [cut(100, 65.0), cut(101, 300.0), cut(102, 0.05)]
    return write_lake(cuts, ObjectStore(), str(tmp_path / "lake"))


def test_all_is_taken_that_may_be_chosen(lake, tmp_path):
    config = SelectConfig(hours_per_file=0.05)
    no_store = None  # this process reads no metadata
    found = select(lake, config, LocalExecutor(), no_store, str(tmp_path / "all"), up_to=True)
    assert sum(ref.about["utterances"] for ref in found) == 100
    some = replace(config, hours=0.1)
    found = select(lake, some, LocalExecutor(), no_store, str(tmp_path / "some"), up_to=True)
    assert sum(ref.about["hours"] for ref in found) == pytest.approx(0.1, abs=5 / 3600)


def test_nothing_to_choose_from_is_an_error(lake, tmp_path):
    config = SelectConfig(min_duration=400, max_duration=500)
    with pytest.raises(LakeError, match="no utterance lasts 400 to 500 s"):
        select(lake, config, LocalExecutor(), None, str(tmp_path / "out"), up_to=True)
