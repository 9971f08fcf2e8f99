"""A web process of its own on the test database, and a headless Chromium that looks at it."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from io import StringIO
from pathlib import Path
from typing import Any

import environ
import psycopg
import pytest
from django.core.management import call_command
from django.db import connections
from pytest_django.plugin import DjangoDbBlocker

from incidentdesk.frontdoor.servers import EmbeddedServers

sync_api = pytest.importorskip("playwright.sync_api")

CHECKOUT = Path(__file__).resolve().parents[2]
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
PASSWORD = "sample rows 1"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All tests here need Chromium."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.browser)
            item.add_marker(pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine"))


class Site:
    """The running desk and its database, which no other test uses."""

    process: subprocess.Popen[bytes]

    def __init__(self, url: str, database: dict[str, Any], blocker: DjangoDbBlocker) -> None:
        self.url = url
        self._database = database
        self._blocker = blocker

    @contextmanager
    def silent(self) -> Iterator[None]:
        """The desk answers nothing meanwhile; connections stay open, as with a stalled network."""
        os.killpg(self.process.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.killpg(self.process.pid, signal.SIGCONT)

    def rows(self, work: Callable[[], Any]) -> Any:
        """Do something in the desk's database, committed. In a thread, for Playwright has an event loop in this one."""

        def in_thread() -> Any:
            here = connections["default"]
            connections["default"] = type(here)({**here.settings_dict, **self._database}, "default")
            try:
                return work()
            finally:
                connections.close_all()

        with self._blocker.unblock(), ThreadPoolExecutor(1) as thread:
            return thread.submit(in_thread).result()


@pytest.fixture(scope="package")
def site(django_db_blocker: DjangoDbBlocker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A desk with the sample's rows, served as in production, on database servers of its own."""
    log = tmp_path_factory.mktemp("web") / "web.log"
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    servers = EmbeddedServers.in_free_slot(CHECKOUT / ".desk" / "test")
    with servers:
        with psycopg.connect(
            servers.database_url, autocommit=True
        ) as direct:  # a slot keeps its last run's rows
            direct.execute("DROP SCHEMA public CASCADE")
            direct.execute("CREATE SCHEMA public")
        environment = (
            os.environ | servers.environment() | {"DJANGO_SETTINGS_MODULE": "incidentdesk.settings.test"}
        )
        database = environ.Env.db_url_config(servers.database_url, engine="django.db.backends.postgresql")
        desk = Site(f"http://127.0.0.1:{port}", database, django_db_blocker)
        desk.rows(_fill)
        with log.open("wb") as output:
            process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "granian",
                    "--interface",
                    "asgi",
                    "--host",
                    "127.0.0.1",
                    "--port",
                    str(port),
                    "incidentdesk.asgi:application",
                ],
                cwd=CHECKOUT,
                env=environment,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        desk.process = process
        try:
            _await_answer(f"{desk.url}/login/", process, log)
            yield desk
        finally:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(10)


def _fill() -> None:
    call_command("migrate", verbosity=0)
    call_command("sample_data", password=PASSWORD, stdout=StringIO())


def _await_answer(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + 60
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    while True:
        try:
            with opener.open(url, timeout=5):
                return
        except OSError:
            if process.poll() is not None or time.monotonic() > deadline:
                raise AssertionError(f"the web process does not answer:\n{log.read_text()[-3000:]}") from None
            time.sleep(0.1)


@pytest.fixture(scope="package")
def browser() -> Iterator[Any]:
    """One Chromium for all tests."""
    with sync_api.sync_playwright() as playwright:
        started = playwright.chromium.launch(
            executable_path=CHROMIUM,
            args=["--no-sandbox", "--disable-gpu", "--disable-background-networking"],
        )
        yield started
        started.close()


class Reader:
    """A logged-in page that remembers everything it complained about."""

    def __init__(self, page: Any, site: Site) -> None:
        self.page = page
        self.site = site
        self.complaints: list[str] = []
        page.on("pageerror", lambda error: self.complaints.append(f"page error: {error}"))
        page.on(
            "console",
            lambda message: message.type in ("error", "warning") and self.complaints.append(message.text),
        )

    def open(self, address: str) -> Any:
        """Go to an address of the desk and wait until the stream says that the page is current."""
        response = self.page.goto(self.site.url + address)
        self.page.wait_for_selector('[data-live][data-state="live"]')
        return response


@pytest.fixture(scope="package")
def log_in(site: Site, browser: Any) -> Callable[[str], Any]:
    """The cookies of somebody who has logged in by the form: once a name, for it takes as long as most tests."""

    @cache
    def cookies(name: str) -> Any:
        context = browser.new_context()
        page = context.new_page()
        page.goto(f"{site.url}/login/")
        page.get_by_label("Username").fill(name)
        page.get_by_label("Password").fill(PASSWORD)
        page.get_by_role("button", name="Log in").click()
        page.wait_for_url(f"{site.url}/")
        kept = context.storage_state()
        context.close()
        return kept

    return cookies


@pytest.fixture
def make_reader(
    site: Site, browser: Any, log_in: Callable[[str], Any], request: pytest.FixtureRequest
) -> Iterator[Callable[..., Reader]]:
    """Readers by name, theme and width; each in a context of its own. What one complained about fails the test."""
    made: list[tuple[Any, Reader]] = []

    def make(
        name: str = "mei.lin", *, scheme: str = "light", width: int = 1440, scripts: bool = True
    ) -> Reader:
        context = browser.new_context(
            viewport={"width": width, "height": 900},
            color_scheme=scheme,
            java_script_enabled=scripts,
            storage_state=log_in(name),
        )
        context.set_default_timeout(15_000)
        reader = Reader(context.new_page(), site)
        made.append((context, reader))
        return reader

    yield make
    for context, reader in made:
        context.close()
        assert reader.complaints == []


@pytest.fixture
def reader(make_reader: Callable[..., Reader]) -> Reader:
    """mei.lin at a wide screen, in light."""
    return make_reader()
