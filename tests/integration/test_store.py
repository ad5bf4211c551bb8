"""The history of runs, with several programs at once, a program that is killed, and a folder that is read-only."""

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from gpuinfra.store import History
from tests.real import missing
from tests.runs import make_run

ROOT = Path(__file__).parents[3]
RUN = make_run("20261116-121530-3f9c", type="remotedocker")
PROGRAM = """
import sys
from dataclasses import replace
from pathlib import Path
from gpuinfra.store import History
history, name = History(Path(sys.argv[1])), sys.argv[2]
print("ready", flush=True)
sys.stdin.readline()
for number in range(int(sys.argv[3])):
    run = history.find("20261116-121530-3f9c")
    history.save(replace(run, id=f"{name}-{number:06}"))
    history.update("20261116-121530-3f9c", **{name: str(number)})
    print(number, flush=True)
"""


def start(folder: Path, name: str, count: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(folder), name, str(count)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def test_several_programs_at_once_lose_nothing(tmp_path: Path) -> None:
    history = History(tmp_path)
    history.save(RUN)
    fields = ("reason", "image", "git_commit")
    started = [start(tmp_path, name, 25) for name in fields]
    for each in started:
        assert each.stdout
        each.stdout.readline()
    for each in started:
        # All begin at the same moment.
        assert each.stdin
        each.stdin.write("\n")
        each.stdin.flush()
    for each in started:
        each.communicate(timeout=60)
        assert each.returncode == 0
    assert len(history.list()) == 1 + 3 * 25
    changed = history.find(RUN.id)
    assert (changed.reason, changed.image, changed.git_commit) == ("24", "24", "24")


def test_what_was_saved_survives_a_kill(tmp_path: Path) -> None:
    history = History(tmp_path)
    history.save(RUN)
    moments = random.Random(6)
    for number in range(6):
        writing = start(tmp_path, "reason", 100_000)
        assert writing.stdin
        assert writing.stdout
        writing.stdout.readline()
        writing.stdin.write("\n")
        writing.stdin.flush()
        writing.stdout.readline()
        time.sleep(moments.random() / 50)
        writing.send_signal(signal.SIGKILL)
        told, _ = writing.communicate(timeout=20)
        last = int(told.splitlines()[-1]) if told.splitlines() and told.endswith("\n") else 0
        # What was told is there, and the next one may be; whoever reads first puts right what was left half done.
        assert last <= int(history.find(RUN.id).reason) <= last + 1
        history.update(RUN.id, exit_code=number)
    assert history.find(RUN.id).exit_code == 5


def test_a_writer_that_is_killed_leaves_a_journal_that_is_taken_back(tmp_path: Path) -> None:
    history = History(tmp_path)
    history.save(RUN)
    half_done = """
import os, sqlite3, sys
database = sqlite3.connect(sys.argv[1], isolation_level=None)
database.execute("PRAGMA cache_spill = 1")
database.execute("PRAGMA cache_size = 1")
database.execute("BEGIN IMMEDIATE")
for number in range(200):
    database.execute("INSERT INTO runs VALUES (?, 1, '', '', 'running', NULL, ?)", (f"x{number}", "y" * 4000))
os.kill(os.getpid(), 9)
"""
    subprocess.run([sys.executable, "-c", half_done, str(history.path)], check=False, timeout=30)
    assert (tmp_path / "store.db-journal").stat().st_size > 0
    assert history.list() == [RUN]


READ_ONLY = """
import os, sys
from pathlib import Path
from gpuinfra.diagnostics import Problem
from gpuinfra.store import History
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
history = History(Path(sys.argv[1]))
run = history.find("last")
print(run.id, len(history.list()), len(history.unfinished()))
try:
    history.save(run)
except Problem as problem:
    print(problem.diagnostics[0].code, problem.diagnostics[0].note)
"""


def test_a_folder_where_nothing_can_be_written_can_be_read() -> None:
    if os.geteuid() != 0:
        missing("to become somebody else needs root")
    # Not below pytest's own folders: nobody else may enter those.
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        history = History(Path(name))
        history.save(RUN)
        words = [sys.executable, "-c", READ_ONLY, name]
        done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=30, check=False)
        assert done.stdout.splitlines()[:1] == [f"{RUN.id} 1 1"], done.stderr
        assert done.stdout.splitlines()[1].startswith("file-unwritable")
        assert str(history.path) in done.stdout
        assert history.list() == [RUN]


def test_a_reader_waits_for_a_writer(tmp_path: Path) -> None:
    history = History(tmp_path)
    history.save(RUN)
    holding = """
import sqlite3, sys, time
database = sqlite3.connect(sys.argv[1], isolation_level=None)
database.execute("BEGIN EXCLUSIVE")
print("held", flush=True)
time.sleep(0.5)
database.execute("ROLLBACK")
"""
    holder = subprocess.Popen([sys.executable, "-c", holding, str(history.path)], stdout=subprocess.PIPE, text=True)
    assert holder.stdout
    holder.stdout.readline()
    assert history.list() == [RUN]
    history.save(replace(RUN, exit_code=0))
    holder.communicate(timeout=10)
    assert history.find("last").exit_code == 0
