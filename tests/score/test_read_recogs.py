import pytest
from click.testing import CliRunner

from toolkit import cli
from toolkit.score.inputs import InputReader
from toolkit.score.transcripts import TranscriptError, read_transcripts

RECOGS = """1089-134686-0000-0:\tref=['HE', "ISN'T", 'HERE']
1089-134686-0000-0:\thyp=['HE', "ISN'T"]
1089-134686-0000-0:\ttimestamp_hyp=[0.1, 0.5]

a b-1:\tref=[]
a b-1:\thyp=('NO', 'ONE')
"""


@pytest.fixture
def write(tmp_path):
    def write(text):
        path = tmp_path / "recogs-test-clean-epoch-1-avg-1.txt"
        path.write_text(text)
        return path

    return write


@pytest.mark.parametrize("form", ["auto", "icefall"])
def test_a_file_has_references_and_hypotheses(write, form):
    sides = InputReader(form).read(write(RECOGS), write(RECOGS))
    assert sides.refs == {"1089-134686-0000-0": "HE ISN'T HERE", "a b-1": ""}
    assert sides.hyps == {"1089-134686-0000-0": "HE ISN'T", "a b-1": "NO ONE"}


def test_the_rate_is_icefalls(write):
    """Three words: one is deleted, two are inserted."""
    path = str(write(RECOGS))
    result = CliRunner().invoke(cli.main, ["score", "--ref", path, "--hyp", path])
    assert "%WER 100.00 [ 3 / 3, 2 ins, 1 del, 0 sub ]" in result.output


def test_words_end_only_at_ascii_space(write):
    transcripts = read_transcripts(write("a:\thyp=['A\u00a0B', 'C']\n"), side="hyp")
    assert transcripts.texts == {"a": "A\u00a0B C"}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("a:\thyp=['A'", "recogs.*:1: .* is not a list of words"),
        ("a:\thyp=[__import__('os').getcwd()]", "recogs.*:1: .* is not a list of words"),
        ("a:\thyp=[1]", "recogs.*:1: .* is not a list of words"),
        ("a:\thyp=['A']\na:\thyp=['A']", "recogs.*:2: 'a' has a second line `hyp=`"),
        ("a hyp=['A']", "recogs.*:1: neither"),
    ],
)
def test_malformed_lines_are_named(write, line, message):
    with pytest.raises(TranscriptError, match=message):
        read_transcripts(write(line + "\n"), "icefall", side="hyp")


def test_similar_looking_text_is_read_as_kaldis(write):
    transcripts = read_transcripts(write("u-1: ref=[ A ]\nu-2: hyp=[ B ]\n"))
    assert (transcripts.form, transcripts.texts["u-1:"]) == ("text", "ref=[ A ]")
