from toolkit.score.nist.grammar import Grammar, nist_aligner
from toolkit.score.nist.sclite_reports import pra_lines, raw_lines, sgml_lines, sys_lines
from toolkit.score.wer import score

REFS = {"s1-1": "{ a / b } (uh) cat", "s2-1": "c d", "s1-2": "x"}
HYPS = {"s1-1": "b hat", "s2-1": "c e d", "s1-2": 'x"'}


def score_texts():
    speakers = {id: id[:2] for id in REFS}
    return score(REFS, HYPS, speakers=speakers, aligner=nist_aligner(Grammar(optional=True)))


def test_sgml_has_a_step_per_cell():
    lines = list(sgml_lines(score_texts(), "hyp"))
    assert [line for line in lines if line[1] == ","] == [
        'C,"b","b":C,"(uh)","":S,"cat","hat"',
        'S,"x","x\'"',
        'C,"c","c":I,,"e":C,"d","d"',
    ]
    assert [line for line in lines if line.startswith("<SPEAKER")] == [
        '<SPEAKER id="s1">',
        '<SPEAKER id="s2">',
    ]
    assert '<PATH id="(s2-1)" word_cnt="3" sequence="2" case_sense="1">' in lines


def test_alignments_stand_in_columns():
    lines = list(pra_lines(score_texts(), "hyp"))
    at = lines.index("id: (s1-1)")
    assert lines[at + 1] == "Scores: (#C #S #D #I) 2 1 0 0"
    assert lines[at + 3 : at + 6] == [
        "REF:  b (uh) cat ",
        "HYP:  b      hat ",
        "Eval:        S   ",
    ]
    at = lines.index("id: (s2-1)")
    assert lines[at + 3 : at + 6] == ["REF:  c * d ", "HYP:  c e d ", "Eval:   I   "]


def fields(line):
    return line.replace("|", " ").split()


def test_tables_have_counts_and_percentages_by_speaker():
    raw = [fields(line) for line in raw_lines(score_texts(), "hyp")]
    assert ["s1", "2", "4", "2", "2", "0", "0", "2", "2"] in raw
    assert ["Sum", "3", "6", "4", "2", "0", "1", "3", "3"] in raw
    percent = [fields(line) for line in sys_lines(score_texts(), "hyp")]
    assert ["Sum/Avg", "3", "6", "66.7", "33.3", "0.0", "16.7", "50.0", "100.0"] in percent
    assert ["Median", "1.5", "3.0", "75.0", "25.0", "0.0", "25.0", "50.0", "100.0"] in percent
