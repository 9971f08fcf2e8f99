"""Volumes of one pod as directories below the cluster's directory, and the paths that point into them.

There is no mount namespace: a container sees a volume under its real path, so every mount path in the
container's arguments and environment values is rewritten to that.
"""

from __future__ import annotations

import base64
import os
import re
import shutil
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

# A token is renewed when 80 % of its life has passed (kubelet's rule).
TOKEN_RENEWAL_SHARE = 0.8
DEFAULT_TOKEN_SECONDS = 3600


class VolumeFailed(Exception):
    """A volume cannot be set up yet: its source is missing. The kubelet tries again."""


class Sources(Protocol):
    """What volumes are made from."""

    def config_map(self, namespace: str, name: str) -> Mapping[str, Any] | None: ...

    def secret(self, namespace: str, name: str) -> Mapping[str, Any] | None: ...

    def token(self, pod: Mapping[str, Any], audience: str | None, expires_seconds: int) -> str: ...


@dataclass
class PodVolumes:
    """The volumes of one pod. ``directory`` is the pod's own, removed with it; ``shared`` outlives pods."""

    pod: Mapping[str, Any]
    directory: Path
    shared: Path
    sources: Sources
    rewrite: Callable[[str], str] = field(default=lambda text: text)
    """Applied to each configMap value: here the desk's URL becomes that of the pod's forwarder."""
    _renewals: dict[Path, float] = field(default_factory=dict, init=False)  # token file -> Unix seconds

    def set_up(self) -> None:
        """Make every volume. May be called again.

        Raises:
            VolumeFailed: A configMap or secret that is not optional does not exist.
        """
        for volume in self.pod["spec"].get("volumes") or []:
            path = self.path(volume)
            path.mkdir(parents=True, exist_ok=True)
            self._fill(volume, path)

    def sync(self) -> None:
        """Bring configMaps, secrets and tokens up to date; a source that is gone keeps its last content."""
        for volume in self.pod["spec"].get("volumes") or []:
            with suppress(VolumeFailed):
                self._fill(volume, self.path(volume))

    def path(self, volume: Mapping[str, Any]) -> Path:
        """Where the volume's content is on this machine."""
        if "hostPath" in volume:
            return _below(self.shared / "hostpaths", str(volume["hostPath"]["path"]))
        if "persistentVolumeClaim" in volume:
            namespace = str(self.pod["metadata"]["namespace"])
            claim = str(volume["persistentVolumeClaim"]["claimName"])
            return _below(self.shared / "claims", f"{namespace}/{claim}")
        return _below(self.directory / "volumes", str(volume["name"]))

    def mounts(self, container: Mapping[str, Any]) -> dict[str, str]:
        """Mount path in the container -> real path."""
        volumes = {volume["name"]: volume for volume in self.pod["spec"].get("volumes") or []}
        found = {}
        for mount in container.get("volumeMounts") or []:
            path = self.path(volumes[mount["name"]])
            if mount.get("subPath"):
                path = _below(path, str(mount["subPath"]))
                path.mkdir(parents=True, exist_ok=True)
            found[str(mount["mountPath"]).rstrip("/")] = str(path)
        return found

    def remove(self) -> None:
        """Delete the pod's own directory; what is shared stays."""
        shutil.rmtree(self.directory, ignore_errors=True)

    def _fill(self, volume: Mapping[str, Any], path: Path) -> None:
        namespace = str(self.pod["metadata"]["namespace"])
        if "configMap" in volume:
            source = volume["configMap"]
            self._write_map(path, self._config_map(namespace, source), source)
        elif "secret" in volume:
            source = volume["secret"]
            self._write_map(
                path,
                self._secret(namespace, {"name": source["secretName"], **source}),
                source,
            )
        elif "downwardAPI" in volume:
            self._write_downward(path, volume["downwardAPI"].get("items") or [])
        elif "projected" in volume:
            for source in volume["projected"].get("sources") or []:
                if "serviceAccountToken" in source:
                    self._write_token(path, source["serviceAccountToken"])
                elif "configMap" in source:
                    self._write_map(
                        path,
                        self._config_map(namespace, source["configMap"]),
                        source["configMap"],
                    )
                elif "secret" in source:
                    self._write_map(
                        path,
                        self._secret(namespace, source["secret"]),
                        source["secret"],
                    )
                elif "downwardAPI" in source:
                    self._write_downward(path, source["downwardAPI"].get("items") or [])

    def _config_map(self, namespace: str, source: Mapping[str, Any]) -> dict[str, bytes]:
        found = self.sources.config_map(namespace, str(source["name"]))
        if found is None:
            if source.get("optional"):
                return {}
            raise VolumeFailed(f'configmap "{source["name"]}" not found')
        values = {key: self.rewrite(text).encode() for key, text in (found.get("data") or {}).items()}
        return values | {key: base64.b64decode(text) for key, text in (found.get("binaryData") or {}).items()}

    def _secret(self, namespace: str, source: Mapping[str, Any]) -> dict[str, bytes]:
        found = self.sources.secret(namespace, str(source["name"]))
        if found is None:
            if source.get("optional"):
                return {}
            raise VolumeFailed(f'secret "{source["name"]}" not found')
        values = {key: base64.b64decode(text) for key, text in (found.get("data") or {}).items()}
        return values | {key: text.encode() for key, text in (found.get("stringData") or {}).items()}

    def _write_map(self, path: Path, values: dict[str, bytes], source: Mapping[str, Any]) -> None:
        if source.get("items"):
            missing = [item["key"] for item in source["items"] if item["key"] not in values]
            if missing and not source.get("optional"):
                raise VolumeFailed(f"references non-existent config key: {missing[0]}")
            values = {item["path"]: values[item["key"]] for item in source["items"] if item["key"] in values}
        for name, content in values.items():
            _replace(_below(path, name), content)

    def _write_downward(self, path: Path, items: list[Mapping[str, Any]]) -> None:
        for item in items:
            if "fieldRef" in item:
                text = field_value(self.pod, str(item["fieldRef"]["fieldPath"]))
                _replace(_below(path, str(item["path"])), text.encode())

    def _write_token(self, path: Path, source: Mapping[str, Any]) -> None:
        file = _below(path, str(source["path"]))
        now = time.time()
        if now < self._renewals.get(file, 0.0):
            return
        seconds = int(source.get("expirationSeconds") or DEFAULT_TOKEN_SECONDS)
        token = self.sources.token(self.pod, source.get("audience"), seconds)
        _replace(file, token.encode())
        self._renewals[file] = now + seconds * TOKEN_RENEWAL_SHARE


def _below(directory: Path, name: str) -> Path:
    """``directory/name``, its parent made; refused when it would leave the directory."""
    path = Path(os.path.normpath(directory / name.lstrip("/")))
    if not path.is_relative_to(directory):
        raise VolumeFailed(f"path {name!r} leaves its volume")
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def _replace(path: Path, content: bytes) -> None:
    """Swap the file in one step, so that a reader sees the old or the new content whole."""
    if path.exists() and path.read_bytes() == content:
        return
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_bytes(content)
    temporary.rename(path)


def rewrite_paths(text: str, mounts: Mapping[str, str]) -> str:
    """Replace every mount path that stands in ``text`` as a path of its own (not inside a longer name).

    ``/checkpoints/step-1`` with ``/checkpoints`` mounted is replaced; ``/checkpoints2`` and ``/a/checkpoints`` are not.
    """
    if not mounts:
        return text
    longest_first = sorted(mounts, key=len, reverse=True)
    pattern = r"(?<![\w.\-/])(" + "|".join(map(re.escape, longest_first)) + r")(?![\w.\-])"
    return re.sub(pattern, lambda match: mounts[match.group(1)], text)


def field_value(pod: Mapping[str, Any], path: str) -> str:
    """Value of a downward API field path, as text.

    Raises:
        VolumeFailed: The path is not one that the downward API knows.
    """
    metadata, spec, status = pod["metadata"], pod["spec"], pod.get("status") or {}
    keyed = re.fullmatch(r"metadata\.(annotations|labels)\['([^']+)'\]", path)
    if keyed:
        return str((metadata.get(keyed.group(1)) or {}).get(keyed.group(2), ""))
    if path in ("metadata.annotations", "metadata.labels"):
        pairs = metadata.get(path.partition(".")[2]) or {}
        return "".join(f'{key}="{value}"\n' for key, value in sorted(pairs.items()))
    plain = {
        "metadata.name": metadata.get("name"),
        "metadata.namespace": metadata.get("namespace"),
        "metadata.uid": metadata.get("uid"),
        "spec.nodeName": spec.get("nodeName"),
        "spec.serviceAccountName": spec.get("serviceAccountName") or "default",
        "status.podIP": status.get("podIP"),
        "status.podIPs": status.get("podIP"),
        "status.hostIP": status.get("hostIP"),
        "status.hostIPs": status.get("hostIP"),
    }
    if path not in plain:
        raise VolumeFailed(f"unsupported fieldPath: {path}")
    return str(plain[path] or "")
