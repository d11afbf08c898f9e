"""A proxy in front of an S3 server that delays, refuses, cuts off, truncates and corrupts."""

import http.client
import random
import socket
import struct
import threading
import time
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class Faults:
    """Probabilities per request, and speed."""

    latency: float = 0.0  # seconds per request
    bandwidth: float = float("inf")  # bytes per second of one connection
    error: float = 0.0  # 500 or 503 instead of an answer
    reset: float = 0.0  # the connection is reset before the request is passed on
    lost: float = 0.0  # reset after it was: a PUT is done, yet looks failed
    truncate: float = 0.0  # half of a body, then the connection is closed
    corrupt: float = 0.0  # one byte of a body is another


class FaultyS3(ThreadingHTTPServer):
    """Listens on a free port of this machine and passes requests on to `port`."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, port, seed=0):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.target = port
        self.faults = Faults()
        self.log = []  # (method, path, size of the answer, fault)
        self.lock = threading.Lock()
        self.random = random.Random(seed)
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_address[1]}"

    def draw(self):
        """Draw the fault of one request."""
        with self.lock:
            dice = self.random.random()
            for name in ("error", "reset", "lost", "truncate", "corrupt"):
                dice -= getattr(self.faults, name)
                if dice < 0:
                    return name
        return ""

    def calls(self, method):
        return sum(entry[0] == method for entry in self.log)

    def handle_error(self, request, client_address):
        """Ignore clients that have closed the connection: these tests cause them."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def _pass_on(self):
        server, faults = self.server, self.server.faults
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        fault = server.draw()
        time.sleep(faults.latency + len(body) / faults.bandwidth)
        status, headers, answer = 0, [], b""
        if fault not in ("error", "reset"):
            status, headers, answer = self._ask(body)
        # before the answer, since who has it may look at the log at once
        server.log.append((self.command, self.path.split("?")[0], len(answer), fault))
        if fault == "error":
            self._refuse()
        elif fault in ("reset", "lost"):
            self._reset()
        else:
            self._answer(status, headers, answer, fault)

    do_GET = do_PUT = do_HEAD = do_POST = do_DELETE = _pass_on  # noqa: N815

    def _ask(self, body):
        upstream = http.client.HTTPConnection("127.0.0.1", self.server.target, timeout=60)
        try:
            headers = {k: v for k, v in self.headers.items() if k.lower() != "expect"}
            upstream.request(self.command, self.path, body, headers)
            response = upstream.getresponse()
            return response.status, response.getheaders(), response.read()
        finally:
            upstream.close()

    def _answer(self, status, headers, answer, fault):
        size = len(answer)
        time.sleep(size / self.server.faults.bandwidth)
        if fault == "corrupt" and size and self.command == "GET":
            middle = size // 2
            answer = answer[:middle] + bytes([answer[middle] ^ 1]) + answer[middle + 1 :]
        self.send_response_only(status)
        for name, value in headers:
            hidden = fault == "corrupt" and name.lower().startswith("x-amz-checksum")
            if name.lower() not in ("transfer-encoding", "connection") and not hidden:
                self.send_header(name, value)
        if not any(name.lower() == "content-length" for name, _ in headers):
            self.send_header("Content-Length", str(size))
        self.end_headers()
        if fault == "truncate" and size > 1:
            self.wfile.write(answer[: size // 2])
            self.close_connection = True
        elif self.command != "HEAD":
            self.wfile.write(answer)

    def _refuse(self):
        code, word = self.server.random.choice(((500, "InternalError"), (503, "SlowDown")))
        answer = f"<Error><Code>{word}</Code><Message>by design</Message></Error>".encode()
        self.send_response_only(code)
        self.send_header("Content-Type", "application/xml")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer)

    def _reset(self):
        self.close_connection = True
        linger = struct.pack("ii", 1, 0)  # close with RST
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        self.connection.close()

    def log_message(self, *_):
        pass
