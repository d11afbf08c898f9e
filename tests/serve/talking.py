"""A server in a thread, a recogniser that names the pitch of tones, and a client."""

import asyncio
import json
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch

pytest.importorskip("websockets", minversion="16")
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from toolkit.align.ctm_textgrid import TimedToken
from toolkit.decode.decoded import DecodedUtterance
from toolkit.decode.stream import StreamResult
from toolkit.serve.protocol import Limits
from toolkit.serve.server import ServeConfig, Server

RATE = 16000
BEGIN = {"type": "begin", "rate": RATE, "format": "s16le", "channels": 1}
END = {"type": "end"}


def tones(*pitches, rate=RATE, seconds=0.5):
    """Tones in Hz with pauses around them: samples [S] int16."""
    time = np.arange(round(seconds * rate)) / rate
    parts = [np.zeros(len(time))]
    for pitch in pitches:
        parts += [0.5 * np.sin(2 * np.pi * pitch * time), np.zeros(len(time))]
    return np.round(32767 * np.concatenate(parts)).astype(np.int16)


class Tones:
    """A model whose words are the pitches of tones in Hz, to the next hundred."""

    sampling_rate = RATE

    def stream(self, endpoint, details):
        return ToneStream()


class ToneStream:
    def __init__(self):
        self.begin = self.end = 0.0
        self.heard = torch.zeros(0)

    def push(self, samples):
        self.end = round(self.end + len(samples) / RATE, 6)
        if samples.abs().mean() > 0.1:
            self.heard = torch.cat([self.heard, samples])
        elif len(self.heard):
            return self.finish()
        return StreamResult("tone" * bool(len(self.heard)), None, self.begin, self.end, None)

    def finish(self):
        text, words = "", ()
        if len(self.heard) >= 2000:  # not the edge of one
            spectrum = torch.fft.rfft(self.heard).abs()
            pitch = RATE * int(spectrum.argmax()) / len(self.heard)
            text = str(100 * round(pitch / 100))
            words = (TimedToken(text, self.begin, self.end, 0.9),)
        result = StreamResult(text, DecodedUtterance(text, words), self.begin, self.end, None)
        self.begin, self.heard = self.end, torch.zeros(0)
        return result


@contextmanager
def serving(model, log_lines=None, endpoint=None, **limits):
    """Run a server on a free port in a thread; yield the address of its page."""
    config = ServeConfig(port=0, limits=Limits(**{"ahead": 1e6, **limits}))
    log_lines = [] if log_lines is None else log_lines
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    def wait_for(coroutine):
        return asyncio.run_coroutine_threadsafe(coroutine, loop).result()

    try:
        listening = Server(model, endpoint, "tones", config, log_lines.append).listening()
        address = wait_for(listening.__aenter__())
        try:
            yield address
        finally:
            wait_for(listening.__aexit__(None, None, None))
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


@dataclass
class Talk:
    """Messages that a client received."""

    messages: list[dict] = field(default_factory=list)
    code: int | None = None
    reason: str = ""

    def of_type(self, kind):
        return [message for message in self.messages if message["type"] == kind]

    @property
    def texts(self):
        return [message["text"] for message in self.of_type("final") if message["text"]]


def talk(address, *messages, origin=None):
    """Send messages (bytes or JSON values) and read until the server closes."""
    conversation = Talk()
    with connect(f"{address.replace('http', 'ws')}stream", origin=origin) as connection:
        thread = threading.Thread(target=listen, args=(connection, conversation))
        thread.start()
        try:
            for message in messages:
                is_encoded = isinstance(message, bytes | str)
                connection.send(message if is_encoded else json.dumps(message))
        except ConnectionClosed:
            pass  # it has been refused
        thread.join()
    return conversation


def listen(connection, conversation):
    try:
        while True:
            conversation.messages.append(json.loads(connection.recv()))
    except ConnectionClosed as closed:
        if closed.rcvd is not None:
            conversation.code, conversation.reason = closed.rcvd.code, closed.rcvd.reason


def frames(samples, size=1600):
    """Return samples [S] int16 as messages."""
    return [samples[at : at + size].tobytes() for at in range(0, len(samples), size)]
