"""Whatever a file holds, masking what may be a secret in it takes no time worth speaking of."""

import time

import pytest

from gpuinfra.parse.source import LARGEST, Source


@pytest.mark.parametrize(
    "part", ["://a:", "--", "- ", "pass", "@://", "token: ", "account.key.", "token: !!!! x", "token "]
)
def test_no_text_takes_long_to_mask(part: str) -> None:
    started = time.process_time()
    Source("gpu.yaml", part * (LARGEST // len(part))).span(0, 1)
    Source("gpu.yaml", f"token: {'!' * 1000} {' ' * 1000}x").span(0, 1)
    assert time.process_time() - started < 5
