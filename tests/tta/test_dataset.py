import pytest

from toolkit.tta.config import Dataset, DatasetError, read_dataset
from toolkit.tta.page import dataset_box

TEXT = "name: A & B\nutterances: continuous\nspeakers: independent\nvocabulary: very large\n"


def test_a_descriptor_marks_one_value_on_each_axis(tmp_path):
    path = tmp_path / "dataset.yaml"
    path.write_text(TEXT + "noise: low\nhours: 960\nkept: 99 % of training\n")
    dataset = read_dataset(path)
    assert dataset.hours == 960
    text = dataset_box(dataset)
    assert "A &amp; B" in text
    assert text.count('class="here"') == 4
    for value in ("continuous", "independent", "very large", "low"):
        assert f'<li class="here">{value}</li>' in text
    assert "960 h of training speech; kept: 99 % of training" in text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (TEXT.replace("continuous", "loud"), "`utterances` is 'loud' but must be 'isolated'"),
        (TEXT + "nose: low\n", "unknown key `nose`; did you mean `noise`"),
        ("name: x\n", "missing"),
        ("words", "expected `key: value`"),
        ("a: [", "not plain YAML"),
    ],
)
def test_faults_name_the_file(tmp_path, text, message):
    path = tmp_path / "dataset.yaml"
    path.write_text(text)
    with pytest.raises(DatasetError, match=r"dataset\.yaml") as caught:
        read_dataset(path)
    assert message in str(caught.value)


def test_axes_go_from_easy_to_hard():
    from toolkit.tta.config import AXES

    easiest = Dataset("x", *(values[0] for _, values in AXES.values()))
    assert dataset_box(easiest).count('class="here"') == 4
