"""The messages between a client and the server; docs/packages/serve.md describes them.

A client is told the format (`hello`), declares that of its audio (`begin`), sends samples as binary
messages, and asks for the last words (`end`). It gets `partial` and `final` results, then `done`,
or `error` at any time.
"""

import json
from dataclasses import asdict, dataclass
from typing import Any

from toolkit.config.fields import Positive, PositiveInt, Settings
from toolkit.decode.formats import plain_word
from toolkit.decode.stream import StreamResult
from toolkit.errors import ToolkitError
from toolkit.storage.reading import DAMAGE_ERRORS, quoted, reason, validated

POLICY, TOO_BIG, BUSY = 1008, 1009, 1013
"""Close codes of RFC 6455: against the rules, a message too big, try again later."""
LONGEST_REASON = 123
"""Bytes that a close frame has room for."""


class RefusedError(ToolkitError):
    """A client broke the rules; the message is sent to it.

    Args:
      message: why it is refused.
      code: the close code.
    """

    def __init__(self, message: str, code: int = POLICY) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True)
class Limits(Settings):
    """What a client may do before it is refused; times in seconds."""

    clients: PositiveInt = 10
    """Number of clients at the same time."""
    longest: Positive = 3600.0
    """Length of a stream, of its audio and of its time on the clock."""
    frame_bytes: PositiveInt = 65536
    """Size of a message; 2 s of audio at 16 kHz."""
    ahead: Positive = 5.0
    """How far the audio may be ahead of real time, counted from the connection on. A client that is
    late, such as after a pause of the network, may catch up at any speed."""
    idle: Positive = 30.0
    """Time without a message, and longest time in which a client may leave results unread."""


@dataclass(frozen=True)
class AudioFormat:
    """The only format of samples that a server takes."""

    rate: int
    """Hz."""
    format: str = "s16le"
    """16 bits, signed, little-endian."""
    channels: int = 1
    """Channels; one."""

    def __str__(self) -> str:
        return f"{self.format}, {self.rate} Hz, channels: {self.channels}"

    def check(self, message: str | bytes) -> None:
        """Check that a client's first message declares this format.

        Raises:
          RefusedError: it does not.
        """
        declared = _of_type(message, "begin", {"rate": int, "format": str, "channels": int})
        client_format = AudioFormat(*(declared[name] for name in ("rate", "format", "channels")))
        if client_format != self:
            raise RefusedError(f"audio must be {self}; not {quoted(str(client_format))}")


def check_end(message: str | bytes) -> None:
    """Check that a message of text asks for the end of the stream.

    Raises:
      RefusedError: it does not.
    """
    _of_type(message, "end", {})


def samples_of(message: bytes) -> int:
    """Return how many samples a message holds.

    Raises:
      RefusedError: it holds a part of one.
    """
    if len(message) % 2:
        raise RefusedError(f"{len(message)} bytes are not a whole number of 16-bit samples")
    return len(message) // 2


def hello(audio: AudioFormat, system: str) -> str:
    """Return the server's first message."""
    return _message("hello", **asdict(audio), system=system)


def result_message(result: StreamResult) -> str:
    """Return the message of a partial or final result; times are rounded to milliseconds."""
    spoken = {"text": result.text, "start": round(result.start, 3), "end": round(result.end, 3)}
    if result.final is None:
        return _message("partial", **spoken)
    words = [plain_word(word) for word in result.final.words or ()]
    return _message("final", **spoken, words=words)


def done(seconds: float) -> str:
    """Return the last message: seconds of audio that were recognised."""
    return _message("done", seconds=round(seconds, 3))


def error(message: str) -> str:
    """Return the message that says why the server ends the stream."""
    return _message("error", reason=message)


def close_reason(message: str) -> str:
    """Return as much of a reason as a close frame has room for."""
    return message.encode()[:LONGEST_REASON].decode(errors="ignore")


def _message(kind: str, **fields: Any) -> str:
    return json.dumps({"type": kind, **fields}, ensure_ascii=False)


def _of_type(message: str | bytes, kind: str, schema: dict[str, Any]) -> dict[str, Any]:
    """Return a message of text as plain data."""
    if isinstance(message, bytes):
        raise RefusedError(f'samples came before the message of type "{kind}"')
    try:
        content = validated(json.loads(message), {"type": str, **schema}, "the message")
    except DAMAGE_ERRORS as cause:
        raise RefusedError(f'no message of type "{kind}": {reason(cause)}') from cause
    if content["type"] != kind:
        raise RefusedError(f'expected a message of type "{kind}", not {quoted(content["type"])}')
    return content
