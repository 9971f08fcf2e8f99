"""A desk without rows, and the command that fills one."""

from __future__ import annotations

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError
from django.test import Client

from tests.desk.conftest import text_of
from tests.factories import make_cluster, make_user


def test_empty_desk_explains_itself(db: None) -> None:
    client = Client()
    client.force_login(make_user(), backend="django.contrib.auth.backends.ModelBackend")
    assert "Nothing is burning" in text_of(client.get("/"))
    assert "Nothing is burning" in text_of(client.get("/incidents/"))
    assert "No job here" in text_of(client.get("/jobs/"))
    assert "No node is known" in text_of(client.get("/nodes/"))


def test_sample_rows_never_mix_with_a_real_cluster(db: None) -> None:
    make_cluster(slug="real")
    with pytest.raises(CommandError, match="watches the cluster real"):
        call_command("sample_data")
