"""Build the image of a project's Dockerfile on the target's Docker Engine, once for each content."""

from __future__ import annotations

import hashlib
import json
import os
import posixpath
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from gpuinfra.runner.docker.client import Engine
from gpuinfra.runner.docker.images import ensure_image, find_image, note_use
from gpuinfra.runner.environment.build import (
    STEP,
    BuildOutput,
    ContextUpload,
    Environment,
    add_content,
    build_error,
    building,
    check_may_build,
    post_build,
    proxies_for,
)
from gpuinfra.runner.environment.recipe import IMAGES, ITEMS_LABEL, KIND_LABEL, LABEL
from gpuinfra.runner.progress import Progress, Silent
from gpuinfra.runner.project_tree import FILE, FOLDER, Entry, read_tree
from gpuinfra.runner.sources.dockerfile import Dockerfile, ignored_paths

# The name of a Dockerfile in its build, which the project's own files do not have.
DOCKERFILE = ".gpuinfra-dockerfile"
_DIGEST_LETTERS = 16


def ensure_dockerfile(  # noqa: PLR0913
    engine: Engine,
    dockerfile: Dockerfile,
    project: Path,
    progress: Progress,
    output: Callable[[str], None],
    *,
    fresh: bool = False,
    may_build: bool = True,
    more_outputs: Sequence[str] = (),
) -> Environment:
    """Return the image of a Dockerfile, as `ensure_environment` does. Its own Python runs the job's script."""
    began = time.monotonic()
    state = project / ".gpuinfra"
    # The same files as for the job, so that no credentials and no outputs get into an image.
    tree = read_tree(project, state if state.is_dir() else None, Silent(), more_outputs)
    entries = needed_entries(dockerfile, tree.entries, ignored_paths(project, dockerfile))
    tag = f"{IMAGES}{digest_of(dockerfile, entries)}"
    existing = find_image(engine, tag)
    if existing and not fresh:
        note_use(engine, existing)
        return Environment(existing.id, tag, built=False, python=None, seconds=time.monotonic() - began)
    check_may_build(may_build=may_build)
    for each in dockerfile.bases:
        ensure_image(engine, each, progress)
    with building(progress, dockerfile.path), tempfile.TemporaryFile() as context:
        with tarfile.open(fileobj=context, mode="w") as archive:
            add_content(archive, DOCKERFILE, dockerfile.text.encode())
            for entry in entries:
                _add_entry(archive, project / dockerfile.context, entry)
        context.seek(0)
        report = BuildOutput(output, lambda doing: progress.begin(STEP, doing), ())
        # They replace those of the project: its image must not pass for an environment that others can begin with.
        labels = {LABEL: tag.rpartition("/")[2], KIND_LABEL: "", ITEMS_LABEL: ""}
        more = {"dockerfile": DOCKERFILE, "labels": json.dumps(labels)}
        more |= {"nocache": "1"} if fresh else {}
        with engine.translated("building the environment"):
            post_build(engine.api, tag, ContextUpload(context, progress), proxies_for(engine, progress), report, **more)
        if report.error is not None or report.image is None:
            raise build_error(report, f"the instructions are in `{dockerfile.path}`")
    return Environment(report.image, tag, built=True, python=None, seconds=time.monotonic() - began)


def _add_entry(archive: tarfile.TarFile, context: Path, entry: Entry) -> None:
    found = tarfile.TarInfo(entry.path)
    found.mode = entry.mode
    if entry.kind == FILE:
        with (context / entry.path).open("rb") as stream:
            found.size = os.fstat(stream.fileno()).st_size
            archive.addfile(found, stream)
        return
    found.type = tarfile.DIRTYPE if entry.kind == FOLDER else tarfile.SYMTYPE
    found.linkname = "" if entry.kind == FOLDER else entry.content
    archive.addfile(found)


def needed_entries(dockerfile: Dockerfile, entries: Iterable[Entry], ignored: Iterable[str] = ()) -> list[Entry]:
    """Return the project's entries that a build needs, relative to the context, in order of their path."""
    from docker.utils.build import PatternMatcher  # type: ignore[import-untyped]

    prefix = "" if posixpath.normpath(dockerfile.context) == "." else f"{posixpath.normpath(dockerfile.context)}/"
    matcher, copied = PatternMatcher(list(ignored)), dockerfile.copied
    inside = (each._replace(path=each.path[len(prefix) :]) for each in entries if each.path.startswith(prefix))
    needed = (each for each in inside if copied is None or any(_covers(each.path, one) for one in copied))
    return sorted(each for each in needed if not matcher.matches(each.path))


def digest_of(dockerfile: Dockerfile, entries: Iterable[Entry]) -> str:
    """Return the digest of everything that decides the image, except the images that it is built on."""
    whole = hashlib.sha256(f"dockerfile 1\n{len(dockerfile.text)}\n{dockerfile.text}".encode())
    for each in entries:
        line = f"{each.kind} {each.mode:o} {each.content} {len(each.path)} {each.path}\n"
        whole.update(line.encode("utf-8", "surrogateescape"))
    return whole.hexdigest()[:_DIGEST_LETTERS]


def _covers(path: str, pattern: str) -> bool:
    """Return whether a pattern names this path, a folder above it or, because folders come first, one below."""
    parts, wanted = path.split("/"), pattern.split("/")
    return all(fnmatchcase(part, one) for part, one in zip(parts, wanted, strict=False))
