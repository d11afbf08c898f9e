"""The hypotheses of a run as the page scores them."""

import pytest

from toolkit.report.run_data import read_decodes, read_splits
from toolkit.report.run_folder import RunFolder
from toolkit.score.results import read_results


def read(made_up):
    run = RunFolder.open(made_up.root)
    return {decode.name: decode for decode in read_decodes(run, read_splits(run))}


def test_an_utterance_that_no_system_has_decoded_does_not_count(made_up):
    """Its features could not be extracted; the recipe's results are without it too."""
    whole = list(made_up.texts)
    made_up.data()
    made_up.texts = tuple(whole[:3])
    for system in ("mono", "tri"):
        made_up.decode(system, splits=("dev",))
    (row,) = read_results(made_up.root / "decode/mono/rows.json")
    found = read(made_up)
    for system in ("mono", "tri"):
        score = found[system].score
        assert [u.id for u in score.utterances] == ["dev-0", "dev-1", "dev-2"]
        assert score.percent == pytest.approx(row.wer, abs=0.005)


def test_what_one_system_lacks_are_its_errors(made_up):
    made_up.data()
    for system in ("mono", "tri"):
        made_up.decode(system, splits=("dev",))
    path = made_up.root / "decode/tri/dev/text"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[1:]))
    found = read(made_up)
    assert len(found["mono"].score.utterances) == len(found["tri"].score.utterances) == 4
    assert found["tri"].by_id["dev-0"].errors == len(made_up.texts[0].split())
