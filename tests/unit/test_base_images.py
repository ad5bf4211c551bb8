"""The base image for a driver."""

import re

import pytest

from gpuinfra.models.images import ALIAS_DRIVER, CONTAINER_IMAGE
from gpuinfra.workbench.base_images import DRIVERS, IMAGES, WITHOUT_CUDA, choose_base_image
from gpuinfra.workbench.cuda import NEEDED, cuda_of, is_for_gpu, parse_cuda


@pytest.mark.parametrize(
    ("driver", "cuda", "expected"),
    [
        ("450.80.02", "11.0", (11, 8)),
        ("470.256.02", "11.4", (11, 8)),
        ("520.61.05", "11.8", (11, 8)),
        ("525.147.05", "12.0", (12, 4)),
        ("535.161.08", "12.2", (12, 4)),
        ("550.54.14", "12.4", (12, 4)),
        ("555.42.06", "12.5", (12, 5)),
        ("565.57.01", "12.7", (12, 6)),
        ("570.133.20", "12.8", (12, 8)),
        ("575.51.03", "12.9", (12, 8)),
        ("580.65.06", "13.0", (13, 1)),
        ("590.44.01", "13.1", (13, 1)),
        ("680.1", "14.2", (13, 1)),
        # Without the CUDA version, the driver alone decides.
        ("535.161.08", None, (12, 4)),
        ("580.65.06", None, (13, 1)),
        ("470.256.02", None, (11, 8)),
        # Too old, or unknown.
        ("440.33", "10.2", (11, 8)),
        ("", None, (11, 8)),
        (None, None, (11, 8)),
    ],
)
def test_driver_gets_the_newest_image_that_it_supports(
    driver: str | None, cuda: str | None, expected: tuple[int, int]
) -> None:
    assert choose_base_image(driver, cuda).name == IMAGES[expected]


def test_reason_names_the_driver_and_its_cuda() -> None:
    assert choose_base_image("570.133.20", "12.8").reason == "driver 570.133.20 supports CUDA 12.8"
    assert choose_base_image("535.161.08", "12.2").reason == (
        "driver 535.161.08 supports CUDA 12.2; CUDA 12.x needs driver 525 or later"
    )
    assert "too old for every image" in choose_base_image("440.33", "10.2").reason
    assert "the driver is unknown" in choose_base_image(None).reason


def test_every_image_is_named_for_its_cuda() -> None:
    assert {cuda_of(name): name for name in IMAGES.values()} == IMAGES
    assert {major for major, _ in IMAGES} == set(DRIVERS)
    assert all(re.fullmatch(CONTAINER_IMAGE, name) for name in (*IMAGES.values(), WITHOUT_CUDA))
    assert not is_for_gpu(WITHOUT_CUDA)


def test_image_for_the_data_science_driver_fits_every_gpu_that_it_supports() -> None:
    cuda = cuda_of(choose_base_image(str(ALIAS_DRIVER)).name)
    assert cuda == (12, 4)
    assert [model for model, needed in NEEDED.items() if needed > cuda] == ["RTXPRO6000"]


def test_cuda_version_is_parsed() -> None:
    assert [parse_cuda(text) for text in ("12.2", "12", "N/A", "")] == [(12, 2), (12, 0), None, None]
