from toolkit.corpus.manifest import text_of
from toolkit.corpus.pairing import AudioSegment, pair


def pairs(texts, audio):
    return pair(texts, audio, lambda id, path: path.parent.name if path else "?", "text")


def test_partners_meet_in_any_order(audio, tmp_path):
    files = [
        (name, AudioSegment(str(audio(tmp_path / "spk" / f"{name}.wav", seed=ord(name)))))
        for name in "ba"
    ]
    cuts = pairs([("a", "one"), ("b", "two")], files)
    assert [(cut.id, text_of(cut), cut.custom) for cut in cuts] == [
        ("a", "one", None),
        ("b", "two", None),
    ]
    assert cuts[0].supervisions[0].speaker == "spk"


def test_an_item_without_a_partner_is_a_fault(audio, tmp_path):
    path = audio(tmp_path / "b.wav")
    cuts = pairs(
        [("a", "one")],
        [("b", AudioSegment(str(path))), ("c", AudioSegment(str(tmp_path / "c.wav")))],
    )
    faults = {cut.id: cut.custom["fault"] for cut in cuts}
    assert faults == {"a": "missing-audio", "b": "missing-transcript", "c": "missing-audio"}


def test_copies_on_either_side_stay(audio, tmp_path):
    first, second = (AudioSegment(str(audio(tmp_path / f"{n}.wav", seed=n))) for n in range(2))
    for texts, files, expected in (
        (["x", "y"], [first], [("x", first.path), ("y", first.path)]),
        (["x"], [first, second], [("x", first.path), ("x", second.path)]),
        (["x", "y"], [first, second], [("x", first.path), ("y", second.path)]),
    ):
        cuts = pairs([("a", text) for text in texts], [("a", file) for file in files])
        assert [(text_of(cut), cut.recording.sources[0].source) for cut in cuts] == expected


def test_segments_share_a_recording(audio, tmp_path):
    path = str(audio(tmp_path / "r.wav", seconds=2.0))
    cuts = pairs(
        [("u1", "a"), ("u2", "b")],
        [("u1", AudioSegment(path, 0.0, 1.0, "r")), ("u2", AudioSegment(path, 1.0, -1, "r"))],
    )
    assert cuts[0].recording is cuts[1].recording
    assert [(cut.start, cut.end) for cut in cuts] == [(0.0, 1.0), (1.0, 2.0)]


def test_a_faulty_source_is_never_touched():
    command = "x" * 5000 + " |"
    (cut,) = pairs([("a", "one")], [("a", AudioSegment(command, fault=("refused-pipe", "no")))])
    assert cut.custom["fault"] == "refused-pipe"
    assert cut.recording.sources[0].source == command
