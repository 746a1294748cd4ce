"""Which requests of browsers the console refuses."""

from pathlib import Path

import pytest

from warmlog.console.safety import POLICY, Place

LOCAL = Place("127.0.0.1", 7480)
PROXIED = Place("127.0.0.1", 7480, origins=("https://logs.example.org",))
ANY_HOST = Place("0.0.0.0", 7480, Path("console.pem"))


@pytest.mark.parametrize(
    ("place", "host", "origin", "may_change"),
    [
        (LOCAL, "127.0.0.1:7480", None, False),
        (LOCAL, "LOCALHOST:7480", None, False),
        (LOCAL, "127.0.0.1:7480", "http://127.0.0.1:7480", True),
        (PROXIED, "logs.example.org", "https://logs.example.org", True),
        (PROXIED, "127.0.0.1:7480", "https://logs.example.org", True),
        (ANY_HOST, "10.1.2.3:7480", "https://10.1.2.3:7480", True),
    ],
)
def test_pages_of_the_console_may_ask(place: Place, host: str, origin: str | None, may_change: bool) -> None:
    assert place.refusal(host, origin, may_change=may_change) == ""


@pytest.mark.parametrize(
    ("place", "host", "origin", "may_change"),
    [
        (LOCAL, "evil.example:7480", None, False),
        (LOCAL, "", None, False),
        (LOCAL, "127.0.0.1:7481", None, False),
        (LOCAL, "127.0.0.1:7480", None, True),
        (LOCAL, "127.0.0.1:7480", "null", True),
        (LOCAL, "127.0.0.1:7480", "http://evil.example", False),
        (LOCAL, "127.0.0.1:7480", "http://127.0.0.1:7480.evil.example", True),
        (LOCAL, "127.0.0.1:7480", "http://localhost:7480", True),
        (PROXIED, "logs.example.org", "https://evil.example", True),
        (ANY_HOST, "10.1.2.3:7480", "https://evil.example", True),
    ],
)
def test_other_pages_and_other_names_may_not(place: Place, host: str, origin: str | None, may_change: bool) -> None:
    assert place.refusal(host, origin, may_change=may_change)


def test_the_policy_lets_pages_load_from_here_alone() -> None:
    directives = dict(each.strip().split(" ", 1) for each in POLICY.format("n").split(";"))
    assert directives["default-src"] == "'none'"
    assert directives["frame-ancestors"] == "'none'"
    assert "unsafe-inline" not in directives["script-src"]
    assert "'nonce-n'" in directives["script-src"]
    assert not [each for each in directives.values() if "http" in each or "*" in each]


def test_the_address_and_whether_cookies_need_tls_follow_from_the_place() -> None:
    assert (LOCAL.address, LOCAL.is_secure) == ("http://127.0.0.1:7480/", False)
    assert (ANY_HOST.address, ANY_HOST.is_secure) == ("https://0.0.0.0:7480/", True)
    assert Place("::1", 7480).address == "http://[::1]:7480/"
    behind = Place("127.0.0.1", 7480, origins=("https://logs.example.org",), root="/console")
    assert (behind.address, behind.is_secure) == ("https://logs.example.org/console/", True)
    assert not Place("127.0.0.1", 7480, origins=("https://logs.example.org", "http://127.0.0.1:8080")).is_secure
