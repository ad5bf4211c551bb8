"""The user's crontab: gpuinfra's block in it, with all other lines unchanged."""

import os
import subprocess
from pathlib import Path

from gpuinfra.diagnostics import Code, Problem, problem
from gpuinfra.programs import find_program

BEGIN, END = "# gpuinfra schedule: begin", "# gpuinfra schedule: end"
# Debian's cron truncates longer commands, and runs the rest of them.
MAX_COMMAND_BYTES = 990
SECONDS = 30
RUNNING = Path("/run/crond.pid")


def block_in(crontab: str) -> str | None:
    """Return the content of the block, or None."""
    found = _find(crontab)
    return None if found is None else "".join(crontab.splitlines(keepends=True)[found[0] + 1 : found[1]])


def with_block(crontab: str, block: str) -> str:
    """Return the crontab with this block instead of an existing one."""
    lines, found = crontab.splitlines(keepends=True), _find(crontab)
    ours = [f"{BEGIN}\n", block, f"{END}\n"]
    if found is not None:
        return "".join([*lines[: found[0]], *ours, *lines[found[1] + 1 :]])
    return "".join([crontab, "" if not crontab or crontab.endswith("\n") else "\n", *ours])


def without_block(crontab: str) -> str:
    """Return the crontab without gpuinfra's block."""
    lines, found = crontab.splitlines(keepends=True), _find(crontab)
    return crontab if found is None else "".join([*lines[: found[0]], *lines[found[1] + 1 :]])


def _find(crontab: str) -> tuple[int, int] | None:
    """Return the first and last line number of the block."""
    lines = crontab.splitlines()
    begins, ends = ([at for at, line in enumerate(lines) if line == word] for word in (BEGIN, END))
    if not begins and not ends:
        return None
    if len(begins) == len(ends) == 1 and begins[0] < ends[0]:
        return begins[0], ends[0]
    note = f"it has {len(begins)} lines `{BEGIN}` and {len(ends)} lines `{END}`; expected one of each"
    raise problem(Code.SCHEDULER_FAILED, "the crontab cannot be edited", note, "correct it with `crontab -e`")


def check_length(block: str) -> None:
    """Raise a Problem for a line that cron would truncate."""
    longest = max(len(line.encode("utf-8", "surrogateescape")) for line in block.splitlines())
    if longest <= MAX_COMMAND_BYTES:
        return
    note = f"the line has {longest} bytes; cron reads at most {MAX_COMMAND_BYTES}; nothing was written"
    help_line = "use shorter paths for `--specs` and `--environment-file`, or `--with systemd`"
    raise problem(Code.SCHEDULER_FAILED, "line too long for a crontab", note, help_line)


def read() -> str:
    """Return the user's crontab; empty if there is none."""
    done = _crontab("-l")
    if done.returncode == 0:
        return done.stdout
    # busybox reports a missing crontab as a missing file.
    if any(words in done.stderr.lower() for words in ("no crontab for", "no such file")):
        return ""
    raise _failed("read", done.stderr)


def write(text: str) -> None:
    """Replace the user's crontab. cron checks it first, and keeps the old one on errors."""
    done = _crontab("-", given=text)
    if done.returncode != 0:
        raise _failed("written", done.stderr)


def is_read() -> bool:
    """Return whether a cron daemon is running, from its pid file."""
    return RUNNING.exists()


def _crontab(word: str, given: str = "") -> subprocess.CompletedProcess[str]:
    program = find_program("crontab")
    if program is None:
        raise problem(
            Code.NO_SCHEDULER,
            "no cron on this computer",
            "`crontab` is not installed",
            "run `apt-get install cron`, or use `--with systemd`",
        )
    try:
        done = subprocess.run(  # noqa: S603 found just now
            [program, word],
            input=given.encode("utf-8", "surrogateescape"),
            capture_output=True,
            env={**os.environ, "LC_ALL": "C"},
            timeout=SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise _failed("reached", f"`crontab {word}` did not answer for {SECONDS} s") from None
    # Keep foreign lines unchanged, in any encoding and with any line ends: text mode would convert them.
    said, failed = (each.decode("utf-8", "surrogateescape") for each in (done.stdout, done.stderr))
    return subprocess.CompletedProcess(done.args, done.returncode, said, failed)


def _failed(verb: str, said: str) -> Problem:
    note = said.strip() or "`crontab` did not say why"
    return problem(Code.SCHEDULER_FAILED, f"the crontab cannot be {verb}", note)
