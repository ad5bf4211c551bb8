"""Builds of PyTorch: which line of a file chooses one, and what to write for the build that fits a driver."""

import re

from packaging.version import Version

from gpuinfra.lint.facts import exact
from gpuinfra.workbench.conda import Conda, Installer, Option, Package
from gpuinfra.workbench.cuda import TORCH_BUILDS, Cuda, torch_build

TORCH = frozenset({"torch", "torchvision", "torchaudio"})
# The folders of an index that has one kind of build each.
TORCH_FOLDER = re.compile(r"/whl/(?:nightly/)?(?:cpu|cu(?P<major>\d{2})(?P<minor>\d)|rocm[\d.]+)\b")


def decides_build(conda: Conda, option: Option) -> bool:
    """Return whether nothing else in the file chooses another build of PyTorch than this folder."""
    if is_lock(conda):
        return False  # its versions say the builds
    folders = [each for each in conda.options if TORCH_FOLDER.search(each.text) and each.text != option.text]
    return not folders and not any(each.name in TORCH and _is_for_gpu(each) for each in conda.packages)


def _is_for_gpu(package: Package) -> bool:
    """Return whether the line itself chooses a build that is not for the CPU."""
    return re.search(r"(?:\+|%2B)(?!cpu\b)", package.url or package.version) is not None


def in_folder(conda: Conda, option: Option, driver: Cuda | None) -> str | None:
    """Return what to write for an option, with the folder whose builds fit the driver; None if no build is known."""
    tag = _tag(_version_of_torch(conda), driver)
    # In pyproject.toml and Dockerfiles, the line for pip is not what the file says.
    written = option.text if conda.is_conda else conda.document.source.text[option.node.start : option.node.end]
    return TORCH_FOLDER.sub(f"/whl/{tag}", written) if tag and TORCH_FOLDER.search(written) else None


def _version_of_torch(conda: Conda) -> Version | None:
    package = conda.package("torch", by=Installer.PIP)
    return _exact(package) if package else None


def _exact(package: Package) -> Version | None:
    """Return the version that a line names, without its build."""
    return exact(package.version.partition("+")[0])


def _tag(version: Version | None, driver: Cuda | None) -> str | None:
    """Return the folder, such as `cu126`, of a PyTorch for the driver; None for versions without a known build."""
    if version and f"{version.major}.{version.minor}" not in TORCH_BUILDS:
        return None
    build = torch_build(str(version or max(TORCH_BUILDS, key=Version)), driver, None)
    return f"cu{build[1][0]}{build[1][1]}" if build else None


def is_lock(conda: Conda) -> bool:
    """Return whether the lines are from a lock file, which uv writes."""
    return conda.document.source.name.endswith("uv.lock")


def how_to_choose(conda: Conda, package: Package, driver: Cuda | None) -> str | None:
    """Return what to write for a package of PyTorch that has another build; None if no build is known."""
    torch, version = _version_of_torch(conda), _exact(package)
    tag = _tag(torch, driver) if torch else None
    if tag is None or version is None:
        return None
    folder = f"https://download.pytorch.org/whl/{tag}"
    if is_lock(conda):
        sources = "`[tool.uv.sources]` of pyproject.toml"
        return f"name an index with the URL {folder} for `{package.name}` in {sources}, and run `uv lock`"
    return f"write `{package.name}=={version}+{tag}`, and the line `--extra-index-url {folder}`"
