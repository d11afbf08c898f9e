"""Semi-supervised lattice-free MMI: learning from speech that a network has recognised (C13)."""

from pathlib import Path

from recipes.steps.chain import DENOMINATOR, phone_sequences, transcribed_phones
from recipes.steps.decoding import network_lang
from recipes.steps.features import training_features
from recipes.steps.network import network_decoder
from toolkit.features.normalise import Normaliser
from toolkit.features.shards import FeatureStore
from toolkit.fsa.denominator import Denominator, make_denominator, phone_ngram
from toolkit.hmm.senones import Senones
from toolkit.processes import ranks
from toolkit.ssl.recognition import RecognisedPhones, recognise_phones
from toolkit.stages.run import Run
from toolkit.train.lfmmi import train_lfmmi


def recognise_for_chain(run: Run, teacher: str) -> dict[str, float]:
    """Recognise the unlabelled speech with a network that was trained with LF-MMI (C13)."""
    return recognise_phones(
        model=run.need(teacher),
        normaliser=run.need("fbank/normaliser.json"),
        features=run.need("unlabelled"),
        decoder=network_decoder(run, f"{teacher}/graphs"),
        tuned=run.need(f"decode/{teacher}/tuned.json"),
        lang=network_lang(run),
        senones=Senones.load(run.need(f"{teacher}/graphs")),
        config=run.config.recognised_phones,
        out=run.make("recognised_phones"),
        jobs=run.jobs,
        progress=run.progress,
        device=run.device,
    )


def train_on_recognised_phones(
    run: Run, system: str, teacher: str, aligner: str, normaliser: Path
) -> dict[str, float]:
    """Train a network with LF-MMI on transcribed and recognised speech, on the teacher's senones.

    Its denominator is estimated on the phones of both; of a recognised utterance on the likeliest.

    Args:
      run: the run of the stage.
      system: name of the network.
      teacher: the network that has recognised.
      aligner: the GMM system that has aligned the transcribed speech.
      normaliser: of the features of both.
    """
    out, features = run.make(system), training_features(run, "fbank")
    stores, phones = transcribed_phones(run, aligner, features)
    store = FeatureStore(run.need("unlabelled"))
    samples = run.setting("recognised_phones.samples")
    recognised = RecognisedPhones(run.need("recognised_phones"), store, samples)
    senones = Senones.load(run.need(f"{teacher}/graphs"))

    def write_denominator() -> None:
        if not (out / DENOMINATOR).exists():
            likeliest = (recognised.load(name).times[0] for name in recognised.ids)
            sentences = [
                *phone_sequences(phones[0]),
                *(times.phones.tolist() for times in likeliest),
            ]
            ngram = phone_ngram(sentences, run.config.lfmmi_student.ngram)
            make_denominator(ngram, senones).save(out / DENOMINATOR)

    ranks.on_rank_zero(write_denominator)
    return train_lfmmi(
        [*stores, store],
        [*phones, recognised],
        senones,
        Denominator.load(out / DENOMINATOR),
        Normaliser.load(normaliser),
        run.config.lfmmi_student,
        out,
        run.device,
        run.progress,
    )
