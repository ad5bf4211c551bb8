"""Diagnostics as data: code, location, explanation and fix, with suggestions for misspelt words. Views print them."""

import difflib
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum, StrEnum


class Exit(IntEnum):
    """The program's exit codes; `docs/commands.md` explains them."""

    DONE = 0
    FAILED = 1
    USAGE = 2
    PENDING = 3
    LEFT_BEHIND = 4
    NO_PROGRAM = 127
    INTERRUPTED = 130
    LOST = 255


class Severity(StrEnum):
    """Whether the problem stops the command."""

    ERROR = "error"
    WARNING = "warning"


class Code(StrEnum):
    """Every problem, with a stable name for scripts; `docs/errors.md` explains each."""

    # The command line and the disk.
    USAGE = "usage"
    UNKNOWN_COMMAND = "unknown-command"
    INTERNAL = "internal"
    FILE_EXISTS = "file-exists"
    FILE_NOT_FOUND = "file-not-found"
    FILE_UNREADABLE = "file-unreadable"
    FOREIGN_STATE = "foreign-state"
    FILE_UNWRITABLE = "file-unwritable"
    NO_SPEC_FOUND = "no-spec-found"
    NO_SCHEDULER = "no-scheduler"
    SCHEDULER_FAILED = "scheduler-failed"

    # The text of a YAML file.
    FILE_TOO_LARGE = "file-too-large"
    NOT_UTF8 = "not-utf8"
    BAD_CHARACTER = "bad-character"
    TAB = "tab"
    INVALID_YAML = "invalid-yaml"
    TOO_DEEP = "too-deep"
    TOO_MANY_VALUES = "too-many-values"
    DUPLICATE_KEY = "duplicate-key"
    AMBIGUOUS_VALUE = "ambiguous-value"
    BAD_NUMBER = "bad-number"
    BAD_KEY = "bad-key"
    UNSUPPORTED_TAG = "unsupported-tag"
    UNSUPPORTED_ALIAS = "unsupported-alias"

    # The shape of a spec.
    EMPTY_FILE = "empty-file"
    UNKNOWN_KEY = "unknown-key"
    MISSING_KEY = "missing-key"
    CONFLICTING_KEYS = "conflicting-keys"
    NO_EFFECT = "no-effect"
    DEFEATING_FIELDS = "defeating-fields"
    WRONG_TYPE = "wrong-type"
    EMPTY_VALUE = "empty-value"
    UNKNOWN_VALUE = "unknown-value"
    OUT_OF_RANGE = "out-of-range"
    REPEATED_VALUE = "repeated-value"
    DUPLICATE_NAME = "duplicate-name"

    # Values of single fields.
    UNKNOWN_API_VERSION = "unknown-api-version"
    BAD_NAME = "bad-name"
    BAD_SUBSCRIPTION = "bad-subscription"
    BAD_USERNAME = "bad-username"
    BAD_SSH_KEY = "bad-ssh-key"
    SECRET_IN_SPEC = "secret-in-spec"  # noqa: S105 the name of a problem, not a secret
    UNKNOWN_REGION = "unknown-region"
    UNKNOWN_SIZE = "unknown-size"
    RETIRED_SIZE = "retired-size"
    UNSUPPORTED_SIZE = "unsupported-size"
    UNKNOWN_GPU = "unknown-gpu"
    BAD_MACHINE_IMAGE = "bad-machine-image"
    BAD_CONTAINER_IMAGE = "bad-container-image"
    BAD_ADDRESS = "bad-address"
    OPEN_TO_INTERNET = "open-to-internet"
    BAD_PATH = "bad-path"
    BAD_DURATION = "bad-duration"
    BAD_MONEY = "bad-money"
    BAD_HOURS = "bad-hours"
    BAD_DATE = "bad-date"
    UNKNOWN_TIME_ZONE = "unknown-time-zone"
    BAD_TAG = "bad-tag"

    # Azure.
    NAME_TAKEN = "name-taken"
    NEEDS_CONSENT = "needs-consent"
    NO_SUCH_MACHINE = "no-such-machine"
    MACHINE_IS_OFF = "machine-is-off"
    UNTAGGED_MACHINE = "untagged-machine"
    AMBIGUOUS_NAME = "ambiguous-name"
    NO_PUBLIC_KEY = "no-public-key"
    NO_OWN_ADDRESS = "no-own-address"
    NO_SUBSCRIPTION = "no-subscription"
    OTHER_SUBSCRIPTION = "other-subscription"
    BAD_ENDPOINT = "bad-endpoint"
    LOGIN_FAILED = "login-failed"
    NOT_ALLOWED = "not-allowed"
    POLICY_DENIED = "policy-denied"
    LOCKED = "locked"
    IMAGE_TERMS = "image-terms"
    NO_CANDIDATE = "no-candidate"
    NO_CAPACITY = "no-capacity"
    NO_QUOTA = "no-quota"
    THROTTLED = "throttled"
    UNREACHABLE = "unreachable"
    TIMED_OUT = "timed-out"
    BUSY = "busy"
    REFUSED = "refused"

    # Reaching a machine.
    NOT_READY = "not-ready"
    BAD_HOST_KEY = "bad-host-key"
    NO_SSH_PROGRAM = "no-ssh-program"
    NO_SUCH_TARGET = "no-such-target"
    NO_ANSWER = "no-answer"
    UNKNOWN_HOST_KEY = "unknown-host-key"
    OTHER_HOST_KEY = "other-host-key"
    LOGIN_REFUSED = "login-refused"
    UNFIT_MACHINE = "unfit-machine"
    WRONG_CLOUD = "wrong-cloud"

    # A project's files, as `lint` reads them.
    NO_PROJECT_FOUND = "no-project-found"
    FILE_CHANGED = "file-changed"
    PYSPARK_BY_DEFAULT = "pyspark-by-default"
    NO_SPARK = "no-spark"
    GPU_NOT_PASSED_ON = "gpu-not-passed-on"
    NO_CUDA = "no-cuda"
    WRONG_CUDA = "wrong-cuda"
    CPU_ONLY_PACKAGE = "cpu-only-package"
    BAD_REQUIREMENT = "bad-requirement"
    WRONG_PLATFORM = "wrong-platform"
    WRONG_PYTHON = "wrong-python"
    MISSING_FILE = "missing-file"
    UNKNOWN_TARGET = "unknown-target"
    OTHER_TARGET = "other-target"
    MIXED_IMAGES = "mixed-images"
    PLACEHOLDER = "placeholder"
    PLAIN_SECRET = "plain-secret"  # noqa: S105 the name of a problem, not a secret

    # Jobs.
    NO_SUCH_CONFIGURATION = "no-such-configuration"
    NO_SCRIPT = "no-script"
    SCRIPT_OUTSIDE = "script-outside"
    NO_SUCH_RUN = "no-such-run"
    MISSING_SECRET = "missing-secret"  # noqa: S105 the name of a problem, not a secret
    ENVIRONMENT_TOO_LARGE = "environment-too-large"
    NO_PYTHON = "no-python"
    NO_PROGRAM = "no-program"
    FILE_NOT_SENT = "file-not-sent"
    NO_ENGINE = "no-engine"
    ENGINE_FAILED = "engine-failed"
    NO_IMAGE = "no-image"
    REGISTRY_LOGIN = "registry-login"
    BUILD_FAILED = "build-failed"
    NO_GPU = "no-gpu"
    GPU_NOT_USED = "gpu-not-used"
    DISK_FULL = "disk-full"
    UPLOAD_FAILED = "upload-failed"
    JOB_FAILED = "job-failed"
    CONNECTION_LOST = "connection-lost"
    OUTPUTS_INCOMPLETE = "outputs-incomplete"

    # The embedded Azure.
    SANDBOX_NOT_INSTALLED = "sandbox-not-installed"
    SANDBOX_NOT_RUNNING = "sandbox-not-running"
    SANDBOX_FAILED = "sandbox-failed"
    SANDBOX_REFUSED = "sandbox-refused"
    UNKNOWN_FAULT = "unknown-fault"


@dataclass(frozen=True, slots=True)
class Span:
    """A location in a file. Lines and columns count from 1; the end column is exclusive."""

    file: str
    line: int
    column: int
    end_line: int
    end_column: int
    text: str
    """The first line of the location; empty if it must not be shown."""


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """One problem: a fixed summary, the user's value in the label, the fix in the help."""

    code: Code
    summary: str
    span: Span | None = None
    label: str | None = None
    note: str | None = None
    help: str | None = None
    severity: Severity = Severity.ERROR
    machine: str | None = None
    """The name of the machine that it concerns, if known."""


class Problem(Exception):  # noqa: N818 it carries diagnostics, which may be several
    """Stops a command: the program prints the diagnostics and exits with the code."""

    def __init__(self, *diagnostics: Diagnostic, exit_code: Exit = Exit.FAILED, log: str = "") -> None:
        super().__init__("; ".join(diagnostic.summary for diagnostic in diagnostics))
        self.diagnostics = diagnostics
        self.exit_code = exit_code
        self.log = log
        """The end of a log that shows the cause."""


def problem(
    code: Code,
    summary: str,
    note: str | None = None,
    help: str | None = None,  # noqa: A002 the name in Diagnostic
    *,
    exit_code: Exit = Exit.FAILED,
) -> Problem:
    """Return a Problem with one diagnostic that has no location."""
    return Problem(Diagnostic(code, summary, note=note, help=help), exit_code=exit_code)


def nearest(word: str, known: Iterable[str]) -> str | None:
    """Return the known word that `word` most likely means, or None.

    A word that differs only in case, spaces and punctuation wins: `South Central US` finds `southcentralus`, and
    `allow_ssh_from` finds `allowSshFrom`.
    """
    choices = list(known)
    by_plain = {plain(choice): choice for choice in choices}
    if not (wanted := plain(word)):
        return None
    if wanted in by_plain:
        return by_plain[wanted]
    # difflib is quadratic in the word's length, and no known word is this long.
    if len(wanted) > 100:
        return None
    found = difflib.get_close_matches(wanted, by_plain, n=5, cutoff=0.7)
    # Among equals, prefer the same first letter.
    found.sort(key=lambda choice: (-_likeness(wanted, choice), choice[0] != wanted[0]))
    return by_plain[found[0]] if found else None


def did_you_mean(word: str, known: Iterable[str]) -> str | None:
    """Return the help line for a misspelt word, or None without a suggestion."""
    found = nearest(word, known)
    return f"did you mean `{found}`?" if found else None


def listed(words: Iterable[str], joint: str = "or") -> str:
    """Return words as `a`, `b` or `c`."""
    quoted = [f"`{word}`" for word in words]
    if len(quoted) < 2:
        return "".join(quoted)
    return f"{', '.join(quoted[:-1])} {joint} {quoted[-1]}"


def _likeness(word: str, other: str) -> float:
    return difflib.SequenceMatcher(None, word, other).ratio()


def plain(word: str) -> str:
    """Return the letters and digits of a word, in lower case."""
    return "".join(character for character in word.casefold() if character.isalnum())
