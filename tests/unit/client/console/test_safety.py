"""Which requests of browsers the console refuses."""

import pytest

from warmlog.console.safety import Rules, policy

LOCAL = Rules({"127.0.0.1:7480", "localhost:7480"})
PROXIED = Rules({"logs.example.org", "127.0.0.1:7480"}, ("https://logs.example.org",))
ANY_HOST = Rules(None)


@pytest.mark.parametrize(
    ("rules", "host", "origin", "may_change"),
    [
        (LOCAL, "127.0.0.1:7480", None, False),
        (LOCAL, "LOCALHOST:7480", None, False),
        (LOCAL, "127.0.0.1:7480", "http://127.0.0.1:7480", True),
        (PROXIED, "logs.example.org", "https://logs.example.org", True),
        (PROXIED, "127.0.0.1:7480", "https://logs.example.org", True),
        (ANY_HOST, "10.1.2.3:7480", "https://10.1.2.3:7480", True),
    ],
)
def test_pages_of_the_console_may_ask(rules: Rules, host: str, origin: str | None, may_change: bool) -> None:
    assert rules.refusal(host, origin, may_change=may_change) == ""


@pytest.mark.parametrize(
    ("rules", "host", "origin", "may_change"),
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
def test_other_pages_and_other_names_may_not(rules: Rules, host: str, origin: str | None, may_change: bool) -> None:
    assert rules.refusal(host, origin, may_change=may_change)


def test_the_policy_lets_pages_load_from_here_alone() -> None:
    directives = dict(each.strip().split(" ", 1) for each in policy("n").decode().split(";"))
    assert directives["default-src"] == "'none'"
    assert directives["frame-ancestors"] == "'none'"
    assert "unsafe-inline" not in directives["script-src"]
    assert "'nonce-n'" in directives["script-src"]
    assert not [each for each in directives.values() if "http" in each or "*" in each]
