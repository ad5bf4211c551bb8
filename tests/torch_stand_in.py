"""A stand-in for PyTorch: a wheel that reports about CUDA and the GPU as a test says."""

from pathlib import Path

from tests.wheels import write_wheel

CODE = """
import types
__version__ = {version!r}
version = types.SimpleNamespace(cuda={cuda!r}, hip=None)
class Tensor:
    def __add__(self, other):
        return self
    def sum(self):
        return self
    def item(self):
        return 16.0
def ones(count, device):
    if {error!r}:
        raise RuntimeError({error!r})
    return Tensor()
cuda = types.SimpleNamespace(
    is_available=lambda: {sees!r}, device_count=lambda: int({sees!r}), get_arch_list=lambda: {archs!r}
)
"""


def write_torch(
    folder: Path,
    version: str,
    *,
    cuda: str | None = None,
    sees: bool = True,
    archs: tuple[str, ...] = ("sm_75", "sm_80"),
    error: str = "",
) -> None:
    """Write the wheel of a build of PyTorch, for this CUDA version, and nothing else in the folder."""
    for old in folder.glob("torch-*.whl"):
        old.unlink()
    code = CODE.format(version=version, cuda=cuda, sees=sees and cuda is not None, archs=list(archs), error=error)
    write_wheel(folder / f"torch-{version}-py3-none-any.whl", code)
