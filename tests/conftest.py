"""Servers for a test run: PostgreSQL and Valkey of our own, shared by all xdist workers of the run.

DATABASE_URL and REDIS_URL are taken when they are set. Otherwise the run claims a free directory under
`.desk/test/`; the URLs are known at once, the servers start only when a test needs them.
"""

import atexit
import os

import pytest

from incidentdesk.frontdoor.places import CHECKOUT
from incidentdesk.frontdoor.servers import EmbeddedServers
from incidentdesk.frontdoor.template import template_database

# Before Django's settings load. Workers of xdist inherit the variables from the run that starts them.
_servers = EmbeddedServers.in_free_slot(CHECKOUT / ".desk" / "test", use_environment=True)
atexit.register(_servers.stop)
os.environ.update(_servers.environment())
os.environ["DJANGO_SETTINGS_MODULE"] = "incidentdesk.settings.test"
os.environ.setdefault("HYPOTHESIS_STORAGE_DIRECTORY", str(CHECKOUT / ".desk" / "hypothesis"))

import django  # noqa: E402 - after the environment is complete

django.setup()

from django.db import connection  # noqa: E402


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--long", action="store_true", help="run the tests marked `long` too")


def pytest_configure(config: pytest.Config) -> None:
    """With xdist the run itself starts the servers, for its workers only see their URLs."""
    if getattr(config.option, "numprocesses", None) and not hasattr(config, "workerinput"):
        _servers.start()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("--long"):
        for item in items:
            if item.get_closest_marker("long"):
                item.add_marker(pytest.mark.skip(reason="only with --long"))


@pytest.fixture(scope="session")
def servers() -> EmbeddedServers:
    """PostgreSQL and Valkey of this run, started (the database `incidentdesk` has no tables)."""
    _servers.start()
    return _servers


@pytest.fixture(scope="session")
def redis_url(servers: EmbeddedServers) -> str:
    """URL of the run's Valkey; nothing isolates it between tests but the names of keys."""
    return servers.redis_url


@pytest.fixture(scope="session")
def django_db_modify_db_settings(
    servers: EmbeddedServers, django_db_modify_db_settings_parallel_suffix: None
) -> None:
    """Start the servers, and let pytest-django copy its test database from one that is migrated."""
    if servers.postgres is not None:
        connection.settings_dict["TEST"]["TEMPLATE"] = template_database(servers.postgres)
