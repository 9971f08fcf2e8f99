"""A Kubernetes API over HTTP, and our adapter connected to it by a kubeconfig."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from adapters.kubernetes import client
from adapters.kubernetes.client import KubernetesTransport
from tests.sim.apiserver import Api, serve


@pytest.fixture
def api() -> Iterator[Api]:
    with serve(bookmark_seconds=0.1) as served:
        yield served


@pytest.fixture
def transport(api: Api, tmp_path: Path) -> KubernetesTransport:
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(api.server.kubeconfig())
    return client.connect(kubeconfig=str(kubeconfig), timeout_seconds=5)
