"""Requests are answered or refused by their headers."""

import pytest

from toolkit.serve.server import is_loopback, refusal


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1:8000", "localhost", "LOCALHOST:1", "[::1]:8000", "192.168.1.5:8000", "asr.lan:80"],
)
def test_addresses_localhost_and_the_name_that_is_served_are_answered(host):
    assert refusal([host], [], "asr.lan") is None
    assert refusal([host], [f"http://{host}"], "asr.lan") is None
    assert refusal([host], [f"https://{host}"], "asr.lan") is None


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:8000", "localhost.evil.example", "127.0.0.1.evil.example"],
)
def test_other_host_names_are_refused(host):
    reason = refusal([host], [f"http://{host}"], "127.0.0.1")
    assert "Host header names another server" in reason


@pytest.mark.parametrize(
    "hosts",
    [[], [""], ["localhost", "evil.example"], ["localhost", "localhost"], ["a@localhost"],
     ["localhost/x"], ["localhost?x"], ["localhost:port"], ["localhost:99999"], ["[::1"]],
)  # fmt: skip
def test_a_request_has_one_valid_host(hosts):
    assert "one valid Host header" in refusal(hosts, [], "127.0.0.1")


@pytest.mark.parametrize(
    "origins",
    [["http://evil.example"], ["null"], [""], ["http://localhost:8001"], ["http://127.0.0.1:8000"],
     ["file://"], ["http://localhost:8000", "http://evil.example"], ["http://localhost:8000.evil"]],
)  # fmt: skip
def test_pages_of_other_origins_may_not_connect(origins):
    assert "Origin header names another site" in refusal(["localhost:8000"], origins, "127.0.0.1")


def test_loopback_addresses_are_recognised():
    inside = ["127.0.0.1", "127.9.9.9", "::1", "localhost"]
    outside = ["0.0.0.0", "::", "192.168.1.5", "asr.lan", "localhost.evil.example", ""]
    assert [is_loopback(host) for host in inside + outside] == [True] * 4 + [False] * 6
