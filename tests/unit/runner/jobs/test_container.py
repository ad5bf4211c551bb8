"""Orders, as an engine is sent them."""

import json

from gpuinfra.runner.job_spec import Gpus, StartRequest
from gpuinfra.runner.jobs.container import GPU_SHM_SIZE, RUN_LABEL, body_of

PLAIN = StartRequest("r1", ("python", "train.py"), "/project", image="sha256:ab")


def test_the_command_is_the_jobs_and_not_an_argument_of_the_images_own() -> None:
    body = body_of(PLAIN)
    assert body["Entrypoint"] == []
    assert body["Cmd"] == ["python", "train.py"]
    assert body["Labels"] == {RUN_LABEL: "r1"}


def test_a_job_without_gpus_sees_none_even_where_every_container_gets_them() -> None:
    body = body_of(StartRequest("r1", ("true",), "/", {"NVIDIA_VISIBLE_DEVICES": "all"}))
    assert "NVIDIA_VISIBLE_DEVICES=void" in body["Env"]
    assert "NVIDIA_VISIBLE_DEVICES=all" not in body["Env"]
    assert "DeviceRequests" not in body["HostConfig"]


def test_gpus_are_all_or_so_many_or_certain_ones() -> None:
    def request(gpus: Gpus) -> object:
        body = body_of(StartRequest("r1", ("true",), "/", gpus=gpus))
        assert not body["Env"]
        return body["HostConfig"]["DeviceRequests"]

    common = {"Driver": "", "Capabilities": [["gpu"]]}
    assert request(Gpus()) == [{**common, "Count": -1}]
    assert request(Gpus(count=2)) == [{**common, "Count": 2}]
    assert request(Gpus(ids=("0", "GPU-5"))) == [{**common, "DeviceIDs": ["0", "GPU-5"]}]


def test_memory_is_all_that_there_is_and_shared_memory_fits_data_loaders() -> None:
    host = body_of(StartRequest("r1", ("true",), "/", memory=1 << 30))["HostConfig"]
    assert (host["Memory"], host["MemorySwap"], "ShmSize" in host) == (1 << 30, 1 << 30, False)
    assert body_of(StartRequest("r1", ("true",), "/", gpus=Gpus()))["HostConfig"]["ShmSize"] == GPU_SHM_SIZE
    assert body_of(StartRequest("r1", ("true",), "/", gpus=Gpus(), shm_size=5))["HostConfig"]["ShmSize"] == 5


def test_a_folder_that_is_missing_is_not_made_by_the_engine() -> None:
    host = body_of(StartRequest("r1", ("true",), "/", mounts=(("/a b", "/project"),)))["HostConfig"]
    assert host["Mounts"] == [{"Type": "bind", "Source": "/a b", "Target": "/project"}]
    assert "Binds" not in host


def test_secrets_are_variables_and_nothing_else() -> None:
    body = body_of(StartRequest("r1", ("true",), "/", secrets={"TOKEN": "hunter2"}, labels={"a": "b"}))
    assert "TOKEN=hunter2" in body.pop("Env")
    assert "hunter2" not in json.dumps(body)
