"""The simulated `nvidia-smi` speaks the real one's formats, and says that it is simulated."""

import ast
import csv
import json
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

import gpuinfra.sandbox.guest.nvidia_smi
from gpuinfra.sandbox.guest.spec import GuestSpec
from tests.integration.sandbox.guest_host import T4, WAIT_SECONDS, Client, GuestHost, Session, make_spec

A100 = replace(T4, model="A100", name="NVIDIA A100 80GB PCIe", count=2, memory_mib=81920, compute_capability="8.0")


@pytest.fixture(scope="module", params=[T4, A100], ids=["T4", "A100x2"])
def spec(
    request: pytest.FixtureRequest, host: GuestHost, client: Client, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[GuestSpec]:
    root = tmp_path_factory.mktemp("guest") / "root"
    spec = make_spec(root, client.public_key, gpu=request.param, vm_id=request.param.model)
    host.call(host.guests.start(spec))
    yield spec
    host.call(host.guests.delete(spec.vm_id, spec.root))


@pytest.fixture(scope="module")
def session(spec: GuestSpec, client: Client) -> Iterator[Session]:
    with client.connect(spec) as connection:
        yield Session(connection)


@pytest.fixture(autouse=True)
def idle(spec: GuestSpec, host: GuestHost) -> Iterator[None]:
    yield
    (spec.root / "run/gpu-load.json").unlink(missing_ok=True)
    host.guests.set_gpu_gone(spec.vm_id, False)


def query(session: Session, fields: str, style: str = "csv,noheader,nounits") -> list[list[str]]:
    text = session.output(f"nvidia-smi --query-gpu={fields} --format={style}")
    return list(csv.reader(text.splitlines(), skipinitialspace=True))


def count(spec: GuestSpec) -> int:
    assert spec.gpu is not None
    return spec.gpu.count


def test_table_says_simulated(spec: GuestSpec, session: Session) -> None:
    lines = session.output("nvidia-smi").splitlines()
    assert "NVIDIA-SMI 535.161.08 (simulated)" in lines[2]
    assert "Driver Version: 535.161.08" in lines[2]
    assert "CUDA Version: 12.2" in lines[2]
    assert {len(line) for line in lines[1:] if line.strip()} == {91}
    assert len([line for line in lines[7:] if "(simulated)" in line]) == count(spec)


def test_gpus_have_distinct_ids(spec: GuestSpec, session: Session) -> None:
    lines = session.output("nvidia-smi -L").splitlines()
    assert spec.gpu is not None
    assert len(set(lines)) == count(spec)
    assert lines[0].startswith(f"GPU 0: {spec.gpu.name} (simulated) (UUID: GPU-")


def test_ids_survive_a_power_cycle(host: GuestHost, client: Client, tmp_path: Path) -> None:
    own = make_spec(tmp_path / "root", client.public_key, vm_id="cycled")
    host.call(host.guests.start(own))
    before = client.output(own, "nvidia-smi -L")
    host.call(host.guests.stop(own.vm_id))
    host.call(host.guests.start(own))
    assert client.output(own, "nvidia-smi -L") == before
    host.call(host.guests.delete(own.vm_id, own.root))


def test_csv_with_header_and_units(spec: GuestSpec, session: Session) -> None:
    assert spec.gpu is not None
    header, *rows = query(session, "name,memory.total,utilization.gpu,power.draw,clocks.max.sm", "csv")
    assert header == ["name", "memory.total [MiB]", "utilization.gpu [%]", "power.draw [W]", "clocks.max.sm [MHz]"]
    assert len(rows) == count(spec)
    assert rows[0][:3] == [f"{spec.gpu.name} (simulated)", f"{spec.gpu.memory_mib} MiB", "0 %"]


def test_fields_that_jobs_query_are_supported(spec: GuestSpec, session: Session) -> None:
    assert spec.gpu is not None
    fields = (
        "name,gpu_name,uuid,index,count,pci.bus_id,driver_version,memory.total,memory.free,memory.used,"
        "utilization.gpu,utilization.memory,temperature.gpu,power.draw,power.limit,compute_cap,clocks.max.sm,clocks.sm,"
        "clocks.max.memory,pstate,serial,timestamp,persistence_mode,fan.speed"
    )
    rows = query(session, fields)
    assert [row[3] for row in rows] == [str(index) for index in range(count(spec))]
    values = dict(zip(fields.split(","), rows[0], strict=True))
    assert values["compute_cap"] == spec.gpu.compute_capability
    assert values["memory.total"] == str(spec.gpu.memory_mib)
    assert values["pstate"] == "P8"


def test_unknown_field_has_the_real_error(spec: GuestSpec, session: Session) -> None:
    done = session.run("nvidia-smi --query-gpu=name,colour --format=csv")
    assert (done.exit_code, done.stderr) == (2, "")
    assert done.stdout == 'Field "colour" is not a valid field to query.\n\n'


@pytest.mark.parametrize("arguments", ["--query-gpu=name", "--paint-it=red", "--query-gpu"])
def test_invalid_command_line_returns_two(spec: GuestSpec, session: Session, arguments: str) -> None:
    assert session.run(f"nvidia-smi {arguments}").exit_code == 2


def test_load_comes_from_the_guests_file(spec: GuestSpec, session: Session) -> None:
    load = {
        "utilization": 87,
        "memory_used_mib": 4000,
        "gpus": {"1": {"utilization": 5}},
        "processes": [{"pid": 4711, "name": "python", "memory_used_mib": 3900}],
    }
    session.run(f"echo '{json.dumps(load)}' > $GPUINFRA_GUEST_ROOT/run/gpu-load.json")
    rows = query(session, "utilization.gpu,memory.used,memory.free,pstate")
    assert spec.gpu is not None
    assert rows[0] == ["87", "4000", str(spec.gpu.memory_mib - 4000), "P0"]
    assert [row[0] for row in rows[1:]] == ["5"] * (count(spec) - 1)
    apps = session.output("nvidia-smi --query-compute-apps=pid,process_name,used_memory --format=csv")
    assert apps == "pid, process_name, used_memory [MiB]\n4711, python, 3900 MiB"
    assert " 4711 " in session.output("nvidia-smi")


def test_half_written_load_file_is_ignored(spec: GuestSpec, session: Session) -> None:
    (spec.root / "run/gpu-load.json").write_text('{"utiliz')
    assert query(session, "utilization.gpu,memory.used")[0] == ["0", "0"]


def test_xml_parses_and_has_the_common_elements(spec: GuestSpec, session: Session) -> None:
    assert spec.gpu is not None
    (spec.root / "run/gpu-load.json").write_text('{"utilization": 42, "memory_used_mib": 100}')
    log = ElementTree.fromstring(session.output("nvidia-smi -q -x"))
    assert log.findtext("driver_version") == "535.161.08"
    assert log.findtext("cuda_version") == "12.2"
    assert log.findtext("attached_gpus") == str(count(spec))
    gpus = log.findall("gpu")
    assert len(gpus) == count(spec)
    for gpu in gpus:
        assert gpu.findtext("product_name") == f"{spec.gpu.name} (simulated)"
        assert gpu.findtext("pci/pci_bus_id") == gpu.get("id")
        assert gpu.findtext("fb_memory_usage/total") == f"{spec.gpu.memory_mib} MiB"
        assert gpu.findtext("fb_memory_usage/used") == "100 MiB"
        assert gpu.findtext("utilization/gpu_util") == "42 %"
        assert str(gpu.findtext("clocks/sm_clock")).endswith(" MHz")
        assert str(gpu.findtext("max_clocks/sm_clock")).endswith(" MHz")
    assert [gpu.findtext("uuid") for gpu in gpus] == [row[0] for row in query(session, "uuid")]


def test_long_text_has_the_common_fields(spec: GuestSpec, session: Session) -> None:
    text = session.output("nvidia-smi -q")
    assert "NVSMI LOG (simulated)" in text
    assert text.count("Product Name") == count(spec)
    assert "    FB Memory Usage\n        Total" in text


def test_gpu_is_selected_by_index_or_id(spec: GuestSpec, session: Session) -> None:
    last = count(spec) - 1
    listed = session.output("nvidia-smi -L").splitlines()[last]
    chosen = listed.rpartition(": ")[2].rstrip(")")
    assert session.output(f"nvidia-smi -L -i {last}") == listed
    assert session.output(f"nvidia-smi -L --id={chosen}") == listed
    missing = session.run("nvidia-smi -i 7")
    assert (missing.stdout, missing.exit_code) == ("No devices were found\n", 6)


def test_loop_runs_until_it_is_interrupted(spec: GuestSpec, session: Session) -> None:
    command = "nvidia-smi --query-gpu=index --format=csv -i 0 -lms 50"
    assert session.output(f"{command} | head -n 4") == "index\n0\n0\n0"
    # A shell lets what it starts in the background ignore SIGINT.
    begin = f": > looped; env --default-signal=INT {command} > looped & pid=$!"
    wait = "until [ $(wc -l < looped) -ge 3 ]; do sleep 0.05; done"
    stopped = session.run(f"{begin}; {wait}; kill -INT $pid; wait $pid; cat looped")
    assert stopped.stderr == ""
    assert stopped.stdout.startswith("index\n0\n0\n")


@pytest.mark.parametrize("arguments", ["", "-L", "-q", "-q -x", "--query-gpu=name --format=csv"])
def test_lost_gpu_is_reported_as_by_the_real_tool(
    spec: GuestSpec, session: Session, host: GuestHost, arguments: str
) -> None:
    host.guests.set_gpu_gone(spec.vm_id, True)
    done = session.run(f"nvidia-smi {arguments}")
    assert done.exit_code == 255
    assert done.stdout == "Unable to determine the device handle for GPU0000:00:00.0: Unknown Error\n"
    host.guests.set_gpu_gone(spec.vm_id, False)
    assert session.run("nvidia-smi -L").exit_code == 0


def test_gpu_can_be_lost_at_boot_and_a_size_can_have_none(host: GuestHost, client: Client, tmp_path: Path) -> None:
    gone = make_spec(tmp_path / "gone", client.public_key, vm_id="gone", gpu_gone=True)
    none = make_spec(tmp_path / "none", client.public_key, vm_id="none", gpu=None)
    for spec in (gone, none):
        host.call(host.guests.start(spec))
    try:
        assert b"Unknown Error" in client.run(gone, "nvidia-smi").stdout
        assert client.run(none, "PATH=$GPUINFRA_GUEST_ROOT/bin; nvidia-smi").returncode == 127
    finally:
        for spec in (gone, none):
            host.call(host.guests.delete(spec.vm_id, spec.root))


def test_script_is_standalone_and_runs_on_old_python(spec: GuestSpec) -> None:
    source = Path(gpuinfra.sandbox.guest.nvidia_smi.__file__).read_text()
    ast.parse(source, feature_version=(3, 8))
    installed = spec.root / "bin/nvidia-smi"
    done = subprocess.run(
        [installed, "-L"], env={"PYTHONPATH": "/nowhere"}, capture_output=True, timeout=WAIT_SECONDS, check=True
    )
    assert done.stdout.startswith(b"GPU 0: ")
