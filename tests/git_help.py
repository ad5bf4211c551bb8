"""Repositories whose own settings name programs. Each program would leave a marker if git ran it."""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

from tests.real import program

IDENTITY = ("-c", "user.name=a", "-c", "user.email=a@example.com", "-c", "commit.gpgsign=false")
QUIET = {"GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": os.devnull}
MARKER = "ran"


def git(folder: Path, *words: str) -> str:
    """Run the real git, without the settings of this computer."""
    done = subprocess.run(
        [program("git", "git"), *IDENTITY, *words],
        cwd=folder,
        env={**os.environ, **QUIET},
        check=True,
        capture_output=True,
        text=True,
        timeout=20,
    )
    return done.stdout.strip()


def make_repository(folder: Path) -> None:
    """A repository with a script, a spec, and a spec that was deleted."""
    folder.mkdir(parents=True, exist_ok=True)
    git(folder, "init", "-q")
    (folder / "train.py").write_text("print('hello')\n")
    for name in ("a", "b"):
        (folder / f"{name}.yaml").write_text(f"apiVersion: gpuinfra/v1\nname: {name}-dsvm\n")
    git(folder, "add", ".")
    git(folder, "commit", "-qm", "first")
    (folder / "b.yaml").unlink()
    git(folder, "add", ".")
    git(folder, "commit", "-qm", "second")


class Hostile:
    """Makes a repository name programs that leave a marker."""

    def __init__(self, folder: Path, outside: Path) -> None:
        self.folder = folder
        self.marker = outside / MARKER
        self._program = outside / "program"
        self._program.write_text(f"#!/bin/sh\ntouch {self.marker}\ncat 2>/dev/null\n")
        self._program.chmod(0o755)

    def configure(self, **settings: str) -> None:
        for name, value in settings.items():
            git(self.folder, "config", name.replace("__", "."), value)

    def touch(self) -> None:
        """Make git compare the content of the script."""
        os.utime(self.folder / "train.py", (1, 1))

    def clean_filter(self) -> None:
        (self.folder / ".gitattributes").write_text("* filter=x\n")
        self.configure(filter__x__clean=str(self._program), filter__x__smudge=str(self._program))
        self.touch()

    def process_filter(self) -> None:
        (self.folder / ".git/info/attributes").write_text("* filter=x\n")
        self.configure(filter__x__process=str(self._program), filter__x__required="true")
        self.touch()

    def fsmonitor(self) -> None:
        self.configure(core__fsmonitor=str(self._program))

    def hooks(self) -> None:
        for name in ("post-index-change", "fsmonitor-watchman", "reference-transaction"):
            (self.folder / ".git/hooks").mkdir(exist_ok=True)
            hook = self.folder / ".git/hooks" / name
            hook.write_bytes(self._program.read_bytes())
            hook.chmod(0o755)
        self.configure(core__hooksPath=str(self.folder / ".git/hooks"))
        self.touch()

    def signature(self) -> None:
        self.configure(log__showSignature="true", gpg__program=str(self._program))
        tree, head = git(self.folder, "rev-parse", "HEAD^{tree}"), git(self.folder, "rev-parse", "HEAD")
        (self.folder / ".git/signed").write_text(
            f"tree {tree}\nparent {head}\nauthor a <a@example.com> 1790000000 +0000\n"
            "committer a <a@example.com> 1790000000 +0000\n"
            "gpgsig -----BEGIN PGP SIGNATURE-----\n \n iQ==\n -----END PGP SIGNATURE-----\n\nsigned\n"
        )
        signed = git(self.folder, "hash-object", "-t", "commit", "-w", ".git/signed")
        git(self.folder, "update-ref", "HEAD", signed)

    def external_diff(self) -> None:
        (self.folder / ".gitattributes").write_text("* diff=x\n")
        self.configure(diff__external=str(self._program), diff__x__textconv=str(self._program))
        self.configure(diff__x__command=str(self._program))
        self.touch()

    def lazy_fetch(self) -> None:
        self.configure(
            core__repositoryformatversion="1",
            extensions__partialClone="origin",
            remote__origin__url="ssh://nowhere.invalid/x",
            remote__origin__promisor="true",
            core__sshCommand=str(self._program),
        )
        # The deleted spec is missing, as in a partial clone.
        blob = git(self.folder, "rev-parse", "HEAD~1:b.yaml")
        (self.folder / f".git/objects/{blob[:2]}/{blob[2:]}").unlink()

    def missing_tree(self) -> None:
        tree = git(self.folder, "rev-parse", "HEAD^{tree}")
        self.lazy_fetch()
        (self.folder / f".git/objects/{tree[:2]}/{tree[2:]}").unlink()

    def included_settings(self) -> None:
        (self.folder / "settings").write_text(
            f"[core]\n\tfsmonitor = {self._program}\n[pager]\n\tlog = {self._program}\n"
        )
        self.configure(include__path=str(self.folder / "settings"))

    def pager_and_alias(self) -> None:
        self.configure(core__pager=str(self._program), pager__status="true", pager__log="true", pager__config="true")
        self.configure(alias__status=f"!{self._program}", core__editor=str(self._program))

    def submodule(self) -> None:
        inner = self.folder / "inner"
        make_repository(inner)
        git(self.folder, "-c", "advice.addEmbeddedRepo=false", "add", "inner")
        git(self.folder, "commit", "-qm", "with a submodule")
        git(inner, "config", "core.fsmonitor", str(self._program))
        (inner / ".gitattributes").write_text("* filter=x\n")
        git(inner, "config", "filter.x.clean", str(self._program))
        os.utime(inner / "train.py", (1, 1))

    def embedded_bare_repository(self) -> None:
        """The settings are among the project's files, without a `.git` folder."""
        self.fsmonitor()
        self.process_filter()
        for name in ("HEAD", "config", "objects", "refs", "index"):
            (self.folder / ".git" / name).rename(self.folder / name)
        git_folder = self.folder / ".git"
        git_folder.rename(self.folder / "info-of-before")
        with (self.folder / "config").open("a") as config:
            config.write(f"[core]\n\tbare = false\n\tworktree = {self.folder}\n")


WAYS: dict[str, Callable[[Hostile], None]] = {
    each.__name__: each
    for each in (
        Hostile.clean_filter,
        Hostile.process_filter,
        Hostile.fsmonitor,
        Hostile.hooks,
        Hostile.signature,
        Hostile.external_diff,
        Hostile.lazy_fetch,
        Hostile.missing_tree,
        Hostile.included_settings,
        Hostile.pager_and_alias,
        Hostile.submodule,
        Hostile.embedded_bare_repository,
    )
}
