"""Waiting times of the simulated cluster: Kubernetes' own, and the short table of drills and tests."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Timings:
    """Every field is in seconds. Sources are the defaults of Kubernetes 1.35 components."""

    # kubelet: a container restarts at once, then after `initial`, doubling to `maximum`, forgotten after `reset`.
    container_backoff_initial: float = 10.0
    container_backoff_maximum: float = 300.0
    container_backoff_reset: float = 600.0
    # job controller: a failed pod is replaced after `initial`, doubling to `maximum`.
    job_backoff_initial: float = 10.0
    job_backoff_maximum: float = 360.0
    # kubelet: node lease and status; node life cycle controller: silence after which Ready becomes Unknown.
    lease_renew: float = 10.0
    lease_duration: float = 40.0
    node_status_update: float = 300.0
    node_monitor_grace: float = 40.0
    # admission: tolerationSeconds given to pods that say nothing about not-ready and unreachable.
    default_toleration: float = 300.0
    # kubelet: how often mounted configMaps and secrets are brought up to date.
    volume_sync: float = 60.0


REAL = Timings()

SHORT = Timings(
    container_backoff_initial=1.0,
    container_backoff_maximum=10.0,
    container_backoff_reset=30.0,
    job_backoff_initial=1.0,
    job_backoff_maximum=10.0,
    lease_renew=0.75,
    lease_duration=3.0,
    node_status_update=10.0,
    node_monitor_grace=3.0,
    default_toleration=5.0,
    volume_sync=2.0,
)

TABLES = {"real": REAL, "short": SHORT}
