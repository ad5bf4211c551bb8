"""The folder of a run, whose id may come from a file of others."""

from pathlib import Path

import pytest

from gpuinfra.diagnostics import Problem
from gpuinfra.store import run_folder


@pytest.mark.parametrize("run_id", ["..", "../../mine", "/etc", "a/b", "", ".", "a\n", "a\0"])
def test_an_id_that_leads_out_of_the_folder_of_runs_is_an_error(run_id: str) -> None:
    with pytest.raises(Problem, match="history cannot be read"):
        run_folder(Path(".gpuinfra"), run_id)
