"""What tests of incidents have in common."""

from __future__ import annotations

import pytest

from tests import factories
from tests.factories import PlayedJob


@pytest.fixture
def training() -> PlayedJob:
    """A job of three workers that trains, with two retries."""
    job = PlayedJob(factories.make_job(workers=3, max_retry=2))
    job.start_training()
    return job
