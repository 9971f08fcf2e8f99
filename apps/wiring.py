"""Reads settings and returns the adapters chosen there.

Adapters are imported when asked for: the Kubernetes client costs seconds of CPU and must never be
loaded by a web process.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from django.conf import settings

if TYPE_CHECKING:
    from adapters.kubernetes.cluster import KubernetesCluster


@lru_cache(maxsize=1)
def cluster() -> KubernetesCluster:
    """The cluster named by INCIDENTDESK_KUBECONFIG, or the one that this process runs in.

    Raises ClusterRefused when the configuration cannot be used.
    """
    from adapters.kubernetes import client
    from adapters.kubernetes.cluster import KubernetesCluster

    transport = client.connect(
        kubeconfig=settings.KUBECONFIG, timeout_seconds=settings.TIMINGS["CLUSTER_TIMEOUT_SECONDS"]
    )
    return KubernetesCluster(transport)
