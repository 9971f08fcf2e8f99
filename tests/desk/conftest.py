"""Pages over the sample rows: three tenants, jobs in every phase, incidents in every state."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import unescape
from io import StringIO

import pytest
from django.core.management import call_command
from django.db import connection, transaction
from django.http import HttpResponse
from django.test import Client
from pytest_django.plugin import DjangoDbBlocker

from apps.access.models import User
from apps.incidents.models import Incident
from apps.jobs.models import Job

PASSWORD = "sample rows 1"


@pytest.fixture(scope="module")
def sample_rows(django_db_setup: None, django_db_blocker: DjangoDbBlocker) -> Iterator[None]:
    """The rows of ``manage.py sample_data``, made once a module and taken back with it.

    A transaction stays open around the module's tests; each of them is a savepoint in it.
    """
    with django_db_blocker.unblock():
        with transaction.atomic():
            call_command("sample_data", password=PASSWORD, verbosity=0, stdout=StringIO())
            yield
            transaction.set_rollback(True)
        connection.close()


@pytest.fixture
def sample(sample_rows: None, db: None) -> None:
    """The sample's rows; what a test changes is gone after it."""


def logged_in(name: str) -> Client:
    """A browser of one of the sample's people."""
    client = Client()
    client.force_login(User.objects.get(username=name), backend="django.contrib.auth.backends.ModelBackend")
    return client


@pytest.fixture
def operator(sample: None) -> Client:
    """mei.lin: operator and approver in every tenant."""
    return logged_in("mei.lin")


@pytest.fixture
def viewer(sample: None) -> Client:
    """a.khan: viewer in nlp only."""
    return logged_in("a.khan")


@pytest.fixture
def vision(sample: None) -> Client:
    """j.ortiz: operator in vision only."""
    return logged_in("j.ortiz")


def job(name: str) -> Job:
    return Job.objects.get(name=name)


def incident_of(name: str, **wanted: str) -> Incident:
    """The newest incident of a job of the sample."""
    found = Incident.objects.filter(job__name=name, **wanted).order_by("-id").first()
    assert found is not None
    return found


def text_of(response: HttpResponse) -> str:
    """What a reader reads, in one line."""
    html = response.content.decode()
    main = html[html.index("<main") : html.index("</main>")]
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", main)).split())
