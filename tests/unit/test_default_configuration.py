"""The target of a job without `-c`: the only one of the workspace."""

from pathlib import Path

import pytest

from gpuinfra.app.targets import default_configuration
from gpuinfra.diagnostics import Problem


def target(workspace: Path, name: str, kind: str) -> None:
    folder = workspace / "aml_config"
    folder.mkdir(exist_ok=True)
    address = "address: 192.0.2.1\nusername: me\n" if kind.startswith("remote") else ""
    (folder / f"{name}.compute").write_text(f"type: {kind}\n{address}")


def test_only_machine_is_the_default_also_beside_this_computer(tmp_path: Path) -> None:
    target(tmp_path, "local", "local")
    assert default_configuration(tmp_path) == "local"
    target(tmp_path, "docker", "localdocker")
    target(tmp_path, "my_dsvm", "remotedocker")
    target(tmp_path, "spark", "cluster")
    assert default_configuration(tmp_path) == "my_dsvm"


@pytest.mark.parametrize(
    ("names", "note"), [((), "has no target"), (("b", "a"), "the workspace has the targets `a` and `b`")]
)
def test_target_is_never_guessed(tmp_path: Path, names: tuple[str, ...], note: str) -> None:
    for name in names:
        target(tmp_path, name, "remote")
    with pytest.raises(Problem) as raised:
        default_configuration(tmp_path)
    assert note in str(raised.value.diagnostics[0].note)
    assert raised.value.exit_code == 2
