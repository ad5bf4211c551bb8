"""The container configuration that is sent to the engine."""

import json

from gpuinfra.runner.container import GPU_SHM_SIZE, RUN_LABEL, container_config
from gpuinfra.runner.job_spec import Gpus, StartRequest

PLAIN = StartRequest("r1", ("python", "train.py"), "/project", image="sha256:ab")


def test_entrypoint_of_the_image_is_disabled() -> None:
    body = container_config(PLAIN)
    assert body["Entrypoint"] == []
    assert body["Cmd"] == ["python", "train.py"]
    assert body["Labels"] == {RUN_LABEL: "r1"}


def test_job_without_gpus_hides_them_from_the_container() -> None:
    body = container_config(StartRequest("r1", ("true",), "/", {"NVIDIA_VISIBLE_DEVICES": "all"}))
    assert "NVIDIA_VISIBLE_DEVICES=void" in body["Env"]
    assert "NVIDIA_VISIBLE_DEVICES=all" not in body["Env"]
    assert "DeviceRequests" not in body["HostConfig"]


def test_gpus_are_requested_by_count_or_ids() -> None:
    def request(gpus: Gpus) -> object:
        body = container_config(StartRequest("r1", ("true",), "/", gpus=gpus))
        assert not body["Env"]
        return body["HostConfig"]["DeviceRequests"]

    common = {"Driver": "", "Capabilities": [["gpu"]]}
    assert request(Gpus()) == [{**common, "Count": -1}]
    assert request(Gpus(count=2)) == [{**common, "Count": 2}]
    assert request(Gpus(ids=("0", "GPU-5"))) == [{**common, "DeviceIDs": ["0", "GPU-5"]}]


def test_memory_and_shared_memory_limits() -> None:
    host = container_config(StartRequest("r1", ("true",), "/", memory=1 << 30))["HostConfig"]
    assert (host["Memory"], host["MemorySwap"], "ShmSize" in host) == (1 << 30, 1 << 30, False)
    assert container_config(StartRequest("r1", ("true",), "/", gpus=Gpus()))["HostConfig"]["ShmSize"] == GPU_SHM_SIZE
    assert container_config(StartRequest("r1", ("true",), "/", gpus=Gpus(), shm_size=5))["HostConfig"]["ShmSize"] == 5


def test_folders_are_mounts_so_that_the_engine_creates_none() -> None:
    host = container_config(StartRequest("r1", ("true",), "/", mounts=(("/a b", "/project"),)))["HostConfig"]
    assert host["Mounts"] == [{"Type": "bind", "Source": "/a b", "Target": "/project"}]
    assert "Binds" not in host


def test_secrets_appear_only_as_variables() -> None:
    body = container_config(StartRequest("r1", ("true",), "/", secrets={"TOKEN": "hunter2"}, labels={"a": "b"}))
    assert "TOKEN=hunter2" in body.pop("Env")
    assert "hunter2" not in json.dumps(body)
