"""Sizes and GPUs that cannot work are refused before anything is asked of Azure."""

from typing import Any

import pytest

from tests.e2e.azure import Azure
from tests.e2e.user import User

RTX = "Standard_NC144ds_xl_RTXPRO6000BSE_v6"


@pytest.mark.parametrize(
    ("fields", "code", "reason"),
    [
        ({"size": "Standard_NCC40ads_H100_v5"}, "unsupported-size", "ConfidentialVM"),
        ({"size": RTX}, "unsupported-size", "driver 595"),
        ({"gpu": {"model": "V100"}}, "retired-size", "Azure retired"),
    ],
)
def test_up_refuses_unusable_sizes_before_it_calls_azure(
    user: User, azure: Azure, fields: dict[str, Any], code: str, reason: str
) -> None:
    user.spec("size", **fields) if "size" not in fields else user.spec(**fields)
    problem = user.fails("up", "gpu.yaml", code=code, exit_code=2)
    assert reason in problem["label"]
    assert azure.requests() == []


def test_rtx_with_an_image_that_the_user_names_is_valid(user: User) -> None:
    user.spec(size=RTX, image="contoso:gpu:ubuntu-2204-grid-595:latest")
    assert user("validate", "gpu.yaml").returncode == 0


def test_sizes_of_a_retired_gpu_names_the_successor(user: User) -> None:
    problem = user.fails("sizes", "--gpu", "v100", code="retired-size", exit_code=2)
    assert "A100" in problem["help"]


def test_sizes_lists_only_sizes_that_a_spec_accepts(user: User) -> None:
    names = [size["name"] for size in user.does("sizes", "--gpu", "H100")["sizes"]]
    assert names
    assert "Standard_NCC40ads_H100_v5" not in names
