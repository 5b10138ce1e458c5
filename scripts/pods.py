"""Makes pods that podman can play out of the overlays, for scripts/pods.sh: what is changed, and why, stands here.

Reads WORK/{sidecar,node,engines}.in.yaml, writes WORK/*.play.yaml.
"""

from __future__ import annotations

import copy
import sys
from pathlib import Path
from typing import Any

import yaml

ARENA = "64MiB"
STAGING = "64MiB"
LIMIT = "384Mi"
# Of a memory volume: enough for the arena's file, and too little.
VOLUME, SMALL_VOLUME = "96m", "32m"
# Where volumes are.
VOLUMES = "/run/tender-pods/volumes"
# What stands for folders of a node.
FOLDERS = {"/run/tender": "/run/tender-pods/sockets", "/dev/shm/tender": "/dev/shm/tender-pods-arena"}


def pod_of(path: Path, kind: str, engine: str) -> dict[str, Any]:
    """The one workload of that kind, as a pod."""
    objects = [entry for entry in yaml.safe_load_all(path.read_text()) if entry["kind"] == kind]
    (workload,) = [entry for entry in objects if entry["metadata"]["name"] in ("inference", "tenderd")]
    spec = workload["spec"]["template"]["spec"]
    # The cluster's own: nodes, accounts, and the kubelet's counting.
    for key in ("nodeSelector", "tolerations", "topologySpreadConstraints", "serviceAccountName", "enableServiceLinks"):
        spec.pop(key, None)
    first = spec.get("initContainers", [])
    # podman has no native sidecars: it would wait for their end.
    beside = [container for container in first if container.pop("restartPolicy", None) == "Always"]
    spec["initContainers"] = first = [container for container in first if container not in beside]
    spec["containers"] = beside + spec["containers"]
    for container in first + spec["containers"]:
        adapt(container, engine)
    for volume in spec["volumes"]:
        if "hostPath" in volume:
            volume["hostPath"] = {"path": FOLDERS[volume["hostPath"]["path"]], "type": "DirectoryOrCreate"}
        # The kubelet mounts these with their size and gives them to fsGroup, podman does neither: scripts/pods.sh does.
        if volume.pop("emptyDir", None) is not None:
            volume["hostPath"] = {"path": f"{VOLUMES}/{volume['name']}", "type": "Directory"}
    name = f"{workload['metadata']['name']}-pod"
    labels = workload["spec"]["template"]["metadata"]["labels"]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": labels},
        "spec": spec | {"restartPolicy": "Never"},
    }


def adapt(container: dict[str, Any], engine: str) -> None:
    container["imagePullPolicy"] = "Never"
    # podman makes health checks of them, and nobody runs those; preStop is not known.
    for key in ("startupProbe", "readinessProbe", "livenessProbe", "lifecycle"):
        container.pop(key, None)
    container["resources"] = {"limits": {"cpu": "1", "memory": LIMIT}}
    if container["name"] == "vllm":
        container["image"] = engine
        container.pop("args")
        container["env"] = [{"name": "TENDER_ADDRESS", "value": "unix:/run/tender/tenderd.sock"}]
    if container["name"] == "tenderd":
        small = {"--arena-size": ARENA, "--max-total-staging": STAGING}
        args = [argument.replace("$(POD_IP)", "0.0.0.0") for argument in container["args"]]
        args = [f"{flag}={small.get(flag, value)}" for flag, value in (argument.split("=", 1) for argument in args)]
        container["args"] = [*args, f"--max-staging={STAGING}"]
        container.pop("env", None)


def daemon_alone(pod: dict[str, Any], memory: str) -> dict[str, Any]:
    """The same pod without its engine, and with another limit."""
    pod = copy.deepcopy(pod)
    containers = [container for container in pod["spec"]["containers"] if container["name"] == "tenderd"]
    containers[0]["resources"]["limits"]["memory"] = memory
    pod["spec"]["containers"] = containers
    return pod


def main() -> None:
    work, engine = Path(sys.argv[1]), sys.argv[2]
    sidecar = pod_of(work / "sidecar.in.yaml", "Deployment", engine)
    pods = {
        "sidecar": (sidecar, VOLUME),
        "small": (daemon_alone(sidecar, LIMIT), SMALL_VOLUME),
        "limit": (daemon_alone(sidecar, "48Mi"), VOLUME),
        "node": (pod_of(work / "node.in.yaml", "DaemonSet", engine), VOLUME),
        "engines": (pod_of(work / "engines.in.yaml", "Deployment", engine), VOLUME),
    }
    for name, (pod, size) in pods.items():
        (work / f"{name}.play.yaml").write_text(yaml.safe_dump(pod, sort_keys=False))
        volumes = [v["hostPath"]["path"] for v in pod["spec"]["volumes"] if v["hostPath"]["path"].startswith(VOLUMES)]
        (work / f"{name}.volumes").write_text("".join(f"{volume} {size}\n" for volume in volumes))


if __name__ == "__main__":
    main()
