"""The server of live recognition: HTTP for its page, WebSockets for streams, and who may connect.

Only pages of this server and the user's own programs may connect. If a page of another site makes
the browser connect to this server, the header `Origin` has that site's address. The header `Host`
has it if a name server has given the site's name the address of this machine (DNS rebinding).
"""

import asyncio
import ipaddress
import logging
import signal
import traceback
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from itertools import count
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

from toolkit.config.fields import Range, Settings
from toolkit.decode.config import EndpointConfig
from toolkit.decode.stream import Recogniser
from toolkit.errors import ToolkitError
from toolkit.serve import protocol
from toolkit.serve.client import Client
from toolkit.serve.protocol import AudioFormat, Limits, RefusedError

LOCAL = "localhost"


@dataclass(frozen=True)
class ServeConfig(Settings):
    """Settings of the server."""

    host: str = "127.0.0.1"
    """Address to listen on. There is no authentication: whoever can reach it can use the server."""
    port: Annotated[int, Range(0, 65535)] = 8000
    """TCP port; 0 selects a free port."""
    threads: Annotated[int, Range(1, 100_000)] = 2
    """Number of recognition threads; streams wait in line for them."""
    limits: Limits = field(default_factory=Limits)
    """Limits for each client."""


def is_loopback(host: str) -> bool:
    """Return whether an address can be reached from this machine only."""
    address = _address(host)
    return host == LOCAL if address is None else address.is_loopback


def refusal(hosts: Sequence[str], origins: Sequence[str], served: str) -> str | None:
    """Return why a request is refused; None if it is not.

    `Host` must be an IP address, which no name server can redirect, or `localhost`, or the name
    that is served; any port is allowed, since it may be forwarded. `Origin` must name that host.
    Programs send no `Origin`; all browsers do when they open a WebSocket.

    Args:
      hosts: all headers `Host` of the request.
      origins: all headers `Origin`.
      served: the address that the server listens on.
    """
    name = _hostname(hosts[0]) if len(hosts) == 1 else None
    if name is None:
        return "the request needs one valid Host header"
    # Another name may be one that DNS rebinding has pointed at this machine.
    if name not in (LOCAL, served.lower()) and _address(name) is None:
        return "the Host header names another server: open the page by address or as localhost"
    if any(origin not in (f"http://{hosts[0]}", f"https://{hosts[0]}") for origin in origins):
        return "the Origin header names another site: its pages may not use this server"
    return None


def _hostname(host: str) -> str | None:
    """Return the name or address in a header `Host`, in lower case, without port and brackets."""
    try:
        parts = urlsplit(f"//{host}")
        valid = parts.netloc == host and "@" not in host and parts.port != 0
        return parts.hostname if valid else None
    except ValueError:
        return None


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Return an IP address; None if the text is not one."""
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


FOLDER = Path(__file__).with_name("page")
TYPES = {
    "/": ("index.html", "text/html"),
    "/page.css": ("page.css", "text/css"),
    "/page.js": ("page.js", "text/javascript"),
    "/recorder.js": ("recorder.js", "text/javascript"),
}
"""File and content type by URL path; no other paths are served."""
HEADERS = {
    "Content-Security-Policy": "default-src 'self'; img-src data:; base-uri 'none';"
    " form-action 'none'; frame-ancestors 'none'",
    "Permissions-Policy": "microphone=(self)",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
"""Headers of every response: the page loads nothing from other sites, and cannot be embedded."""


def read_page_file(path: str) -> tuple[bytes, str] | None:
    """Return content and type of the file at a URL path; None if `TYPES` does not list it.

    A query in the path is ignored. Files are read anew each time, as they are small.
    """
    file_and_type = TYPES.get(path.partition("?")[0])
    if file_and_type is None:
        return None
    name, kind = file_and_type
    return (FOLDER / name).read_bytes(), f"{kind}; charset=utf-8"


try:
    from websockets.asyncio import server as websockets
    from websockets.datastructures import Headers
    from websockets.exceptions import ConnectionClosed
    from websockets.http11 import Request, Response
except ImportError as error:
    raise ToolkitError(
        f"toolkit serve needs the package websockets ({error}): run `pip install 'websockets>=16'`"
    ) from error

PATH = "/stream"
"""URL path of the WebSocket."""
GRACE = 5.0
"""Timeout in seconds of the handshakes at the beginning and end of a connection."""
FAILED = 1011
"""Close code of RFC 6455 for an internal error of the server."""

Report = Callable[[str], None]
"""Called with a line for the person who runs the server."""


class Server:
    """Serves the page by HTTP, and a stream of recognition on each WebSocket.

    Args:
      recogniser: the recogniser, shared by all clients.
      endpoint: rules for the end of an utterance.
      system: the recogniser's name, as the page shows it.
      config: the settings.
      report: called with a line for each client that leaves or is refused.
    """

    def __init__(
        self,
        recogniser: Recogniser,
        endpoint: EndpointConfig,
        system: str,
        config: ServeConfig,
        report: Report,
    ) -> None:
        self._recogniser, self._endpoint = recogniser, endpoint
        self._system, self._config, self._report = system, config, report
        self._audio = AudioFormat(recogniser.sampling_rate)
        self._clients, self._numbers = 0, count(1)
        self._pool = ThreadPoolExecutor(config.threads, "recognise")

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[str]:
        """Serve inside the `async with` block; yields the page's address.

        At the end, clients are told that the server is going away, and recognition in progress is
        completed.

        Raises:
          ToolkitError: the address cannot be listened on.
        """
        config, limits = self._config, self._config.limits
        quiet = logging.getLogger(f"{__name__}.websockets")
        quiet.addHandler(logging.NullHandler())
        quiet.propagate = False
        try:
            serving = await websockets.serve(
                self._converse,
                config.host,
                config.port,
                process_request=self._answer,
                server_header=None,
                compression=None,  # a compressed message could become huge when unpacked
                max_size=limits.frame_bytes,
                open_timeout=GRACE,
                close_timeout=GRACE,
                ping_interval=None,  # the limit on idle time detects clients that are gone
                logger=quiet,
            )
        except OSError as error:
            place = f"{config.host}, port {config.port}"
            raise ToolkitError(
                f"{place}: {error.strerror or error}; give another --port"
            ) from error
        except ValueError as error:  # UnicodeError of a name such as a..b
            raise ToolkitError(
                f"{config.host!r} is not an address: {error}; give another --host"
            ) from error
        # IPv6 addresses stand in brackets in a URL.
        host = f"[{config.host}]" if ":" in config.host else config.host
        try:
            yield f"http://{host}:{serving.sockets[0].getsockname()[1]}/"
        finally:
            serving.close()
            await serving.wait_closed()
            self._pool.shutdown()

    def _answer(self, connection: websockets.ServerConnection, request: Request) -> Response | None:
        """Answer an HTTP request; return None to continue with the WebSocket handshake."""
        headers = request.headers
        fault = refusal(headers.get_all("Host"), headers.get_all("Origin"), self._config.host)
        if fault is not None:
            self._report(f"refused a request from {_name(connection)}: {fault}")
            return _response(HTTPStatus.FORBIDDEN, f"{fault}\n".encode())
        if request.path.partition("?")[0] == PATH:
            return None
        if getattr(request, "method", "GET") != "GET":
            return _response(HTTPStatus.METHOD_NOT_ALLOWED, b"only GET\n")
        if (content_and_type := read_page_file(request.path)) is None:
            return _response(HTTPStatus.NOT_FOUND, b"no such page\n")
        return _response(HTTPStatus.OK, *content_and_type)

    async def _converse(self, connection: websockets.ServerConnection) -> None:
        """Serve one client; an error ends only this client's stream."""
        number, most = next(self._numbers), self._config.limits.clients
        if self._clients >= most:
            self._report(
                f"client {number}, {_name(connection)}: refused, {most} clients are connected"
            )
            reason = f"the server already has {most} clients, its maximum: try again later"
            await _end(connection, reason, protocol.BUSY)
            return
        self._clients += 1
        outcome = "disconnected"
        try:
            stream = self._recogniser.stream(self._endpoint, details=True)
            client = Client(connection, self._audio, stream, self._pool, self._config.limits)
            try:
                await client.converse(self._system)
                outcome = "done"
            except RefusedError as error:
                outcome = f"refused: {error}"
                await _end(connection, str(error), error.code)
            except ConnectionClosed as closed:
                # If the client closes, `sent` is the echo of its reason.
                if not closed.rcvd_then_sent and closed.sent is not None and closed.sent.reason:
                    outcome = f"refused: {closed.sent.reason}"
            self._report(
                f"client {number}, {_name(connection)}: {client.seconds:.1f} s of audio, {outcome}"
            )
        except Exception:  # an error of the recogniser: other clients are not affected
            self._report(f"client {number}: {traceback.format_exc()}")
            await _end(connection, "the server failed. See its output for the reason", FAILED)
        finally:
            self._clients -= 1


async def _end(connection: websockets.ServerConnection, reason: str, code: int) -> None:
    """Tell a client why its stream ends, and close the connection.

    Messages that the client still sends are read and dropped, as its close frame comes after them.
    """
    with suppress(ConnectionClosed, asyncio.TimeoutError):
        await asyncio.wait_for(connection.send(protocol.error(reason)), GRACE)
        closing = asyncio.create_task(connection.close(code, protocol.close_reason(reason)))
        with suppress(ConnectionClosed):
            while True:
                await connection.recv()
        await closing


def _name(connection: websockets.ServerConnection) -> str:
    """Return the address and port of a client, for messages."""
    address = connection.remote_address
    return f"{address[0]} port {address[1]}" if address else "a disconnected client"


def _response(status: HTTPStatus, body: bytes, kind: str = "text/plain; charset=utf-8") -> Response:
    """Return an HTTP response with the common headers."""
    headers = Headers(
        {"Content-Type": kind, "Content-Length": str(len(body)), "Connection": "close"}
    )
    for name, value in HEADERS.items():
        headers[name] = value
    return Response(status.value, status.phrase, headers, body)


def run(server: Server, report: Report) -> None:
    """Serve until SIGTERM or Ctrl-C.

    Args:
      server: a server that is not serving yet.
      report: gets the page's address once it can be opened.
    """

    async def serve() -> None:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stop.set)
        async with server.listening() as address:
            report(f"open {address}; Ctrl-C stops the server")
            await stop.wait()
        report("the server has stopped")

    asyncio.run(serve())
