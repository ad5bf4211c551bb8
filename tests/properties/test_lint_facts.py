"""Facts about images, TensorFlow and placeholders."""

import pytest

from gpuinfra.lint.facts import Gpu, gpu_of, gpu_twin, has_spark, is_without_cuda, mmlspark_version
from gpuinfra.lint.finding import is_placeholder, is_placeholder_address
from gpuinfra.workbench.conda import Installer
from gpuinfra.workbench.cuda import is_for_gpu


@pytest.mark.parametrize(
    ("image", "gpu", "without_cuda", "spark"),
    [
        ("microsoft/mmlspark:plus-gpu-0.9.9", True, False, True),
        ("microsoft/mmlspark:plus-0.9.9", False, True, True),
        ("microsoft/mmlspark:0.7", False, True, True),
        ("microsoft/mmlspark", False, True, True),
        ("docker.io/microsoft/mmlspark:plus", False, True, True),
        ("microsoft/mmlspark:int", False, False, True),
        ("mirror.example.com/microsoft/mmlspark:plus-0.9.9", False, False, True),
        ("nvidia/cuda:12.4.1-runtime-ubuntu22.04", True, False, False),
        ("nvcr.io/nvidia/pytorch:23.05-py3", True, False, None),
        ("tensorflow/tensorflow:1.4.0-gpu-py3", True, False, False),
        ("tensorflow/tensorflow:1.4.0", False, True, False),
        ("mcr.microsoft.com/azureml/base-gpu:intelmpi2018.3-cuda10.0-cudnn7-ubuntu16.04", True, False, None),
        ("gpu.example.com:5000/team/train:1", False, False, None),
        ("team/gpuless:1", False, False, None),
        ("pytorch/pytorch:1.13-cuda11.6-cpu", False, False, False),
        ("library/python:3.11", False, True, False),
        ("continuumio/anaconda", False, True, None),
        ("mirror.example.com/python:3.11", False, False, None),
        ("team/cuda11-train:1", True, False, None),
        ("team/train:1.0.gpu", True, False, None),
        ("jupyter/pyspark-notebook", False, False, True),
        (None, False, False, True),
    ],
)
def test_image_is_classified_by_clear_marks_only(
    image: str | None, gpu: bool, without_cuda: bool, spark: bool | None
) -> None:
    assert (is_for_gpu(image), is_without_cuda(image), has_spark(image)) == (gpu, without_cuda, spark)


def test_gpu_image_is_suggested_only_where_it_exists() -> None:
    assert gpu_twin("microsoft/mmlspark:plus-0.7.91") == "microsoft/mmlspark:plus-gpu-0.7.91"
    assert gpu_twin("microsoft/mmlspark:0.7") is None
    assert gpu_twin("other/mmlspark:plus-0.7.91") is None
    assert gpu_twin(f"microsoft/mmlspark:plus-0.7.91@sha256:{'a' * 64}") is None


def test_mmlspark_versions_are_ordered() -> None:
    tags = ("0.6", "plus-0.7.dev7_2.gcfbc920", "0.7", "plus-0.7.9", "plus-gpu-0.7.91", "plus-0.9.9", "0.10.9")
    versions = [mmlspark_version(f"microsoft/mmlspark:{tag}") for tag in tags]
    assert None not in versions
    assert versions == sorted(version for version in versions if version)
    assert mmlspark_version("microsoft/mmlspark:int") is None


@pytest.mark.parametrize(
    ("version", "python", "gpu"),
    [
        ("==1.2.1", (3, 5), Gpu.NO),
        ("==1.14.0", None, Gpu.NO),
        ("==1.15", None, Gpu.YES),
        ("==1.15.0", (3, 7), Gpu.YES),
        ("==1.15.2", None, Gpu.NO),
        ("==1.15.*", None, Gpu.NO),
        ("==2.0.0", None, Gpu.NO),
        ("==2.1.0", None, Gpu.YES),
        ("<2", None, Gpu.NO),
        (">=1.4,<1.15", None, Gpu.NO),
        ("~=1.4", None, Gpu.NO),
        (">=1.4", (3, 8), Gpu.YES),
        ("", None, Gpu.YES),
        ("", (3, 4), Gpu.NO),
        ("", (3, 5), Gpu.DEPENDS),
        (">=2.1", (3, 5), Gpu.YES),
        ("=1.4", (3, 5), Gpu.YES),
        ("of my own", None, Gpu.YES),
    ],
)
def test_pip_tensorflow_gpu_support_is_known(version: str, python: tuple[int, int] | None, gpu: Gpu) -> None:
    assert gpu_of(version, Installer.PIP, python) is gpu


@pytest.mark.parametrize(
    ("version", "python", "gpu"),
    [
        ("", (3, 5), Gpu.NO),
        ("", (3, 8), Gpu.YES),
        ("", None, Gpu.YES),
        ("=1.12", None, Gpu.NO),
        ("==1.8.0", None, Gpu.NO),
        ("=1.12.*", None, Gpu.NO),
        ("1.12", None, Gpu.NO),
        ("<2", None, Gpu.NO),
        (">=1.4", None, Gpu.YES),
        ("=2.1", None, Gpu.YES),
        ("=1.12=mkl_py36h69b6ba0_0", None, Gpu.NO),
        ("=1.12=gpu_py36he74679b_0", None, Gpu.YES),
        ("1.12 gpu_*", None, Gpu.YES),
        ("=*=gpu_py36", None, Gpu.YES),
        ("2.4.1=eigen_py39", None, Gpu.NO),
    ],
)
def test_conda_tensorflow_gpu_support_is_known(version: str, python: tuple[int, int] | None, gpu: Gpu) -> None:
    assert gpu_of(version, Installer.CONDA, python) is gpu


@pytest.mark.parametrize(
    "text",
    [
        *(
            "",
            "  ",
            "***",
            "xxxxx",
            "REDACTED",
            "<YOUR PASSWORD>",
            "{{ password }}",
            "${PASSWORD}",
            "$PASSWORD",
            "%PASSWORD%",
            "$(PASSWORD)",
            "$db_password",
            "#{Password}#",
            "__PASSWORD__",
        ),
        *(
            "password",
            "your_password",
            "YOUR-SECRET-KEY",
            "my_password",
            "enter your password here",
            "changeme",
            "TODO",
        ),
    ],
)
def test_placeholder_is_not_a_secret(text: str) -> None:
    assert is_placeholder(text)


@pytest.mark.parametrize(
    "text",
    ["hunter2", "$ecret", "$ecret99", "${A:-hunter2}", "Passw0rd", "mysecret", "password1", "x1", "correct horse"],
)
def test_possible_secret_is_not_a_placeholder(text: str) -> None:
    assert not is_placeholder(text)


@pytest.mark.parametrize(
    "text", ["<YOUR DSVM IP>", "IP_ADDRESS", "x.x.x.x", "52.173.xxx.xxx", "your-vm", "hostname", "<ip>:22"]
)
def test_placeholder_is_not_an_address(text: str) -> None:
    assert is_placeholder_address(text)


@pytest.mark.parametrize(
    "text", ["192.0.2.10", "host.example.com:5022", "my-dsvm.eastus.cloudapp.azure.com", "xbox.x.example"]
)
def test_possible_address_is_not_a_placeholder(text: str) -> None:
    assert not is_placeholder_address(text)
