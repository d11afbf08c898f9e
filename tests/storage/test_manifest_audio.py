"""Audio files that the cuts of a manifest name."""

import json

from toolkit.storage.digests import audio_names


def cut(*sources, **custom):
    recording = {"sources": [{"type": kind, "source": source} for kind, source in sources]}
    return json.dumps({"id": "u", "recording": recording, "custom": custom or None})


def test_files_are_named_once_in_order_and_commands_not_at_all(tmp_path):
    path = tmp_path / "train.jsonl"
    lines = [
        cut(("file", "{corpus.root}/b.wav")),
        cut(("file", "/a.wav"), ("command", "/bin/touch x"), ("file", "touch x |")),
        cut(("file", "/a.wav"), components={"speech": "{run}/c.wav"}),
        "{",
        "[1]",
    ]
    path.write_text("\n".join(lines))
    assert audio_names(path) == ["/a.wav", "{corpus.root}/b.wav", "{run}/c.wav"]
