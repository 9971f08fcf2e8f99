"""A pod's volumes on disk."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from sim.kubelet.volumes import PodVolumes, VolumeFailed, field_value


class Shelf:
    """Sources in memory; each token it makes is another one."""

    def __init__(self) -> None:
        self.maps: dict[str, dict[str, str]] = {}
        self.tokens_made = 0

    def config_map(self, namespace: str, name: str) -> Mapping[str, Any] | None:
        return {"data": self.maps[name]} if name in self.maps else None

    def secret(self, namespace: str, name: str) -> Mapping[str, Any] | None:
        return None

    def token(self, pod: Mapping[str, Any], audience: str | None, expires_seconds: int) -> str:
        self.tokens_made += 1
        return f"token {self.tokens_made} for {audience}, {expires_seconds} s"


def volumes(tmp_path: Path, shelf: Shelf, *given: dict[str, Any]) -> PodVolumes:
    pod = {"metadata": {"name": "p", "namespace": "lab", "uid": "u"}, "spec": {"volumes": list(given)}}
    return PodVolumes(pod=pod, directory=tmp_path / "pod", shared=tmp_path / "shared", sources=shelf)


def token_volume(seconds: int) -> dict[str, Any]:
    source = {"serviceAccountToken": {"path": "token", "audience": "desk", "expirationSeconds": seconds}}
    return {
        "name": "token",
        "projected": {"sources": [source, {"configMap": {"name": "m", "optional": True}}]},
    }


def test_token_is_kept_until_most_of_its_life_has_passed(tmp_path: Path) -> None:
    shelf = Shelf()
    kept = volumes(tmp_path, shelf, token_volume(600))
    kept.set_up()
    kept.sync()
    assert (tmp_path / "pod/volumes/token/token").read_text() == "token 1 for desk, 600 s"


def test_due_token_is_replaced_by_a_new_one(tmp_path: Path) -> None:
    shelf = Shelf()
    short = volumes(tmp_path, shelf, token_volume(-1))  # due as soon as it is made
    short.set_up()
    short.sync()

    assert (tmp_path / "pod/volumes/token/token").read_text() == "token 2 for desk, -1 s"


def test_config_map_that_is_gone_keeps_its_last_content(tmp_path: Path) -> None:
    shelf = Shelf()
    shelf.maps["m"] = {"mode": "on"}
    mounted = volumes(tmp_path, shelf, {"name": "m", "configMap": {"name": "m"}})
    mounted.set_up()
    del shelf.maps["m"]
    mounted.sync()

    assert (tmp_path / "pod/volumes/m/mode").read_text() == "on"


def test_only_the_items_named_are_written_under_their_paths(tmp_path: Path) -> None:
    shelf = Shelf()
    shelf.maps["m"] = {"a": "1", "b": "2"}
    items = [{"key": "a", "path": "deep/name"}]
    volumes(tmp_path, shelf, {"name": "m", "configMap": {"name": "m", "items": items}}).set_up()

    found = [
        str(p.relative_to(tmp_path / "pod/volumes/m"))
        for p in (tmp_path / "pod/volumes/m").rglob("*")
        if p.is_file()
    ]
    assert found == ["deep/name"]


@pytest.mark.parametrize(
    "volume",
    [
        {"name": "h", "hostPath": {"path": "/../../outside"}},
        {"name": "m", "configMap": {"name": "m", "items": [{"key": "a", "path": "../../../outside"}]}},
    ],
    ids=["hostPath", "item"],
)
def test_no_volume_leaves_its_place(tmp_path: Path, volume: dict[str, Any]) -> None:
    shelf = Shelf()
    shelf.maps["m"] = {"a": "1"}
    with pytest.raises(VolumeFailed, match="leaves its volume"):
        volumes(tmp_path, shelf, volume).set_up()
    assert not (tmp_path / "outside").exists()


def test_shared_volumes_outlive_the_pod(tmp_path: Path) -> None:
    mounted = volumes(
        tmp_path,
        Shelf(),
        {"name": "h", "hostPath": {"path": "/ckpt"}},
        {"name": "c", "persistentVolumeClaim": {"claimName": "data"}},
        {"name": "e", "emptyDir": {}},
    )
    mounted.set_up()
    mounts = mounted.mounts(
        {
            "volumeMounts": [
                {"name": "h", "mountPath": "/h"},
                {"name": "c", "mountPath": "/c"},
                {"name": "e", "mountPath": "/e/"},
            ]
        }
    )
    mounted.remove()

    assert [Path(mounts[p]).is_dir() for p in ("/h", "/c", "/e")] == [True, True, False]


def test_downward_fields() -> None:
    pod = {
        "metadata": {"name": "p", "annotations": {"a/b": "1"}, "labels": {"x": "y"}},
        "spec": {"nodeName": "n"},
        "status": {"podIP": "127.1.1.1"},
    }
    paths = (
        "metadata.name",
        "metadata.annotations['a/b']",
        "metadata.labels",
        "spec.nodeName",
        "status.podIP",
    )
    assert [field_value(pod, path) for path in paths] == ["p", "1", 'x="y"\n', "n", "127.1.1.1"]
    assert field_value(pod, "spec.serviceAccountName") == "default"
    with pytest.raises(VolumeFailed):
        field_value(pod, "spec.containers")
