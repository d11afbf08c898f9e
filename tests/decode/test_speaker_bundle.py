"""Recognition by speaker: models are loaded once, and no speaker hears of another."""

import pytest
import torch

from toolkit.align.config import EmConfig
from toolkit.decode import recogniser as recogniser_module
from toolkit.decode.bundle import TunedSearch, write_speaker_bundle
from toolkit.decode.recogniser import SpeakerRecogniser
from toolkit.decode.search import DecodeConfig
from toolkit.features.config import FrontendConfig
from toolkit.features.gmm_features import GmmFeatures, GmmFrontend
from toolkit.fsa.config import Beam
from toolkit.hmm.gmm import Gmm
from toolkit.hmm.gmm_system import GmmSystem

SIZE = 4


@pytest.fixture
def bundle(recogniser, tmp_path):
    """GMMs of made-up means, adapted and not."""
    senones = recogniser.senones
    torch.manual_seed(0)
    count = torch.full((senones.num_pdfs,), 100.0).double()
    for name in ("sat", "lda_mllt"):
        means = torch.randn(senones.num_pdfs, 3 * SIZE).double()
        moments = count, count[:, None] * means, count[:, None] * (means**2 + 1)
        gmm = Gmm.from_moments(*moments, torch.full((3 * SIZE,), 0.01))
        features = GmmFeatures(tmp_path, GmmFrontend())
        (tmp_path / name).mkdir()
        GmmSystem(features, senones, gmm).save(tmp_path / name)
    (tmp_path / "tuned.json").write_text('{"acoustic_scale": 0.3, "word_penalty": 1.0}')
    config = DecodeConfig(0.3, beam=Beam(100.0, 6.0))
    search = TunedSearch(recogniser.graph, config, tmp_path / "tuned.json")
    write_speaker_bundle(
        tmp_path / "sat",
        search,
        recogniser.folder / "lang",
        FrontendConfig("plp", num_ceps=SIZE),
        tmp_path / "bundle",
        first_pass=(tmp_path / "lda_mllt", search, recogniser.graph, EmConfig()),
    )
    return tmp_path / "bundle"


def heard(seed, frames=(250, 260)):
    """The cepstra of a speaker's utterances; the default is enough to adapt to."""
    generator = torch.Generator().manual_seed(seed)
    cepstra = [torch.randn(count, SIZE, generator=generator) for count in frames]
    for x in cepstra:
        x[:, 0].abs_()  # a negative C0 of PLP stands for digital silence
    return cepstra


def test_each_model_is_loaded_once(bundle):
    one = SpeakerRecogniser(bundle)
    found = [one.recognise(heard(1))]
    models = [bundle / "first_pass/gmm", bundle / "gmm"]
    for path in models:
        path.rename(path.with_name("hidden"))
    found += [one.recognise(heard(seed)) for seed in (2, 1)]
    for path in models:
        path.with_name("hidden").rename(path)
    assert found[0] == found[2] != found[1]
    assert found[1] == SpeakerRecogniser(bundle).recognise(heard(2))
    assert any(result.text for results in found for result in results)


def test_a_few_seconds_are_recognised_as_by_adaptation_which_they_are_too_few_for(
    bundle, monkeypatch
):
    short = [heard(seed, frames) for seed, frames in enumerate([(60, 90), (1,), (499,)])]
    quick = SpeakerRecogniser(bundle)
    found = [quick.recognise(utterances) for utterances in short]
    assert any(result.text for results in found for result in results)
    monkeypatch.setattr(recogniser_module, "MIN_FRAMES", 0)
    assert [SpeakerRecogniser(bundle).recognise(utterances) for utterances in short] == found
