"""Explain why a job failed, from what it printed and what it was sent."""

from __future__ import annotations

import os
from pathlib import Path

from gpuinfra.diagnostics import Code, Diagnostic
from gpuinfra.models.job import OUTPUTS
from gpuinfra.models.run import Run
from gpuinfra.runner.errors import UploadError
from gpuinfra.runner.job_spec import JobSpec
from gpuinfra.runner.not_sent import missing_paths, tail, wanted_input
from gpuinfra.runner.progress import Progress
from gpuinfra.runner.project_tree import find_ignored

# A job can miss many files.
MOST_EXPLAINED = 3


def explain_failure(job: JobSpec, run: Run, log: Path, progress: Progress) -> list[Diagnostic]:
    """Return what a job that failed did not find: files that were not sent, or standard input."""
    output, found = tail(log), []
    for path in missing_paths(output):
        if not os.path.lexists(job.project / path):
            continue  # it is missing here, too
        try:
            ignored = find_ignored(job.project, path, progress)
        except UploadError:
            continue  # the ignore file can no longer be read
        folder = path.partition("/")[0]
        if ignored is None and folder not in {OUTPUTS, *job.more_outputs}:
            continue
        reason = f"`{ignored.line}` leaves out `{ignored.shown}`" if ignored else f"`{folder}/` is for outputs"
        help_line = "move it to another folder"
        if ignored:
            included = ignored.shown.removeprefix(ignored.line.rpartition("/")[0]).removeprefix("/")
            help_line = f"add `!{included}` after that line; or put large data into the shared folder"
        summary = "the job needs a file that was not sent"
        found.append(Diagnostic(Code.FILE_NOT_SENT, summary, note=f"`{path}`: {reason}", help=help_line))
    if wanted_input(output):
        note = f"run {run.id} read standard input, and jobs have none"
        help_line = "let it read a file of the project, or an argument"
        found.append(Diagnostic(Code.USAGE, "the job needs standard input", note=note, help=help_line))
    return found[:MOST_EXPLAINED]
