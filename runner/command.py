"""Check a job's command before anything is billed: the project's file that it starts, what runs it, hidden GPUs."""

from __future__ import annotations

import posixpath
import re
import shlex
import stat
from collections.abc import Sequence
from pathlib import Path

from gpuinfra.diagnostics import Code, Diagnostic, Exit, Problem
from gpuinfra.runner.resolve import is_file, no_script, script_path

SHELL = ("/bin/sh", "-c")
SCRIPT_SUFFIXES = (".py", ".sh", ".bash")
# Python also runs archives and compiled files.
_PYTHON_SUFFIXES = {".py", ".pyw", ".pyc", ".pyz", ".zip"}
_SHELL_SUFFIXES = {".sh": ("/bin/sh",), ".bash": ("bash",)}
MAX_FIRST_LINE = 256
_PYTHON = re.compile(r"python(?:3(?:\.[0-9]{1,2})?)?")
_SHELLS = {"sh", "bash"}
# They start a Python script after options of their own, some of which have a value.
_LAUNCHERS = {"torchrun", "accelerate", "deepspeed"}
_PYTHON_OPTIONS_WITH_VALUE = {"-W", "-X"}
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=.*", re.DOTALL)
_OPERATOR = re.compile(r"[();<>|&]+")
# What a shell replaces: the word is not known here.
_REPLACED = re.compile(r"[$`*?\[\]{}~]")


def shell_command(line: str) -> tuple[str, ...]:
    """Return the command that runs a line in the shell."""
    return (*SHELL, line)


def project_file(project: Path, program: Sequence[str], here: Path) -> str:
    """Return the file of the project that a command starts, or an empty text if it starts a program of the environment.

    Raise Problem if that file does not exist, is outside of the project or cannot be executed.
    """
    words = _first_command(program[2]) if tuple(program[:2]) == SHELL and len(program) == 3 else tuple(program)
    if not words:
        return ""
    first = words[0]
    if "/" in first and not first.startswith("/"):
        found = _own_file(project, first)
        if not (project / found).stat().st_mode & stat.S_IXUSR:
            raise _not_a_program(f"`{first}` is not executable", f"`chmod +x {shlex.quote(found)}`")
        return found
    if first.endswith(SCRIPT_SUFFIXES) and is_file(project / first):
        runner = "python" if first.endswith(".py") else "sh"
        note = f"`{first}` is a file of the project, and a command starts programs of the PATH"
        raise _not_a_program(note, f"write `{runner} {shlex.quote(first)}`")
    script = _script_of(words)
    if script is None or script.startswith("/"):
        return ""
    return script_path(project, script, here) if is_file(project / script) else _own_file(project, script)


def interpreter_of(project: Path, script: str) -> tuple[str, ...]:
    """Return the program that runs a script of the project, with its options; nothing for Python.

    Raise Problem for a script that no program is known for.
    """
    suffix = posixpath.splitext(script)[1].lower()
    if suffix == ".ipynb":
        file = shlex.quote(script)
        execute = f"-- jupyter nbconvert --to notebook --execute --output-dir outputs {file}"
        help_line = f"convert it with `jupyter nbconvert --to script {file}`, or run `{execute}`"
        raise _not_a_program(f"`{script}` is a notebook, not a script", help_line)
    if suffix in _PYTHON_SUFFIXES:
        return ()
    with (project / script).open("rb") as opened:
        line = opened.readline(MAX_FIRST_LINE)
    is_shell = suffix in _SHELL_SUFFIXES
    if line.endswith(b"\r\n") and (is_shell or line.startswith(b"#!")):
        note = f"`{script}` has the line ends of Windows, which no shell accepts"
        raise _not_a_program(note, f"`sed -i 's/\\r$//' {shlex.quote(script)}`")
    if line.startswith(b"#!"):
        # As Linux reads it: a program, and at most one argument.
        words = line[2:].decode("utf-8", "replace").strip().split(None, 1)
        if words and not _PYTHON.fullmatch(words[-1].split()[-1].rpartition("/")[2]):
            return tuple(words)
        return ()
    if is_shell:
        return _SHELL_SUFFIXES[suffix]
    if not suffix:
        return ()
    help_line = f"begin it with a `#!` line, or name the program: `-- Rscript {shlex.quote(script)}`"
    raise _not_a_program(f"the name of `{script}` does not say which program runs it", help_line)


def _not_a_program(note: str, help_line: str) -> Problem:
    return Problem(Diagnostic(Code.NO_SCRIPT, "not a program", note=note, help=help_line), exit_code=Exit.USAGE)


def hiding_assignment(program: Sequence[str], variable: str) -> str | None:
    """Return the value that a command itself gives to a variable, as in `A=1 python train.py`; None without one."""
    pattern = rf"(?:^|[\s;&|(]){variable}=(?:\"([^\"$`]*)\"|'([^']*)'|([^\s;&|()\"'$`]*))(?=[\s;&|)]|\Z)"
    found = re.search(pattern, " ".join(program))
    return next((value for value in found.groups() if value is not None), "") if found else None


def _own_file(project: Path, path: str) -> str:
    """Return a file's path in the project, in which the command runs. Raise Problem if there is none."""
    if not is_file(project / path):
        raise no_script(project, path)
    return posixpath.normpath(script_path(project, path, project))


def _first_command(line: str) -> tuple[str, ...]:
    """Return the words of a line's first command; nothing if the shell decides what they are."""
    first_line = next((each for each in line.splitlines() if each.strip() and not each.lstrip().startswith("#")), "")
    reader = shlex.shlex(first_line, posix=True, punctuation_chars=True)
    reader.whitespace_split = True
    try:
        words = list(reader)
    except ValueError:  # a quote that continues on the next line
        return ()
    end = next((number for number, word in enumerate(words) if _OPERATOR.fullmatch(word)), len(words))
    command = words[:end]
    while command and _ASSIGNMENT.fullmatch(command[0]):
        del command[0]
    return () if any(map(_REPLACED.search, command)) else tuple(command)


def _script_of(words: tuple[str, ...]) -> str | None:
    """Return the script that Python, a shell or a launcher starts, or None."""
    name, arguments = words[0].rpartition("/")[2], list(words[1:])
    if name in _LAUNCHERS:
        if {"-m", "--module"} & set(arguments):
            return None
        return next((each for each in arguments if each.endswith(".py") and not each.startswith("-")), None)
    if name not in _SHELLS and not _PYTHON.fullmatch(name):
        return None
    while arguments and arguments[0].startswith("-"):
        option = arguments.pop(0)
        # Also combined, as in `-um`: the program is a module or text, and `-` is standard input.
        if option == "-" or (not option.startswith("--") and option[-1] in "cms"):
            return None
        if option in _PYTHON_OPTIONS_WITH_VALUE and arguments:
            del arguments[0]
    return arguments[0] if arguments else None
