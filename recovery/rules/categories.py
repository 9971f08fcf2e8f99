"""Categories of failures: what happened, in one word each. Source: the labels of cases/README.md, and ours."""

from __future__ import annotations

from collections.abc import Mapping

#: Category -> what it means.
CATEGORIES: Mapping[str, str] = {
    "gpu_mem_uncorrectable": "uncorrectable GPU memory error, failed row remap, proven silent corruption",
    "gpu_mem_corrected": "corrected GPU memory errors, pending remap or retirement",
    "gpu_lost": "GPU or accelerator gone, dead, unresponsive, or in need of a reset",
    "gpu_app_fault": "GPU exception that the program most likely raised; the GPU is healthy",
    "gpu_fabric": "NVLink, NVSwitch, C2C, XGMI or fabric manager",
    "host_hw": "other hardware of the host: PCIe, memory, local disk, platform errors",
    "rdma_nic": "network adapter, port or cable of one node",
    "shared_network": "fabric, name service, address pool, rendezvous service, connection storm",
    "shared_storage": "network file system, object store, model hub",
    "image_registry": "pull limits or outage of a registry",
    "peer_cascade": "this rank only tells of another rank's end",
    "hang": "no progress, no error, no culprit",
    "straggler": "the node works but slower than its peers",
    "user_code": "exception or mismatch in the program or its data",
    "bad_config": "arguments, image, libraries, permissions or resources wrongly set",
    "gpu_oom": "device memory exhausted",
    "host_oom": "host memory exhausted",
    "numeric": "not a number, divergence, loss scale at its floor",
    "ckpt_corrupt": "checkpoint truncated, partial or inconsistent",
    "disk_full": "disk, inodes or ephemeral storage exhausted",
    "preempted": "preemption, maintenance, wall time, outside kill",
    "node_lost": "NotReady, dead kubelet, kernel deadlock, node failure",
    "container_env": "state of container or runtime broken: device access, driver mismatch, admission, clock",
    "transient_unknown": "unexplained end, every check green",
    # Ours beyond the labels.
    "expired_certificate": "a certificate of a service has expired",
    "waiting_for_capacity": "not all members of a gang can be placed yet",
    "stuck_in_teardown": "the work was done and saved; the end did not come",
    "quota_exceeded": "a quota or allocation is used up",
    "unknown": "nothing that is known explains it",
}

#: Where one of ours is said in the words of the labelled cases.
NEAREST: Mapping[str, str] = {
    "expired_certificate": "shared_storage",
    "waiting_for_capacity": "shared_network",
    "stuck_in_teardown": "transient_unknown",
    "quota_exceeded": "bad_config",
    "unknown": "transient_unknown",
}
