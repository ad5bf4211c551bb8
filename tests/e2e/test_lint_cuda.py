"""`lint` on a Workbench project whose target was written by `up`."""

import json

from tests.e2e.user import User


def test_lint_reports_a_tensorflow_for_another_cuda_than_the_image_has(user: User) -> None:
    user.up()
    conda = user.workspace / "aml_config" / "conda_dependencies.yml"
    conda.write_text("dependencies:\n  - python=3.5.2\n  - pip:\n    - tensorflow-gpu\n")
    done = user("lint", "--json")
    assert done.returncode == 1, done.stdout + done.stderr
    (problem,) = json.loads(done.stdout)["findings"]
    assert (problem["code"], problem["line"]) == ("wrong-cuda", 4)
    assert "CUDA 10.1" in problem["label"]
    assert "CUDA 12.4" in problem["note"]
