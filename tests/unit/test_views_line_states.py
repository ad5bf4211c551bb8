"""Lines that a job overwrites, in their final states."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuinfra.views.line_states import MAX_LINE, LineStates, final_state


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (b"plain", b"plain"),
        (b"\r 1%\r50%\r100%", b"100%"),
        (b"1/10\r10/10\r", b"10/10"),  # end="\r"
        (b"a longer line\rshort", b"shortger line"),  # as a terminal shows it
        (b"a longer line\r\x1b[Kshort", b"short"),
        (b"gone\x1b[2K\rnew", b"new"),
        (b"\r 50%\r     \r", b""),  # tqdm with leave=False
        ("\r 50%|█▌  |\r100%|████|".encode(), "100%|████|".encode()),
        (b"1/2 loss: 3" + b"\x08" * 11 + b"2/2 loss: 1", b"2/2 loss: 1"),  # Keras
        (b"\r\x1b[32m1\x1b[0m/2\r\x1b[32m2\x1b[0m/2", b"\x1b[32m2\x1b[0m/2"),
        (b"\xff\r\xfe!", b"\xfe!"),
    ],
)
def test_final_state_is_what_a_terminal_shows(line: bytes, expected: bytes) -> None:
    assert final_state(line) == expected


def reduced(data: bytes, size: int) -> bytes:
    states = LineStates()
    parts = [states.add(data[start : start + size]) for start in range(0, len(data), size)]
    return b"".join(parts) + states.flush()


@given(
    st.lists(st.sampled_from([b"a", b"bc", b" ", b"\r", b"\n", b"\r\n", b"\x1b[K", b"\xc3\xa9", b"\x08"]), max_size=30)
)
def test_pieces_of_any_size_give_the_same_lines(parts: list[bytes]) -> None:
    data = b"".join(parts)
    whole = reduced(data, len(data) or 1)
    for size in (1, 2, 3):
        assert reduced(data, size) == whole
    if b"\r" not in data and b"\x08" not in data:
        assert whole == data


def test_lines_of_windows_and_binary_data_are_unchanged() -> None:
    for data in (b"one\r\ntwo\r\n", bytes(range(256)) * 3, b"\x1f\x8b\x08\x00\r\x02"):
        assert reduced(data, 1000) == data


def test_question_that_was_shown_is_not_repeated() -> None:
    states = LineStates()
    assert (states.add(b"Name? "), states.is_waiting, states.flush()) == (b"", True, b"Name? ")
    assert states.add(b"Bob\nnext") == b"Bob\n"
    assert states.flush() == b"next"
    # What overwrites a line that was shown cannot replace it.
    assert states.add(b"\r1%") == b""
    assert not states.is_waiting
    assert states.add(b"\r2%\n") == b"\n2%\n"


def test_long_unfinished_line_needs_little_memory() -> None:
    states = LineStates()
    for _ in range(100):
        assert states.add(b"\r" + b"x" * 5000) == b""
        assert len(states._line) <= MAX_LINE + 5001
    assert states.add(b"\n") == b"x" * 5000 + b"\n"
    assert states.add(b"y" * (MAX_LINE + 1)) == b"y" * (MAX_LINE + 1)
    assert states.add(b"z\n") == b"z\n"
