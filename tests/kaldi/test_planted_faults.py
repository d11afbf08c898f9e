"""Faults of a data directory, with the verdict of Kaldi's validate_data_dir.sh --no-feats.

If KALDI_UTILS names the folder utils/ of a Kaldi recipe, the script itself runs too.
"""

import os
import subprocess

import pytest

from toolkit.kaldi.validate import data_dir_faults

GOOD = {
    "utt2spk": "a-1 a\na-2 a\nb-1 b\n",
    "spk2utt": "a a-1 a-2\nb b-1\n",
    "text": "a-1 X\na-2 Y Z\nb-1 X\n",
    "wav.scp": "r1 /x.wav\nr2 flac -c -d -s y.flac |\n",
    "segments": "a-1 r1 0 1.5\na-2 r1 1.5 2e1\nb-1 r2 0.00 1\n",
}
ACCEPTED, REFUSED = True, False
PLANTED = [
    # (what, file, content or None for no such file, verdict)
    ("nothing", "text", GOOD["text"], ACCEPTED),
    # utt2spk and spk2utt
    ("no utt2spk", "utt2spk", None, REFUSED),
    ("no spk2utt", "spk2utt", None, REFUSED),
    ("empty utt2spk", "utt2spk", "", REFUSED),
    ("utterance without a speaker", "utt2spk", "a-1 a\na-2\nb-1 b\n", REFUSED),
    ("utterance with two speakers", "utt2spk", "a-1 a\na-2 a x\nb-1 b\n", REFUSED),
    ("utt2spk out of order", "utt2spk", "a-1 a\nb-1 b\na-2 a\n", REFUSED),
    ("utterance twice", "utt2spk", "a-1 a\na-1 a\nb-1 b\n", REFUSED),
    ("speakers out of order", "utt2spk", "a-1 b\na-2 b\nb-1 a\n", REFUSED),
    ("utt2spk without a last newline", "utt2spk", "a-1 a\na-2 a\nb-1 b", REFUSED),
    ("tabs in utt2spk", "utt2spk", "a-1\ta\na-2\ta\nb-1\tb\n", ACCEPTED),
    ("two blanks in one line of utt2spk", "utt2spk", "a-1  a\na-2 a\nb-1 b\n", ACCEPTED),
    ("CRLF in utt2spk", "utt2spk", "a-1 a\r\na-2 a\r\nb-1 b\r\n", REFUSED),
    ("CRLF in spk2utt", "spk2utt", "a a-1 a-2\r\nb b-1\r\n", ACCEPTED),
    ("spk2utt lacks an utterance", "spk2utt", "a a-1\nb b-1\n", REFUSED),
    ("spk2utt in another order", "spk2utt", "a a-2 a-1\nb b-1\n", REFUSED),
    ("speaker without utterances", "spk2utt", "a a-1 a-2\nb b-1\nc\n", ACCEPTED),
    ("speaker without utterances in the middle", "spk2utt", "a a-1 a-2\nab\nb b-1\n", REFUSED),
    ("spk2utt out of order", "spk2utt", "b b-1\na a-1 a-2\n", REFUSED),
    # text
    ("no text", "text", None, REFUSED),
    ("empty text", "text", "", REFUSED),
    ("text lacks an utterance", "text", "a-1 X\nb-1 X\n", REFUSED),
    ("text has one more utterance", "text", "a-1 X\na-2 Y\na-3 Z\nb-1 X\n", REFUSED),
    ("empty transcript", "text", "a-1 X\na-2\nb-1 X\n", ACCEPTED),
    ("transcript of a blank", "text", "a-1 X\na-2 \nb-1 X\n", ACCEPTED),
    ("CRLF in text", "text", "a-1 X\r\na-2 Y\r\nb-1 X\r\n", REFUSED),
    ("no-break space in text", "text", "a-1 X\na-2 Y\u00a0Z\nb-1 X\n", REFUSED),
    ("ideographic space in text", "text", "a-1 X\na-2 Y\u3000Z\nb-1 X\n", REFUSED),
    ("line separator in text", "text", "a-1 X\na-2 Y\u2028Z\nb-1 X\n", REFUSED),
    ("next line in text", "text", "a-1 X\na-2 Y\u0085Z\nb-1 X\n", REFUSED),
    ("vertical tab in text", "text", "a-1 X\na-2 Y\vZ\nb-1 X\n", REFUSED),
    ("control character in text", "text", "a-1 X\na-2 Y\x07Z\nb-1 X\n", REFUSED),
    ("zero-width space in text", "text", "a-1 X\na-2 Y\u200bZ\nb-1 X\n", ACCEPTED),
    ("decomposed letter in text", "text", "a-1 X\na-2 e\u0301\nb-1 X\n", ACCEPTED),
    ("tab in text", "text", "a-1\tX\na-2 Y\tZ\nb-1 X\n", ACCEPTED),
    ("Latin-1 in text", "text", b"a-1 X\na-2 \xe9\nb-1 X\n", ACCEPTED),
    ("<s> in text", "text", "a-1 X\na-2 <s> Y\nb-1 X\n", REFUSED),
    ("</s> beside a comma", "text", "a-1 X\na-2 Y,</s>\nb-1 X\n", REFUSED),
    ("#0 in text", "text", "a-1 X\na-2 #0\nb-1 X\n", REFUSED),
    ("#00 in text", "text", "a-1 X\na-2 #00 x<s>\nb-1 X\n", ACCEPTED),
    ("blank line in text", "text", "a-1 X\n\na-2 Y\nb-1 X\n", REFUSED),
    ("text without a last newline", "text", "a-1 X\na-2 Y\nb-1 X", REFUSED),
    ("text out of order", "text", "a-2 Y\na-1 X\nb-1 X\n", REFUSED),
    # wav.scp and segments
    ("no wav.scp", "wav.scp", None, REFUSED),
    ("recording without a file", "wav.scp", "r1\nr2 y.wav\n", ACCEPTED),
    ("path in a home", "wav.scp", "r1 ~/x.wav\nr2 y.wav\n", REFUSED),
    ("tilde inside a command", "wav.scp", "r1 cat ~/x.wav |\nr2 y.wav\n", ACCEPTED),
    ("wav.scp lacks a recording", "wav.scp", "r1 x.wav\n", REFUSED),
    ("wav.scp has one more recording", "wav.scp", "r1 x.wav\nr2 y.wav\nr3 z.wav\n", REFUSED),
    ("recording twice", "wav.scp", "r1 x.wav\nr1 x.wav\nr2 y.wav\n", REFUSED),
    ("no segments", "segments", None, REFUSED),
    ("end before start", "segments", "a-1 r1 0 1\na-2 r1 2 1\nb-1 r2 0 1\n", REFUSED),
    ("end of -1", "segments", "a-1 r1 0 1\na-2 r1 0 -1\nb-1 r2 0 1\n", REFUSED),
    ("nothing between start and end", "segments", "a-1 r1 0 1\na-2 r1 1 1\nb-1 r2 0 1\n", REFUSED),
    ("end in words", "segments", "a-1 r1 0 1\na-2 r1 0 x\nb-1 r2 0 1\n", ACCEPTED),
    ("segment with a channel", "segments", "a-1 r1 0 1\na-2 r1 1 2 A\nb-1 r2 0 1\n", REFUSED),
    ("segments lack an utterance", "segments", "a-1 r1 0 1\nb-1 r2 0 1\n", REFUSED),
    ("segment of no recording", "segments", "a-1 r1 0 1\na-2 r3 0 1\nb-1 r2 0 1\n", REFUSED),
    # what is there only sometimes
    ("channels A and 1", "reco2file_and_channel", "r1 f A\nr2 f 1\n", ACCEPTED),
    ("channel C", "reco2file_and_channel", "r1 f A\nr2 f C\n", REFUSED),
    ("channels of utterances", "reco2file_and_channel", "a-1 f A\na-2 f A\nb-1 f A\n", REFUSED),
    ("genders", "spk2gender", "a m\nb f\n", ACCEPTED),
    ("gender x", "spk2gender", "a m\nb x\n", REFUSED),
    ("gender in capitals", "spk2gender", "a M\nb F\n", REFUSED),
    ("gender of one speaker", "spk2gender", "a m\n", REFUSED),
    ("warps", "spk2warp", "a 0.9\nb 1.2\n", ACCEPTED),
    ("warp of 1.5", "spk2warp", "a 0.9\nb 1.5\n", REFUSED),
    ("warp in words", "spk2warp", "a 0.9\nb no\n", REFUSED),
    ("utt2warp lacks an utterance", "utt2warp", "a-1 1\nb-1 1\n", REFUSED),
    ("utt2warp with all", "utt2warp", "a-1 1\na-2 0.9\nb-1 1.1\n", ACCEPTED),
    ("duration of 0", "utt2dur", "a-1 1.5\na-2 0\nb-1 1\n", REFUSED),
    ("duration in words", "utt2dur", "a-1 1.5\na-2 long\nb-1 1\n", ACCEPTED),
    ("duration missing", "utt2dur", "a-1 1.5\na-2\nb-1 1\n", REFUSED),
    ("half a frame", "utt2num_frames", "a-1 100\na-2 1.5\nb-1 9\n", REFUSED),
    ("frames in words", "utt2num_frames", "a-1 100\na-2 many\nb-1 9\n", REFUSED),
    ("recording's length missing", "reco2dur", "r1 20\n", REFUSED),
    ("recordings' lengths", "reco2dur", "r1 20\nr2 1e1\n", ACCEPTED),
    ("features of one utterance", "feats.scp", "a-1 x.ark:3\n", REFUSED),
    ("empty feats.scp", "feats.scp", "", REFUSED),
    ("normalisation of no speaker", "cmvn.scp", "a x.ark:3\nz x.ark:9\n", REFUSED),
    ("vad out of order", "vad.scp", "a-2 x:1\na-1 x:2\nb-1 x:3\n", REFUSED),
    ("languages", "utt2lang", "a-1 en\na-2 en\nb-1 de\n", ACCEPTED),
    ("languages of two", "utt2lang", "a-1 en\na-2 en\n", REFUSED),
]


def write_with_fault(folder, name, content):
    for file, text in {**GOOD, name: content}.items():
        if text is not None:
            (folder / file).write_bytes(text if isinstance(text, bytes) else text.encode())
    return folder


@pytest.mark.parametrize(
    ("name", "content", "accepted"), [row[1:] for row in PLANTED], ids=[row[0] for row in PLANTED]
)
def test_the_verdict_equals_kaldi(tmp_path, name, content, accepted):
    faults = data_dir_faults(write_with_fault(tmp_path, name, content))
    assert (not faults) == accepted, faults
    utils = os.environ.get("KALDI_UTILS")
    if utils:
        command = [f"{utils}/validate_data_dir.sh", "--no-feats", str(tmp_path)]
        result = subprocess.run(command, cwd=f"{utils}/..", check=False, capture_output=True)
        # It ends with 0 after `has wrong format` too.
        assert (b"Successfully validated" in result.stdout) == accepted, result.stdout


def test_at_least_sixty_faults_are_planted():
    assert len(PLANTED) >= 60
    assert len({row[0] for row in PLANTED}) == len(PLANTED)
