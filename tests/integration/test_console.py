"""The console as browsers meet it before any script runs: logins, cookies, and what is refused."""

import asyncio
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from broker_thread import BrokerThread
from console_process import ConsoleProcess
from forked import run_forked
from integration.command_line import Done, environment
from warmlog.blocking import Admin

PASSWORD = "correct horse"


@pytest.fixture(scope="module")
def open_console(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConsoleProcess]:
    """A console of a broker that does not authenticate."""
    directory = tmp_path_factory.mktemp("open")
    with BrokerThread(directory / "data") as broker, ConsoleProcess(broker.address, is_forked=True) as console:
        yield console


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a broker that authenticates, with the users alice and bob."""
    data_dir = tmp_path_factory.mktemp("locked") / "data"
    with BrokerThread(data_dir) as broker, Admin(broker.address) as admin:
        for user in ("alice", "bob"):
            admin.create_user(user, PASSWORD)
    with BrokerThread(data_dir, listeners="main=sasl_plaintext://127.0.0.1:0") as broker:
        yield broker.address


@pytest.fixture(scope="module")
def locked_console(locked: str) -> Iterator[ConsoleProcess]:
    with ConsoleProcess(locked, is_forked=True) as console:
        yield console


@pytest.fixture(scope="module")
def profile_console(locked: str) -> Iterator[ConsoleProcess]:
    """A console whose profile has a user."""
    variables = {"WARMLOG_USERNAME": "alice", "WARMLOG_PASSWORD": PASSWORD}
    with ConsoleProcess(locked, variables=variables, is_forked=True) as console:
        yield console


def console(*options: str) -> Done:
    """What became of a console that could not start."""
    return run_forked("warmlog.console", ("console", "--no-open", *options), environment(WARMLOG_BROKER="127.0.0.1:1"))


def log_in(
    console: ConsoleProcess, password: str = PASSWORD, origin: str | None = None, user: str = "alice"
) -> httpx.Response:
    headers = {"Origin": origin or console.url}
    form = {"username": user, "password": password, "next": "/topics"}
    return httpx.post(f"{console.url}/login", data=form, headers=headers, timeout=60)


# --- logins ----------------------------------------------------------------------------------------------------------


def test_a_broker_without_a_login_needs_none_and_pages_change_nothing(open_console: ConsoleProcess) -> None:
    with httpx.Client(follow_redirects=True, timeout=60) as browser:
        page = browser.get(f"{open_console.url}/topics?a=1")
    assert page.status_code == 200
    assert page.url.path == "/topics"
    assert page.url.query == b"a=1"
    assert "no login, read only" in page.text


def test_the_cookie_is_for_this_site_and_not_for_scripts(open_console: ConsoleProcess) -> None:
    entered = httpx.get(f"{open_console.url}/login")
    assert entered.status_code == 303
    (cookie,) = entered.headers.get_list("set-cookie")
    assert "HttpOnly" in cookie
    assert "SameSite=lax" in cookie
    name, _, secret = cookie.partition(";")[0].partition("=")
    assert name == f"warmlog_console_{open_console.url.rpartition(':')[2]}", "that of a console at another port stays"
    assert len(secret) >= 40


def test_browsers_that_open_a_session_end_none_of_others(
    open_console: ConsoleProcess, locked_console: ConsoleProcess
) -> None:
    first, others = httpx.get(f"{open_console.url}/login"), [httpx.get(f"{open_console.url}/login") for _ in range(10)]
    assert {dict(each.cookies).popitem() for each in others} == {dict(first.cookies).popitem()}, "all share one"
    bob, alice = log_in(locked_console, user="bob"), [log_in(locked_console) for _ in range(9)]
    pages = [httpx.get(f"{locked_console.url}/topics", cookies=dict(each.cookies)) for each in (bob, *alice)]
    assert [page.status_code for page in pages] == [200, 303, *[200] * 8], "the ninth of alice ends her first"


def test_a_broker_that_authenticates_asks_for_a_login(locked_console: ConsoleProcess) -> None:
    refused = httpx.get(f"{locked_console.url}/records?topic=t&limit=1")
    assert refused.status_code == 303
    assert refused.headers["location"] == "/login?next=/records%3Ftopic%3Dt%26limit%3D1"
    form = httpx.get(f"{locked_console.url}{refused.headers['location']}")
    assert 'value="/records?topic=t&amp;limit=1"' in form.text
    assert "<script" not in form.text


def test_a_user_of_the_broker_logs_in_and_out(locked_console: ConsoleProcess) -> None:
    entered = log_in(locked_console)
    assert (entered.status_code, entered.headers["location"]) == (303, "/topics")
    cookies = dict(entered.cookies)
    page = httpx.get(f"{locked_console.url}/topics", cookies=cookies, timeout=60)
    assert page.status_code == 200
    assert "alice" in page.text
    assert "read only" not in page.text
    origin = {"Origin": locked_console.url}
    assert httpx.post(f"{locked_console.url}/logout", cookies=cookies, headers=origin).status_code == 303
    assert httpx.get(f"{locked_console.url}/topics", cookies=cookies).status_code == 303


def test_a_wrong_password_is_refused_after_a_pause(locked_console: ConsoleProcess) -> None:
    refused = log_in(locked_console, "wrong")
    assert refused.status_code == 401
    assert refused.elapsed.total_seconds() >= 1
    assert not refused.cookies
    assert "wrong" not in refused.text.replace("password is wrong", "")


def test_a_login_leads_to_no_other_site(locked_console: ConsoleProcess) -> None:
    form = {"username": "alice", "password": PASSWORD}
    for wanted in ("https://evil.example/", "//evil.example/", "/\\evil.example/"):
        origin = {"Origin": locked_console.url}
        entered = httpx.post(f"{locked_console.url}/login", data={**form, "next": wanted}, headers=origin, timeout=60)
        assert entered.headers["location"] == "/"


def test_the_profiles_user_is_for_those_who_have_the_printed_address(profile_console: ConsoleProcess) -> None:
    assert "?token=" in profile_console.address
    with httpx.Client(follow_redirects=True, timeout=60) as browser:
        assert browser.get(f"{profile_console.url}/").url.path == "/login"
        assert browser.get(f"{profile_console.url}/login?token=wrong").url.path == "/login"
        page = browser.get(profile_console.address)
        assert page.url.path == "/"
        assert "alice" in page.text
        assert browser.get(f"{profile_console.url}/").url.path == "/"
    with httpx.Client(follow_redirects=True, timeout=60) as another:
        assert another.get(profile_console.address).url.path == "/login", "it enters once"


# --- what is refused -------------------------------------------------------------------------------------------------


def test_pages_elsewhere_and_names_that_are_not_ours_are_refused(open_console: ConsoleProcess) -> None:
    assert httpx.get(open_console.url, headers={"Host": "evil.example"}).status_code == 403
    assert httpx.get(open_console.url, headers={"Origin": "https://evil.example"}).status_code == 403
    assert httpx.post(f"{open_console.url}/logout").status_code == 403
    assert log_in(open_console, origin="https://evil.example").status_code == 403


async def websocket(url: str, headers: dict[str, str], root: str = "") -> int:
    """The status of the response to a websocket's handshake."""
    upgrade = {
        "Connection": "Upgrade",
        "Upgrade": "websocket",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
    }
    host, _, port = url.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    lines = [f"{name}: {value}" for name, value in {"Host": f"{host}:{port}", **upgrade, **headers}.items()]
    path = f"{root}/_nicegui_ws/socket.io/?EIO=4&transport=websocket"
    writer.write("\r\n".join([f"GET {path} HTTP/1.1", *lines, "", ""]).encode())
    status = int((await reader.readline()).split()[1])
    writer.close()
    await writer.wait_closed()
    return status


async def test_a_websocket_needs_a_session_and_a_page_of_the_console(open_console: ConsoleProcess) -> None:
    async with httpx.AsyncClient() as browser:
        cookies = (await browser.get(f"{open_console.url}/login")).cookies
    ours = {"Cookie": "=".join(dict(cookies).popitem()), "Origin": open_console.url}
    assert await websocket(open_console.url, ours) == 101
    assert await websocket(open_console.url, {**ours, "Cookie": ""}) == 403
    assert await websocket(open_console.url, {**ours, "Origin": "https://evil.example"}) == 403
    assert await websocket(open_console.url, {"Cookie": ours["Cookie"]}) == 403


def test_each_response_tells_the_browser_what_to_refuse(open_console: ConsoleProcess) -> None:
    with httpx.Client(follow_redirects=True, timeout=60) as browser:
        page = browser.get(open_console.url)
    assert page.headers["x-frame-options"] == "DENY"
    assert page.headers["x-content-type-options"] == "nosniff"
    assert page.headers["cache-control"] == "no-store"
    policy = page.headers["content-security-policy"]
    nonce = re.search(r"'nonce-(\S+)'", policy)
    assert nonce is not None
    scripts = re.findall(r"<script[^>]*>", page.text)
    assert scripts
    assert all(f'nonce="{nonce[1]}"' in script for script in scripts)
    assert not re.findall(r"(?:src|href)=\"https?:", page.text), "nothing is loaded from elsewhere"
    with httpx.Client(follow_redirects=True, timeout=60) as browser:
        again = browser.get(open_console.url).headers["content-security-policy"]
    assert nonce[1] not in again


def test_a_prefix_that_a_client_names_is_not_used(open_console: ConsoleProcess) -> None:
    with httpx.Client(follow_redirects=True, timeout=60) as browser:
        page = browser.get(open_console.url, headers={"X-Forwarded-Prefix": "/evil"})
    assert "/evil" not in page.text


# --- how it is started -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (("--listen", "0.0.0.0:0"), b"--allow-remote"),
        (("--listen", "0.0.0.0:0", "--allow-remote"), b"--tls-cert"),
        (("--listen", "0.0.0.0:0", "--allow-remote", "--origin", "http://logs.example.org"), b"--tls-cert"),
        (("--origin", "logs.example.org"), b"https://logs.example.org"),
        (("--root-path", "console"), b"/console"),
        (("--decoder", "no.such.module:f"), b"MODULE:FUNCTION"),
    ],
)
def test_what_would_not_be_safe_is_refused_at_the_start(options: tuple[str, ...], text: bytes) -> None:
    done = console(*options)
    assert done.returncode == 2
    assert text in done.stderr


def test_a_decoder_may_be_in_the_current_directory(tmp_path: Path) -> None:
    (tmp_path / "shapes.py").touch()
    as_installed = [sys.executable, "-P", "-m", "warmlog"]
    command = [*as_installed, "console", "--decoder", "shapes:decode"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True)
    assert b"module 'shapes' has no attribute 'decode'" in done.stderr


def test_behind_a_proxy_it_has_the_proxys_address_and_path(tmp_path: Path) -> None:
    options = ("--origin", "https://logs.example.org", "--root-path", "/console")
    with BrokerThread(tmp_path / "data") as broker, ConsoleProcess(broker.address, *options, is_forked=True) as console:
        assert console.address == "https://logs.example.org/console/"
        headers = {"Host": "logs.example.org", "X-Forwarded-Proto": "https"}
        here = f"http://127.0.0.1:{console.port}"
        for path in ("/console/login", "/login"):  # proxies differ in whether they pass the path on
            entered = httpx.get(f"{here}{path}", headers=headers)
            assert entered.status_code == 303
            assert entered.headers["location"] == "/console/"
        (cookie,) = entered.headers.get_list("set-cookie")
        session = {"Cookie": cookie.partition(";")[0]}
        page = httpx.get(f"{here}/console/topics", headers={**headers, **session}, timeout=60)
        script = re.search(r'src="(/console/_nicegui/\S+/nicegui.js)"', page.text)
        assert script is not None
        assert httpx.get(f"{here}{script[1]}", headers=headers).status_code == 200
        assert "Secure" in cookie
        assert "Path=/console" in cookie
        ours = {"Host": "logs.example.org", "Origin": "https://logs.example.org", **session}
        for root in ("/console", ""):
            assert asyncio.run(websocket(here, ours, root)) == 101
            assert asyncio.run(websocket(here, {**ours, "Origin": here}, root)) == 403


def test_a_broker_that_is_away_is_said_and_the_console_ends_on_a_signal() -> None:
    with ConsoleProcess("127.0.0.1:1", is_forked=True) as console:
        page = httpx.get(f"{console.url}/login", timeout=60)
        assert page.status_code == 503
        assert "127.0.0.1:1" in page.text
        console.process.send_signal(signal.SIGINT)
        assert console.process.wait(60) == 0


def test_a_port_in_use_is_an_error_of_one_line() -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as taken:
        done = console("--listen", f"127.0.0.1:{taken.getsockname()[1]}")
    assert done.returncode == 1
    assert done.stderr.startswith(b"warmlog: error: cannot listen on 127.0.0.1:")
