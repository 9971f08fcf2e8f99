"""Examples in the OpenAPI document. A test sends each of them."""

from __future__ import annotations

from drf_spectacular.utils import OpenApiExample

SIGNAL = OpenApiExample(
    "A log line about a pod",
    request_only=True,
    value={
        "key": "loki/4711",
        "source": "api",
        "kind": "log",
        "seen_at": "2026-11-29T14:02:31.120Z",
        "sent_at": "2026-11-29T14:02:33Z",
        "about": {"namespace": "train", "pod": "llm-70b-3-x7k2p"},
        "body": {"lines": ["NCCL WARN Call to ibv_modify_qp failed with error Connection timed out"]},
    },
)
ALERTS = OpenApiExample(
    "What Alertmanager sends",
    request_only=True,
    value={
        "version": "4",
        "status": "firing",
        "receiver": "incidentdesk",
        "alerts": [
            {
                "status": "firing",
                "labels": {"alertname": "TrainingStalled", "namespace": "train", "job_name": "llm-70b"},
                "annotations": {"summary": "no step for 5 minutes"},
                "startsAt": "2026-11-29T14:02:30Z",
                "endsAt": "0001-01-01T00:00:00Z",
                "fingerprint": "c0ffee0123456789",
            }
        ],
    },
)
POD_ENDS = OpenApiExample(
    "A pod that was killed for its memory",
    request_only=True,
    value={
        "sent_at": "2026-11-29T14:02:33Z",
        "ends": [
            {
                "pod_uid": "6ac9a478-0bc7-4551-bfe5-48b40b240bd1",
                "container": "train",
                "restart": 0,
                "exit_code": 137,
                "reason": "OOMKilled",
                "ended_at": "2026-11-29T14:02:31Z",
                "namespace": "train",
                "pod": "llm-70b-3-x7k2p",
                "node": "gpu-r01-02",
            }
        ],
    },
)
CHECKPOINT = OpenApiExample(
    "A committed checkpoint",
    request_only=True,
    value={
        "job_id": 12,
        "step": 3400,
        "path": "/checkpoints/step-00003400",
        "state": "committed",
        "bytes": 12288,
        "shards": 3,
        "shards_expected": 3,
        "seconds": 4.2,
        "at": "2026-11-29T14:02:31Z",
    },
)
REGISTER = OpenApiExample(
    "Sixteen machines under Slurm",
    request_only=True,
    value={
        "namespace": "train",
        "name": "llm-70b",
        "uid": "slurm-84213",
        "world_size": 16,
        "gpus_per_worker": 8,
        "max_retry": 10,
    },
)
STOP = OpenApiExample(
    "Stop after the next checkpoint",
    request_only=True,
    value={"reason": "the data set was wrong", "at_safe_point": True},
)
ACKNOWLEDGE = OpenApiExample("The version that was read", request_only=True, value={"version": 0})
RESOLVE = OpenApiExample(
    "Closed where the page came from",
    request_only=True,
    value={"reason": "the pager was closed: node swapped"},
)
RESTART = OpenApiExample(
    "The cause is mended",
    request_only=True,
    value={"reason": "the checkpoint mount is back on every node"},
)
