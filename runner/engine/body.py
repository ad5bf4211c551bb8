"""An order in the engine's words: what a container is made of."""

from __future__ import annotations

from typing import Any

from gpuinfra.runner.jobs.order import Gpus, Order

RUN_LABEL = "gpuinfra.run"
PROJECT_LABEL = "gpuinfra.project"
TIMEOUT_LABEL = "gpuinfra.timeout"
# Data loaders of PyTorch hand batches on by shared memory, and the engine's own 64 MiB is too little for one.
GPU_SHM_SIZE = 1 << 30
# `json-file` keeps no bytes that are not UTF-8. What an engine has as defaults may lose lines, those of old files and
# those that come too fast, so all is said; the size is more than any disk's.
LOG = {
    "Type": "local",
    "Config": {"max-size": "1000t", "max-file": "1", "compress": "false", "mode": "blocking"},
}
NO_GPU = {"NVIDIA_VISIBLE_DEVICES": "void"}


def name_of(run: str) -> str:
    """The name of a run's container."""
    return f"gpuinfra-{run}"


def body_of(order: Order, *, user: str | None = None, init: bool = True) -> dict[str, Any]:
    """What the engine is sent. Secrets are variables in it: they are in no list of processes, and gone with the
    container."""
    environment = {**order.environment, **order.secrets, **({} if order.gpus else NO_GPU)}
    labels = {**order.labels, RUN_LABEL: order.run}
    if order.timeout is not None:
        labels[TIMEOUT_LABEL] = repr(order.timeout)
    return {
        "Image": order.image,
        # Empty, and not left out: an image's own would take our command for its arguments.
        "Entrypoint": [],
        "Cmd": list(order.command),
        "WorkingDir": order.folder,
        "Env": [f"{name}={value}" for name, value in environment.items()],
        "Labels": labels,
        **({} if user is None else {"User": user}),
        "Tty": False,
        "StopSignal": "SIGTERM",
        "HostConfig": _host(order, init=init),
    }


def _host(order: Order, *, init: bool) -> dict[str, Any]:
    host: dict[str, Any] = {
        # As mounts and not as binds: of a bind that is missing, the engine would make a folder that is root's.
        "Mounts": [{"Type": "bind", "Source": source, "Target": target} for source, target in order.mounts],
        "LogConfig": LOG,
        "RestartPolicy": {"Name": "no"},
        # Somebody has to collect children, and to have signals end a job that does not ask for them.
        "Init": init,
    }
    if order.gpus:
        host["DeviceRequests"] = [_device_request(order.gpus)]
    if order.memory is not None:
        host["Memory"] = host["MemorySwap"] = order.memory
    shm_size = order.shm_size or (GPU_SHM_SIZE if order.gpus else None)
    if shm_size:
        host["ShmSize"] = shm_size
    return host


def _device_request(gpus: Gpus) -> dict[str, Any]:
    # No driver by name, as `docker run --gpus` has it: the engine takes the one that it has.
    request: dict[str, Any] = {"Driver": "", "Capabilities": [["gpu"]]}
    if gpus.ids:
        request["DeviceIDs"] = list(gpus.ids)
    else:
        request["Count"] = -1 if gpus.count is None else gpus.count
    return request
