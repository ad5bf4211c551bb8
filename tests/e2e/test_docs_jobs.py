"""docs/jobs.md, followed from its top in one project, on a simulated machine with a real Docker Engine.

Every fenced block is run, in order:

- `sh`: each line is a command on a terminal. It exits with 0, or as its comment says: `# exit code 2`.
- `text`: what the commands above it show. `…` stands for anything; numbers, times, run ids and `simulated` do not
  count. At `^C`, Ctrl-C is pressed, and at the last one until the last command ends.
- `yaml`: a spec is written to `gpu.yaml`, or to the file that its first line names (`# other.yaml`). A part of one is
  merged into it. `validate` has to accept the result, also with each line that is a comment in place of its key.

A block that cannot run here starts with `# not tested: REASON`, for its reader to see.
"""

import contextlib
import os
import re
import shlex
import shutil
import sys
from collections.abc import Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import yaml

from gpuinfra.sandbox import guest_host, running
from gpuinfra.workbench.base_images import WITHOUT_CUDA, choose_base_image
from tests.conftest import Covered
from tests.e2e.azure import Azure
from tests.e2e.jobs import Terminal
from tests.e2e.user import User
from tests.lab import PYTHON, Lab
from tests.pages import Block, blocks
from tests.screen import screen
from tests.wheels import write_wheel

PAGE = "docs/jobs.md"
NOT_TESTED = "# not tested: "
CTRL_C = b"\x03"
# Of a simulated machine, and of this computer.
IMAGES = (choose_base_image(guest_host._DRIVER, guest_host._CUDA).name, WITHOUT_CUDA)
# A job of more than a hundred epochs runs until it is cancelled.
TRAIN = """
import argparse, pathlib, time
from tqdm import tqdm
parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=1)
epochs = parser.parse_args().epochs
loss = 1.0
for epoch in tqdm(range(1, epochs + 1)):
    loss /= 2
    print(f"epoch {epoch}, loss {loss:.3f}", flush=True)
    pathlib.Path("outputs", "model.txt").write_text(str(loss))
    if epochs > 100:
        time.sleep(0.2)
"""


@pytest.fixture
def user(lab: Lab, tmp_path_factory: pytest.TempPathFactory, tmp_path: Path) -> Iterator[User]:
    """A user with the project of the page's first lines, whose machine has the lab's Docker Engine."""
    with mock.patch.dict(os.environ, {"DOCKER_HOST": lab.engine.address}):
        azure = Azure(tmp_path_factory.mktemp("azure") / "sandbox")
    user = User(azure, tmp_path / "user", tmp_path / "project")
    for image in IMAGES:
        lab.engine.docker("tag", PYTHON, image)
    (user.workspace / "train.py").write_text(TRAIN)
    (user.workspace / "requirements.txt").write_text("--no-index\n--find-links wheels\ntqdm\n")
    write_wheel(user.workspace / "wheels/tqdm-4.70-py3-none-any.whl", "def tqdm(items):\n    return items\n")
    yield user
    running.stop(azure.folder)
    lab.engine.docker("rmi", "--no-prune", *IMAGES)


def test_reader_of_the_page_gets_what_it_shows(lab: Lab, user: User, covered: Covered) -> None:
    # uv is in the folder of the tests' Python, and is faster than pip.
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    variables = {"GPUINFRA_CLOUD": "sandbox", "DOCKER_HOST": lab.engine.address, "NO_COLOR": "1", "PATH": path}
    reader = Reader(user, variables)
    found = blocks(PAGE)
    for block, following in pairwise([*found, found[-1]]):
        reader.follow(block, following.text if following.language == "text" else "")
    covered(f"blocks of {PAGE}", len(found) - len(reader.not_run), len(found))


class Reader:
    """A user who does what the page says, block by block."""

    def __init__(self, user: User, variables: dict[str, str]) -> None:
        self.user, self.variables = user, variables
        self.not_run: list[Block] = []
        self._specs: dict[str, Any] = {}
        self._seen = ""

    def follow(self, block: Block, shown: str) -> None:
        """Do what a block says. `shown` is what the page shows after it."""
        if block.text.startswith(NOT_TESTED):
            self.not_run.append(block)
            return
        match block.language:
            case "sh":
                *first, last = block.text.splitlines()
                screens = [self._do(line, block) for line in first]
                self._seen = "\n".join([*screens, self._do(last, block, *shown.split("^C")[:-1])])
            case "text":
                assert is_shown(block.text, self._seen), f"{block.place} is not shown:\n{self._seen}"
            case "yaml":
                self._write(block)
            case _:
                pytest.fail(f"{block.place}: nothing runs a block of `{block.language}`")

    def _do(self, line: str, block: Block, *before_ctrl_c: str) -> str:
        """Run a command, and return what the terminal shows."""
        command, comment = (*re.split(r"\s+# ", line, maxsplit=1), "")[:2]
        if export := re.fullmatch(r"export (\w+)=(\S+)", command):
            self.variables[export[1]] = export[2]
            return ""
        program, *words = shlex.split(command)
        assert program == "gpuinfra", f"{block.place}: {line}"
        with contextlib.closing(Terminal(self.user, *words, patch=None, **self.variables)) as terminal:
            for number, text in enumerate(before_ctrl_c, 1):
                terminal.wait_until(partial(is_on_screen, text))
                if number < len(before_ctrl_c):
                    terminal.type_keys(CTRL_C)
            code = terminal.type_until_exit(CTRL_C) if before_ctrl_c else terminal.wait_for_exit()
        seen = on_screen(terminal.seen)
        expected = re.findall(r"exit code (\d+)", comment) or ["0"]
        assert expected == [str(code)], f"{block.place}: exit code {code} of {line}\n{seen}"
        return seen

    def _write(self, block: Block) -> None:
        """Write a spec, and validate it with each choice of the block."""
        file = (re.findall(r"\A# (\S+\.yaml)$", block.text, re.MULTILINE) or ["gpu.yaml"])[0]
        before = self._specs.get(file, {})
        folder = self.user.home / "choices"
        folder.mkdir()
        for number, text in enumerate(choices(block.text)):
            spec = {**merge(before, yaml.safe_load(text)), "name": f"choice-{number}"}
            (folder / f"{number}.yaml").write_text(yaml.safe_dump(spec))
        self._do(f"gpuinfra validate {folder}", block)
        shutil.rmtree(folder)
        self._specs[file] = merge(before, yaml.safe_load(block.text))
        (self.user.workspace / file).write_text(yaml.safe_dump(self._specs[file]))


def choices(text: str) -> Iterator[str]:
    """Yield a block as it is, and with each line that is a comment in place of its key."""
    yield text
    for indent, line, key in re.findall(r"^( *)# ((\w+): .*)$", text, re.MULTILINE):
        chosen = f"{indent}{line}".replace("\\", r"\\")
        yield re.sub(rf"^{indent}{key}: .*$", chosen, text, flags=re.MULTILINE)


def merge(spec: Any, part: Any) -> Any:
    """Return a spec with the fields of a part of one."""
    if not (isinstance(spec, dict) and isinstance(part, dict)):
        return part
    return {**spec, **{key: merge(spec.get(key), value) for key, value in part.items()}}


def on_screen(written: bytes) -> str:
    """Return what the terminal shows."""
    return "\n".join(screen(written.decode("utf-8", "replace")))


def is_on_screen(text: str, written: bytes) -> bool:
    """Return whether the terminal shows a part of a `text` block."""
    return is_shown(text, on_screen(written))


def is_shown(text: str, seen: str) -> bool:
    """Return whether a `text` block is part of what was seen."""
    parts = re.split(r"…|\^C", text)
    return re.search(".*".join(re.escape(stable(part)) for part in parts), stable(seen)) is not None


def stable(text: str) -> str:
    """Return text without what differs between runs: numbers, times, run ids, line breaks, and `simulated`."""
    text = re.sub(r" \(simulated\)|simulated, | --sandbox\b", "", text)
    text = re.sub(r"\d{8}-\d{6}-[0-9a-f]{4}", "RUN", text)
    return " ".join(re.sub(r"\d+(?:[.:,hm-]\d+)*[hm]?", "0", text).split())
