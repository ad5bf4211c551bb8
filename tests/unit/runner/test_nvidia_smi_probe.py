"""The probe of GPUs, and the XML that `nvidia-smi -q -x` prints."""

from collections.abc import Callable

import pytest

from gpuinfra.models.target import GpuFacts
from gpuinfra.runner.connection.port import Completed
from gpuinfra.runner.errors import JobError
from gpuinfra.runner.nvidia_smi import (
    DESCRIBE,
    MAX_GPUS,
    MAX_SIZE,
    PROBE,
    PROBE_MARK,
    QUERY,
    NoGpuError,
    combine_answers,
    parse_xml,
    probe_container,
    read_probe,
)

DOCTYPE = '<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v12.dtd">'
# The output of drivers since 525, without most of the values that gpuinfra does not use.
GPU = """
	<gpu id="00000001:00:00.0">
		<product_name>Tesla T4</product_name>
		<product_brand>NVIDIA</product_brand>
		<mig_mode><current_mig>N/A</current_mig></mig_mode>
		<uuid>GPU-5f6f4a3e-0000-4000-8000-0123456789ab</uuid>
		<pci>
			<pci_bus>00</pci_bus>
			<pci_bus_id>00000001:00:00.0</pci_bus_id>
			<pci_gpu_link_info><pcie_gen><max_link_gen>3</max_link_gen></pcie_gen></pci_gpu_link_info>
		</pci>
		<fb_memory_usage>
			<total>15360 MiB</total>
			<reserved>248 MiB</reserved>
			<used>0 MiB</used>
			<free>15111 MiB</free>
		</fb_memory_usage>
		<bar1_memory_usage><total>256 MiB</total><used>2 MiB</used><free>254 MiB</free></bar1_memory_usage>
		<utilization><gpu_util>0 %</gpu_util></utilization>
		<clocks><graphics_clock>300 MHz</graphics_clock><sm_clock>305 MHz</sm_clock></clocks>
		<applications_clocks><graphics_clock>585 MHz</graphics_clock></applications_clocks>
		<max_clocks><graphics_clock>1590 MHz</graphics_clock><sm_clock>1590 MHz</sm_clock></max_clocks>
		<processes><process_info><pid>1</pid><process_name>a &amp; b</process_name></process_info></processes>
	</gpu>
"""
ROW = "Tesla T4, 535.161.08, 15360 MiB, 7.5\n"


def document(*gpus: str, doctype: str = DOCTYPE, driver: str = "535.161.08") -> str:
    head = f'<?xml version="1.0" ?>\n{doctype}\n<nvidia_smi_log>\n\t<timestamp>Mon Nov 16 12:00:00 2026</timestamp>'
    versions = f"<driver_version>{driver}</driver_version><cuda_version>12.2</cuda_version>"
    return f"{head}{versions}<attached_gpus>{len(gpus)}</attached_gpus>{''.join(gpus)}</nvidia_smi_log>\n"


def facts(text: str) -> GpuFacts:
    found = parse_xml(text)
    assert found is not None
    return found


def test_real_document_is_parsed() -> None:
    assert facts(document(GPU)) == GpuFacts(
        models=("Tesla T4",),
        driver="535.161.08",
        memory_mib=(15360,),
        compute_capabilities=(None,),
        simulated=False,
        cuda="12.2",
        uuids=("GPU-5f6f4a3e-0000-4000-8000-0123456789ab",),
        bus_ids=("00000001:00:00.0",),
        memory_free_mib=(15111,),
        clocks_mhz=(305,),
        max_clocks_mhz=(1590,),
    )


def test_details_and_summary_for_users() -> None:
    found = combine_answers(Completed(0, document(GPU), ""), Completed(0, ROW, ""))
    assert found.details == (
        "Tesla T4, compute capability 7.5, 1.59 GHz, pciBusID 0001:00:00.0, memory 15.0 GiB, free 14.8 GiB",
    )
    assert found.summary == "Tesla T4, 15360 MiB, driver 535.161.08"


def test_json_has_every_value() -> None:
    found = combine_answers(Completed(0, document(GPU), ""), Completed(0, ROW, "")).as_json()
    assert found == {
        "count": 1,
        "models": ["Tesla T4"],
        "driver": "535.161.08",
        "memoryMiB": [15360],
        "computeCapabilities": ["7.5"],
        "simulated": False,
        "cuda": "12.2",
        "uuids": ["GPU-5f6f4a3e-0000-4000-8000-0123456789ab"],
        "busIds": ["00000001:00:00.0"],
        "memoryFreeMiB": [15111],
        "clocksMHz": [305],
        "maxClocksMHz": [1590],
    }


def test_several_gpus_have_separate_details() -> None:
    other = GPU.replace("00000001:", "00000002:").replace("Tesla T4", "Tesla V100-PCIE-16GB (simulated)")
    found = facts(document(GPU, other))
    assert found.models == ("Tesla T4", "Tesla V100-PCIE-16GB (simulated)")
    assert found.simulated
    assert [line.split(",")[0] for line in found.details] == list(found.models)
    assert "pciBusID 0002:00:00.0" in found.details[1]


def test_unknown_values_are_left_out() -> None:
    bare = "<gpu><product_name>Tesla K80</product_name><uuid>N/A</uuid><clocks><sm_clock>N/A</sm_clock></clocks></gpu>"
    found = facts(document(bare))
    assert found.details == ("Tesla K80",)
    assert (found.uuids, found.clocks_mhz, found.memory_mib) == ((None,), (None,), (None,))


def test_gpu_without_free_memory_is_described() -> None:
    assert facts(document(GPU.replace("15111 MiB", "0 MiB"))).details[0].endswith("memory 15.0 GiB, free 0.0 GiB")


def test_graphics_clock_is_the_fallback() -> None:
    assert facts(document(GPU.replace("sm_clock", "old_clock"))).clocks_mhz == (300,)


def test_warning_before_the_document_is_ignored() -> None:
    assert facts("WARNING: infoROM is corrupted at gpu 0001:00:00.0\n" + document(GPU)).models == ("Tesla T4",)


LAUGHS = '<!DOCTYPE a [<!ENTITY b "&c;&c;"><!ENTITY c "ha">]>'
FILE = '<!DOCTYPE a [<!ENTITY c SYSTEM "file:///etc/passwd">]>'


@pytest.mark.parametrize(
    "text",
    [
        "",
        "No devices were found\n",
        "<?xml version='1.0'?>",
        document(),
        document(GPU, driver=""),
        document(GPU)[:-20],
        document(GPU).replace("Tesla T4", ""),
        document(GPU).replace("Tesla T4", "\x1b[2J"),
        document(GPU).replace("Tesla T4", "Tesla&#x9b;T4"),
        document(GPU).replace("Tesla T4", "Tesla &c;T4", 1),
        document(GPU, doctype=LAUGHS),
        document(GPU, doctype=LAUGHS).replace("Tesla T4", "&b;"),
        document(GPU, doctype=FILE).replace("Tesla T4", "&c;"),
        document(*[GPU] * (MAX_GPUS + 1)),
        document(GPU) + " " * MAX_SIZE,
        document(GPU, "<deep>" * 40 + "</deep>" * 40),
        document(GPU).replace("Tesla T4", "\ud800\x00"),
    ],
)
def test_invalid_document_is_none(text: str) -> None:
    assert parse_xml(text) is None


@pytest.mark.parametrize("amount", ["9" * 5000 + " MiB", "many MiB", "15360", "-1 MiB", "٣ MiB", "15360 GiB"])
def test_invalid_amount_is_left_out(amount: str) -> None:
    assert facts(document(GPU.replace("15360 MiB", amount))).memory_mib == (None,)


# The probe
def answer(*parts: tuple[str, int]) -> str:
    return f"{PROBE_MARK}\n" + "".join(f"{said}\n{PROBE_MARK} {code}\n" for said, code in parts)


def test_one_command_queries_every_value() -> None:
    asked: list[list[str]] = []

    def run(command: list[str]) -> Completed:
        asked.append(command)
        return Completed(0, f"Welcome!\n{answer((document(GPU), 0), (ROW, 0))}", "")

    assert probe_container(run).compute_capabilities == ("7.5",)
    assert asked == [list(PROBE)]


def test_driver_without_compute_capability_is_accepted() -> None:
    refusal = 'Field "compute_cap" is not a valid field to query.\n'
    assert read_probe(Completed(0, answer((document(GPU), 0), (refusal, 2)), "")).compute_capabilities == (None,)


def test_table_is_used_if_the_document_is_unknown() -> None:
    found = read_probe(Completed(0, answer(("<?xml?><something/>", 0), (ROW, 0)), ""))
    assert (found.models, found.cuda) == (("Tesla T4",), None)


def test_table_of_other_gpus_is_ignored() -> None:
    assert combine_answers(Completed(0, document(GPU), ""), Completed(0, ROW * 2, "")).compute_capabilities == (None,)


def test_failed_description_is_an_error_despite_a_table() -> None:
    with pytest.raises(NoGpuError, match="finds no GPU"):
        combine_answers(Completed(6, "No devices were found\n", ""), Completed(0, ROW, ""))


def test_error_does_not_include_the_shells_greeting() -> None:
    with pytest.raises(NoGpuError, match="the NVIDIA driver finds no GPU") as caught:
        read_probe(Completed(6, f"Welcome!\n{answer(('No devices were found', 6))}", ""))
    assert caught.value.done == Completed(6, "No devices were found\n", "")


def test_incomplete_output_is_never_a_gpu() -> None:
    for said in (
        "",
        PROBE_MARK,
        f"{PROBE_MARK}\n",
        f"{PROBE_MARK}\n{ROW}",
        f"{PROBE_MARK}\n{document(GPU)}{PROBE_MARK}\n",
        answer((ROW, 0)),
    ):
        with pytest.raises(NoGpuError):
            read_probe(Completed(0, said, ""))


def nothing(command: list[str]) -> Completed:
    return Completed(127, "", f"[FATAL tini (7)] exec {command[0]} failed: No such file or directory")


def refused(command: list[str]) -> Completed:
    raise JobError("the image cannot run the command", f'exec: "{command[0]}": executable file not found in $PATH')


@pytest.mark.parametrize("absent", [nothing, refused])
def test_image_without_a_shell_is_probed_with_two_commands(absent: Callable[[list[str]], Completed]) -> None:
    answers = {DESCRIBE: document(GPU), QUERY: ROW}

    def run(command: list[str]) -> Completed:
        return Completed(0, answers[tuple(command)], "") if command[0] == "nvidia-smi" else absent(command)

    assert probe_container(run).compute_capabilities == ("7.5",)
    with pytest.raises(NoGpuError) as caught:
        probe_container(absent)
    assert caught.value.done.exit_code == 127


def test_image_without_nvidia_smi_is_probed_once() -> None:
    asked: list[list[str]] = []

    def run(command: list[str]) -> Completed:
        asked.append(command)
        return Completed(127, answer(("sh: nvidia-smi: not found", 127)), "")

    with pytest.raises(NoGpuError):
        probe_container(run)
    assert asked == [list(PROBE)]


def test_missing_runtime_hook_is_not_a_missing_shell() -> None:
    def run(_: list[str]) -> Completed:
        raise JobError("x", 'exec: "nvidia-container-runtime-hook": executable file not found in $PATH', code="no-gpu")

    with pytest.raises(JobError, match="nvidia-container-runtime-hook"):
        probe_container(run)
