"""Wheels that tests write: no package index is needed."""

import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT_FILES: Mapping[str, str] = {}


def write_wheel(
    file: Path, code: str = "", *, needs: Sequence[str] = (), files: Mapping[str, str] = ROOT_FILES
) -> None:
    """Write a wheel with one module, `name.py`, and more files. The name of the file has its name and version."""
    name, version = file.name.split("-")[:2]
    file.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(file, "w") as wheel:
        folder = f"{name}-{version}.dist-info"
        metadata = [f"Name: {name}", f"Version: {version}", *(f"Requires-Dist: {each}" for each in needs)]
        extras = {each.partition("extra == '")[2].partition("'")[0] for each in needs} - {""}
        metadata += [f"Provides-Extra: {each}" for each in sorted(extras)]
        contents = {
            f"{name}.py": code,
            **files,
            f"{folder}/METADATA": "\n".join(["Metadata-Version: 2.1", *metadata, ""]),
            f"{folder}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        }
        record = "".join(f"{each},,\n" for each in [*contents, f"{folder}/RECORD"])
        for each, text in {**contents, f"{folder}/RECORD": record}.items():
            wheel.writestr(each, text)
