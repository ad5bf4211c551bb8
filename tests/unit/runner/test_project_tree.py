"""The index of file digests on this computer."""

import os
from pathlib import Path

from gpuinfra.runner.project_tree import INDEX_FILE, Index


def test_named_pipe_in_place_of_the_index_counts_as_empty(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / INDEX_FILE)
    (tmp_path / "a.py").write_text("print()")
    assert Index(tmp_path).digest("a.py", (tmp_path / "a.py").stat()) is None
