"""`gpuinfra sizes` by the installed program, on the embedded Azure."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuinfra.sandbox import running
from tests.e2e.conftest import Run

T4 = "Standard_NC4as_T4_v3"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("sizes") / "home"
    running.start(folder)
    yield str(folder)
    running.stop(folder)


def test_sizes_lists_every_size(run: Run, home: str) -> None:
    done = run("--sandbox", "sizes", GPUINFRA_SANDBOX_HOME=home)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].split() == "SIZE GPU GPUS VCPUS MEMORY FROM SPOT FROM REGIONS".split()
    assert len(lines) == 19
    row = next(line for line in lines if line.startswith(T4))
    assert row.split()[:8] == [T4, "T4", "1", "4", "28", "GiB", "$0.526", "$0.158"]
    assert "southcentralus" in row
    assert "simulated" in done.stderr


def test_quota_of_one_region_is_json(run: Run, home: str, tmp_path: Path) -> None:
    quota = ("--region", "eastus", "--family", "Standard NCASv3_T4 Family", "--limit", "3")
    assert run("sandbox", "quota", *quota, GPUINFRA_SANDBOX_HOME=home).returncode == 0
    asked = ("sizes", "--gpu", "t4", "--region", "eastus", "--with-quota", "--json")
    done = run(*asked, GPUINFRA_CLOUD="sandbox", GPUINFRA_SANDBOX_HOME=home, XDG_CACHE_HOME=str(tmp_path / "cache"))
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert (document["schemaVersion"], document["simulated"]) == (1, True)
    assert [size["name"] for size in document["sizes"]][:2] == [T4, "Standard_NC8as_T4_v3"]
    (place,) = document["sizes"][0]["regions"]
    assert (place["region"], place["pricePerHourUsd"], place["spotPricePerHourUsd"]) == ("eastus", 0.526, 0.1578)
    assert place["quota"]["family"]["left"] == 3
    assert not (tmp_path / "cache").exists()


def test_unknown_region_and_gpu_suggest_the_nearest(run: Run) -> None:
    done = run("--sandbox", "sizes", "--region", "eastsu", "--region", "South Central US")
    assert done.returncode == 2
    assert "did you mean `eastus`?" in done.stderr
    assert "did you mean `southcentralus`?" in done.stderr
    done = run("sizes", "--gpu", "H10")
    assert (done.returncode, done.stdout) == (2, "")
    assert "did you mean `H100`?" in done.stderr


def test_sizes_without_a_login_names_the_ways_to_log_in(run: Run, home: str, tmp_path: Path) -> None:
    environment = json.loads(run("sandbox", "env", "--json", GPUINFRA_SANDBOX_HOME=home).stdout)
    del environment["schemaVersion"]
    done = run("sizes", "--region", "eastus", **{**environment, "AZURE_CLIENT_SECRET": "wrong"})
    assert done.returncode == 1
    assert done.stderr.startswith("error: not logged in to Azure\n")
    assert "az login" in done.stderr
    done = run("sizes", "--region", "eastus", "--gpu", "H100", **environment)
    assert done.returncode == 0, done.stderr
    assert "Standard_NC40ads_H100_v5" in done.stdout
