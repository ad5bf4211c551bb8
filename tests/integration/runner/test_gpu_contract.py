"""The GPU check with a real engine over SSH. The GPUs, their driver and NVIDIA's hook are stand-ins."""

import contextlib
import tarfile
from collections.abc import Iterator

import pytest

from gpuinfra.models.target import GpuFacts
from gpuinfra.runner.connection.port import Completed
from gpuinfra.runner.docker.client import Engine
from gpuinfra.runner.errors import JobError
from gpuinfra.runner.gpu import diagnose
from gpuinfra.runner.helper_containers import run_once
from gpuinfra.runner.job_spec import Gpus
from gpuinfra.runner.nvidia_smi import PROBE, NoGpuError, probe_container, probe_host
from tests.lab import BUSYBOX, PYTHON, Lab
from tests.nvidia import CONTAINER, HOST, MISMATCH, NO_DEVICES, NO_DRIVER, NOT_INSTALLED, UNKNOWN_ERROR

SECONDS = 60.0
NO_SHELL, COMPUTE_ONLY = "no-shell:test", "compute-only:test"
DETAIL = "Tesla T4 (simulated), compute capability 7.5, 1.59 GHz, pciBusID 000{}:00:00.0, memory 15.0 GiB, free {}"


@pytest.fixture(scope="session")
def images(running_lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Add an image without a shell, and one without NVIDIA's tools."""
    archive = tmp_path_factory.mktemp("image") / "image.tar"
    with tarfile.open(archive, "w") as files:
        made = tarfile.TarInfo("tmp")
        made.type = tarfile.DIRTYPE
        files.addfile(made)
    running_lab.engine.add_image(NO_SHELL, archive)
    running_lab.engine.add_image(COMPUTE_ONLY, archive, "ENV NVIDIA_DRIVER_CAPABILITIES=compute")


@pytest.fixture
def engine(lab: Lab, images: None) -> Iterator[Engine]:
    with lab.connected() as connection, contextlib.closing(Engine(connection, SECONDS)) as engine:
        yield engine


class Probe:
    """Probes like a job, and counts its containers."""

    def __init__(self, engine: Engine, image: str, gpus: Gpus) -> None:
        self.engine, self.image, self.gpus = engine, image, gpus
        self.containers = 0

    def run(self, command: list[str]) -> Completed:
        self.containers += 1
        return run_once(self.engine, self.image, command, gpus=self.gpus, timeout=SECONDS)


def probe(engine: Engine, image: str = PYTHON, gpus: Gpus = Gpus()) -> GpuFacts:  # noqa: B008 frozen
    return probe_container(Probe(engine, image, gpus).run)


def diagnosis(engine: Engine, image: str = PYTHON, gpus: Gpus = Gpus()) -> JobError:  # noqa: B008 frozen
    """Return the explanation of a failed probe."""
    with pytest.raises((NoGpuError, JobError)) as caught:
        probe(engine, image, gpus)
    error = caught.value
    assert isinstance(error, NoGpuError | JobError)
    # Other errors of the engine are shown unchanged.
    assert isinstance(error, NoGpuError) or error.code == "no-gpu"
    return diagnose(error, shell=engine.connection, in_container=True, wanted=gpus, image=image, where=engine.where)


def test_probe_needs_one_container(engine: Engine, lab: Lab) -> None:
    lab.nvidia.load(40, 1024, gpu=1)
    asked = Probe(engine, PYTHON, Gpus())
    found = probe_container(asked.run)
    assert asked.containers == 1
    assert found.details == (DETAIL.format(1, "15.0 GiB"), DETAIL.format(2, "14.0 GiB"))
    assert (found.driver, found.cuda, found.simulated) == ("535.161.08", "12.2", True)
    assert found.clocks_mhz == (300, 1590)
    with lab.connected() as connection:
        assert probe_host(connection, SECONDS) == found
    assert not lab.engine.containers()


def test_image_without_a_shell_needs_more_containers(engine: Engine) -> None:
    asked = Probe(engine, NO_SHELL, Gpus())
    # The first container has no shell.
    assert (probe_container(asked.run), asked.containers) == (probe(engine), 3)


@pytest.mark.parametrize(
    ("gpus", "buses"),
    [(Gpus(1), ["00000001"]), (Gpus(ids=("1",)), ["00000002"]), (Gpus(ids=("1", "0")), ["00000002", "00000001"])],
)
def test_job_sees_the_requested_gpus(engine: Engine, gpus: Gpus, buses: list[str]) -> None:
    assert [str(bus).partition(":")[0] for bus in probe(engine, BUSYBOX, gpus).bus_ids] == buses


def test_request_for_too_many_gpus_is_refused(engine: Engine) -> None:
    error = diagnosis(engine, gpus=Gpus(3))
    assert error.note.startswith(f"the job requests 3 GPUs, but {engine.where} has 2, numbered 0 to 1: 2 Tesla T4")
    assert error.help == "request fewer: `--gpus 2`"
    assert "requests GPU GPU-1234, but" in diagnosis(engine, gpus=Gpus(ids=("GPU-1234",))).note


@pytest.mark.parametrize(
    ("failure", "places", "note"),
    [
        (NO_DRIVER, (HOST, CONTAINER), "the NVIDIA driver is not loaded on {where}"),
        (NO_DRIVER, (CONTAINER,), "the NVIDIA driver is not loaded on {where}"),
        (MISMATCH, (HOST, CONTAINER), "the NVIDIA driver was updated on {where} while it was loaded"),
        (NO_DEVICES, (HOST, CONTAINER), "the NVIDIA driver on {where} finds no GPU"),
        (NO_DEVICES, (CONTAINER,), "the container of python:test gets none of the GPUs of {where}"),
        (UNKNOWN_ERROR, (CONTAINER,), "the container of python:test is not permitted to use the GPUs"),
        (NOT_INSTALLED, (HOST, CONTAINER), "there is no NVIDIA driver on {where}"),
    ],
)
def test_fault_is_reported(engine: Engine, lab: Lab, failure: str, places: tuple[str, ...], note: str) -> None:
    with lab.nvidia.failing(failure, *places):
        error = diagnosis(engine)
    assert error.code == "no-gpu"
    assert error.note.startswith(note.format(where=engine.where))
    assert error.help
    assert not lab.engine.containers()


def test_image_without_the_utility_capability_is_reported(engine: Engine) -> None:
    error = diagnosis(engine, COMPUTE_ONLY)
    assert error.note.startswith("compute-only:test gets no `nvidia-smi`")
    asked = run_once(
        engine,
        COMPUTE_ONLY,
        ["nvidia-smi", "-L"],
        gpus=Gpus(),
        timeout=SECONDS,
        # The fix that the error suggests.
        environment={"NVIDIA_DRIVER_CAPABILITIES": "compute,utility"},
    )
    assert asked.stdout.count("simulated") == 2


def test_missing_nvidia_runtime_is_reported(lab: Lab, images: None) -> None:
    with (
        lab.without_runtime(),
        lab.connected() as connection,
        contextlib.closing(Engine(connection, SECONDS)) as engine,
    ):
        error = diagnosis(engine)
    assert error.note.startswith(f"the engine on {engine.where} gives containers no GPU")
    assert "nvidia-ctk runtime configure" in (error.help or "")


def test_fault_without_containers_is_reported(lab: Lab) -> None:
    with lab.connected() as connection, lab.nvidia.failing(NO_DRIVER):
        with pytest.raises(NoGpuError) as caught:
            probe_host(connection, SECONDS)
        error = diagnose(caught.value, shell=connection, in_container=False, where=connection.where)
    assert error.note.startswith(f"the NVIDIA driver is not loaded on {connection.where}")


def test_job_without_gpus_sees_none(engine: Engine) -> None:
    asked = run_once(engine, PYTHON, list(PROBE), gpus=None, timeout=SECONDS)
    assert asked.exit_code == 127


def test_stand_in_shows_the_same_load_in_a_container(engine: Engine, lab: Lab) -> None:
    query = ["nvidia-smi", "--query-gpu=index,utilization.gpu,memory.used", "--format=csv,noheader,nounits"]
    lab.nvidia.load(87, 4000)
    lab.nvidia.load(3, 20, gpu=1)
    with lab.connected() as connection:
        outside = connection.run(query, timeout=SECONDS)
    inside = run_once(engine, BUSYBOX, query, gpus=Gpus(), timeout=SECONDS)
    assert outside.stdout == inside.stdout == "0, 87, 4000\n1, 3, 20\n"
