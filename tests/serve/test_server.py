"""Clients of a server: words, limits and messages."""

import json
import socket
import struct
import threading
from concurrent.futures import ThreadPoolExecutor
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import numpy as np
import pytest
import soundfile
from click.testing import CliRunner

pytest.importorskip("websockets", minversion="16")

from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from tests.decode.conftest import Recogniser as Words
from tests.decode.conftest import make_bundle
from tests.serve.talking import BEGIN, END, Tones, ToneStream, frames, serving, talk, tones
from toolkit.cli import main
from toolkit.decode.config import EndpointConfig
from toolkit.decode.recogniser import load_recogniser
from toolkit.processes.devices import one_thread


@pytest.fixture(scope="module")
def tone_server():
    """The address of a server that names tones."""
    with serving(Tones()) as address:
        yield address


def speak(address, samples, size=1600):
    return talk(address, BEGIN, *frames(samples, size), END)


def test_words_come_while_they_are_spoken_and_when_they_are_final(tone_server):
    conversation = speak(tone_server, tones(500, 2000))
    first, *later = conversation.messages
    assert first == {**BEGIN, "type": "hello", "system": "tones"}
    assert [message["text"] for message in conversation.of_type("final")] == ["500", "2000", ""]
    final = conversation.of_type("final")[0]
    assert (final["start"], final["end"]) == (0.0, 1.1)
    assert final["words"] == [{"word": "500", "start": 0.0, "end": 1.1, "confidence": 0.9}]
    partials = [message["text"] for message in later if message["type"] == "partial"]
    assert partials.count("tone") == 10
    assert later[-1] == {"type": "done", "seconds": 2.5}
    assert conversation.code == 1000


@pytest.mark.parametrize("size", [1, 77, 1600, 5000, 32768])
def test_the_words_do_not_depend_on_the_messages(tone_server, size):
    samples = tones(700, 1200)[: -100 if size > 1 else 300]
    finals = speak(tone_server, samples, size).of_type("final")
    assert finals == speak(tone_server, samples).of_type("final")


@pytest.fixture(scope="module")
def babble():
    """Noise whose colour and loudness change every tenth of a second, samples [S] int16."""
    random = np.random.default_rng(1)
    parts = []
    for _ in range(50):
        width, level = random.integers(1, 30, 2)
        smooth = np.convolve(random.normal(size=1600), np.ones(width) / width, "same")
        parts.append(32768 * smooth * level / 60)
    return np.round(np.concatenate(parts)).clip(-32768, 32767).astype(np.int16)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    folder = tmp_path_factory.mktemp("serve")
    return make_bundle(Words(folder), folder / "bundle")


def test_ten_clients_at_once_get_the_words_of_transcribe_stream(bundle, babble, tmp_path):
    path = tmp_path / "a.wav"
    soundfile.write(path, babble, 16000)
    command = ["transcribe", "--model", bundle, "--stream", "--format", "json", "--endpoint", "0.2"]
    printed = CliRunner().invoke(main, [*map(str, command), str(path)]).stdout
    lines = [json.loads(line) for line in printed.splitlines()]
    expected = [
        {key: line[key] for key in ("text", "start", "end", "words")}
        for line in lines
        if line["final"]
    ]
    assert len(expected) > 1
    assert any(line["words"] for line in expected)
    with one_thread():
        model = load_recogniser(bundle)
        model.warm_up()
        with (
            serving(model, endpoint=EndpointConfig(0.2)) as address,
            ThreadPoolExecutor(10) as clients,
        ):
            sizes = [400 * (n + 1) for n in range(10)]
            conversations = list(clients.map(lambda size: speak(address, babble, size), sizes))
    for conversation in conversations:
        results = conversation.of_type("final")
        assert [
            {k: v for k, v in message.items() if k != "type"} for message in results
        ] == expected
        assert conversation.messages[-1] == {"type": "done", "seconds": 5.0}


AUDIO = tones(500)
PIECE = AUDIO[:1600].tobytes()
TOO_BIG = struct.pack(">H", 1009)
BAD = {
    "no begin": ([PIECE], {}, 1008, 'samples came before the message of type "begin"'),
    "no JSON": (["<html>"], {}, 1008, 'not a valid message of type "begin"'),
    "deep JSON": (["[" * 30000], {}, 1008, 'not a valid message of type "begin"'),
    "other type": ([END], {}, 1008, "not a valid message of type"),
    "lists": ([[1, 2]], {}, 1008, "not a valid message of type"),
    "rate": ([{**BEGIN, "rate": 44100}], {}, 1008, "audio must be s16le, 16000 Hz, channels: 1"),
    "stereo": ([{**BEGIN, "channels": 2}], {}, 1008, "but is 's16le, 16000 Hz, channels: 2'"),
    "floats": ([{**BEGIN, "format": "f32le"}], {}, 1008, "audio must be s16le"),
    "text": ([{**BEGIN, "rate": "16000"}], {}, 1008, "not a valid message of type"),
    "odd": ([BEGIN, PIECE + b"x"], {}, 1008, "3201 bytes ends within a 16-bit sample"),
    "chat": ([BEGIN, PIECE, {"type": "hi"}], {}, 1008, 'expected a message of type "end"'),
    "too fast": ([BEGIN, *[bytes(64000)] * 60], {"ahead": 1.0}, 1008, "ahead of real time"),
    "long": ([BEGIN, *frames(AUDIO)], {"longest": 0.7}, 1008, "a stream may last at most 0.7 s"),
    "big": ([BEGIN, bytes(70000)], {}, 1009, "exceeds"),
    "idle": ([], {"idle": 0.05}, 1008, "no message arrived for 0.05 s"),
}


@pytest.mark.parametrize("kind", BAD)
def test_a_client_that_breaks_a_rule_gets_the_reason(kind):
    messages, limits, code, reason = BAD[kind]
    lines = []
    with serving(Tones(), lines, **limits) as address:
        conversation = talk(address, *messages)
    assert conversation.code == code
    errors = [message["reason"] for message in conversation.of_type("error")]
    assert reason in (errors[0] if errors else conversation.reason)
    assert len(errors) == (kind != "big")
    assert "refused" in lines[-1]
    assert conversation.of_type("done") == []


def test_speech_before_the_end_of_a_long_stream_is_not_lost():
    with serving(Tones(), longest=0.95) as address:
        conversation = speak(address, tones(500))
    assert [message["type"] for message in conversation.messages[-2:]] == ["final", "error"]


def test_other_clients_continue_while_some_are_refused():
    middle = len(AUDIO) // 2
    with serving(Tones(), ahead=30) as address:
        stream = f"{address.replace('http', 'ws')}stream"
        with connect(stream) as connection:
            connection.recv()
            connection.send(json.dumps(BEGIN))
            connection.send(AUDIO[:middle].tobytes())
            for messages in (["junk"], [BEGIN, b"x"], [BEGIN, *[bytes(64000)] * 60]):
                assert talk(address, *messages).code == 1008
            assert TOO_BIG in gigabyte(address)
            connection.send(AUDIO[middle:].tobytes())
            connection.send(json.dumps(END))
            replies = [json.loads(message) for message in connection]
    assert next(reply["text"] for reply in replies if reply["type"] == "final") == "500"
    assert replies[-1]["type"] == "done"


def gigabyte(address):
    """Send the beginning of a message of 1 GB; return the server's answer."""
    host, port = address.removeprefix("http://").rstrip("/").split(":")
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(
            f"GET /stream HTTP/1.1\r\nHost: {host}\r\nUpgrade: websocket\r\n"
            "Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
            "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n".encode()
        )
        until(connection, b"hello")
        connection.sendall(b"\x82\xff" + struct.pack(">Q", 2**30) + bytes(4 + 1000))
        return until(connection, TOO_BIG)


def until(connection, expected):
    """Read from a socket until `expected` has come, or to its end."""
    answer = b""
    while expected not in answer and (more := connection.recv(4096)):
        answer += more
    return answer


def test_requests_that_are_not_http_are_answered_or_dropped(tone_server):
    host, port = tone_server.removeprefix("http://").rstrip("/").split(":")
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(bytes(range(256)) * 40)
        connection.shutdown(socket.SHUT_WR)
        try:
            answer = b"".join(iter(lambda: connection.recv(4096), b""))
        except ConnectionError:
            answer = b""
    assert b" 101 " not in answer
    assert speak(tone_server, AUDIO).texts == ["500"]


def test_the_reason_of_a_client_that_leaves_is_not_shown():
    lines = []
    with (
        serving(Tones(), lines) as address,
        connect(f"{address.replace('http', 'ws')}stream") as connection,
    ):
        connection.recv()
        connection.close(1000, "\x1b[31mred\nclient 2: done")
    assert len(lines) == 1
    assert lines[0].endswith(" 0.0 s of audio, disconnected")


def test_clients_beyond_the_limit_are_refused_until_one_has_left():
    with serving(Tones(), clients=1) as address:
        with connect(f"{address.replace('http', 'ws')}stream") as first:
            first.recv()
            conversation = talk(address)
            assert conversation.code == 1013
            assert "try again later" in conversation.of_type("error")[0]["reason"]
            first.send(json.dumps(BEGIN))
            first.send(json.dumps(END))
            assert [json.loads(message)["type"] for message in first][-1] == "done"
        assert until_free(address).texts == ["500"]


def until_free(address):
    """Talk as soon as the server has counted out the previous client."""
    while (conversation := speak(address, AUDIO)).code == 1013:
        pass
    return conversation


class Broken(Tones):
    """Fails on a loud sample."""

    def stream(self, endpoint, details):
        stream = ToneStream()
        push = stream.push

        def fail(samples):
            if samples.max() > 0.9:
                raise RuntimeError("a bug")
            return push(samples)

        stream.push = fail
        return stream


def test_a_fault_of_the_recogniser_ends_only_its_stream():
    lines = []
    with serving(Broken(), lines) as address:
        conversation = speak(address, np.full(3200, 32000, np.int16))
        assert conversation.code == 1011
        assert "the server failed" in conversation.of_type("error")[0]["reason"]
        assert "a bug" in lines[0]
        assert speak(address, AUDIO).texts == ["500"]


def test_too_little_audio_is_an_error_message():
    class Short(Tones):
        def stream(self, endpoint, details):
            from toolkit.features.frontend import FrontendError

            stream = ToneStream()

            def finish():
                raise FrontendError("0 samples are fewer than one window of 400")

            stream.finish = finish
            return stream

    with serving(Short()) as address:
        conversation = talk(address, BEGIN, END)
    assert conversation.of_type("error")[0]["reason"].startswith("too little audio: 0 samples")


def test_clients_are_told_when_the_server_ends():
    with serving(Tones()) as address:
        connection = connect(f"{address.replace('http', 'ws')}stream")
        connection.recv()
        closed = threading.Thread(target=lambda: list(connection))
        closed.start()
    closed.join()
    assert connection.close_code == 1001


def test_pages_of_other_sites_are_refused(tone_server):
    host = tone_server.removeprefix("http://").rstrip("/")
    for origin in ("http://evil.example", "https://evil.example", "null", f"http://{host}.evil"):
        with pytest.raises(InvalidStatus) as refused:
            talk(tone_server, origin=origin)
        assert refused.value.response.status_code == 403
        assert b"Origin header names another site" in refused.value.response.body
    conversation = talk(tone_server, BEGIN, *frames(AUDIO), END, origin=f"http://{host}")
    assert conversation.texts == ["500"]


def get(address, path="", **headers):
    return urlopen(Request(f"{address}{path}", headers=headers))


def status(address, path="", **headers):
    try:
        with get(address, path, **headers) as answer:
            return answer.status
    except HTTPError as error:
        error.close()
        return error.code


def test_the_page_is_served_only_at_its_address(tone_server):
    for path, kind in (("", "html"), ("page.css", "css"), ("page.js?x=1", "javascript")):
        with get(tone_server, path) as answer:
            assert kind in answer.headers["Content-Type"]
            assert "default-src 'self'" in answer.headers["Content-Security-Policy"]
            assert "frame-ancestors 'none'" in answer.headers["Content-Security-Policy"]
            assert answer.headers["Access-Control-Allow-Origin"] is None
            assert len(answer.read()) > 500
    for path in ("nothing", "../server.py", "%2e%2e/server.py", "page", "__init__.py"):
        assert status(tone_server, path) == 404
    assert status(tone_server, Host="rebound.example") == 403
    assert status(tone_server, Host="localhost:1234") == 200
