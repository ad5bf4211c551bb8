"""The job of a spec: what runs on the machine, in which environment, and what it may use."""

import re
from typing import Annotated, NamedTuple

from pydantic import Discriminator, Field, Tag, WithJsonSchema

from gpuinfra.diagnostics import Code
from gpuinfra.models.base import Duration, Model, ShortDuration, checked, parsed, rejection, whole
from gpuinfra.models.images import ContainerImage

# A path in the project, with forward slashes.
_IN_PROJECT = r"(?![/~])(?!(?:[^\n]*/)?\.\.(?:/|$))"
YAML_PATH = _IN_PROJECT + r"[^\\\x00-\x1f]+\.ya?ml"
REQUIREMENTS_PATH = _IN_PROJECT + r"[^\\\x00-\x1f]+\.(?:txt|in)"
PYPROJECT_PATH = _IN_PROJECT + r"(?:[^\\\x00-\x1f]+/)?pyproject\.toml"
DOCKERFILE_PATH = _IN_PROJECT + r"[^\\\x00-\x1f]*[^\\\x00-\x1f/]"
FOLDER_PATH = _IN_PROJECT + r"[^\\\x00-\x1f]+"
VARIABLE = r"[A-Za-z_][A-Za-z0-9_]{0,254}"
# Names whose values are secrets. JSON Schema has no case-insensitive flag.
_SECRET = "|".join(
    "".join(f"[{letter}{letter.upper()}]" if letter.isalpha() else letter for letter in word)
    for word in "password passwd passphrase secret token credential credentials".split()
    + [f"{kind}_?key" for kind in ("api", "access", "account", "private")]
)
PLAIN_VARIABLE = rf"(?![A-Za-z0-9_]*(?:{_SECRET})$){VARIABLE}"
VALUE = r"[^\x00]*"
COMMAND = r"[^\x00]*[^ \t\n\r\x00][^\x00]*"
# A folder in a folder would need a rule for the files around it; `.git` and other hidden folders are never outputs.
OUTPUT_FOLDER = r"(?!aml_config/?$)[A-Za-z0-9_][A-Za-z0-9._-]{0,99}/?"
PORT_NAME = r"[A-Za-z][A-Za-z0-9_-]{0,31}"
LAST_PORT = 65535
OUTPUTS = "outputs"
"""The output folder that every job has."""


class _ProjectPath(NamedTuple):
    """A kind of relative path in the project."""

    pattern: str
    expected: str
    example: str

    def check(self, path: str) -> None:
        if re.fullmatch(self.pattern, path):
            return
        if path.startswith(("/", "~")) or ".." in path.split("/"):
            label = "expected a relative path inside the project"
        elif "\\" in path:
            label = "expected forward slashes"
        else:
            label = f"expected the path of a {self.expected}"
        raise rejection(Code.BAD_PATH, "invalid path", label, f"for example `{self.example}`")

    @property
    def schema(self) -> WithJsonSchema:
        return WithJsonSchema({"type": "string", "pattern": whole(self.pattern)})


_YAML = _ProjectPath(YAML_PATH, "`.yml` or `.yaml` file", "aml_config/conda_dependencies.yml")
_REQUIREMENTS = _ProjectPath(REQUIREMENTS_PATH, "`.txt` or `.in` file", "requirements.txt")
_PYPROJECT = _ProjectPath(PYPROJECT_PATH, "`pyproject.toml`", "pyproject.toml")
_DOCKERFILE = _ProjectPath(DOCKERFILE_PATH, "file", "docker/Dockerfile")
_FOLDER = _ProjectPath(FOLDER_PATH, "folder", "docker")

YamlPath = Annotated[str, checked(_YAML.check), _YAML.schema]
RequirementsPath = Annotated[str, checked(_REQUIREMENTS.check), _REQUIREMENTS.schema]
PyprojectPath = Annotated[str, checked(_PYPROJECT.check), _PYPROJECT.schema]
DockerfilePath = Annotated[str, checked(_DOCKERFILE.check), _DOCKERFILE.schema]
FolderPath = Annotated[str, checked(_FOLDER.check), _FOLDER.schema]


def check_yaml_path(path: str) -> None:
    """Reject anything but a relative path of a YAML file in the project, with forward slashes."""
    _YAML.check(path)


def check_secret_name(name: str) -> None:
    """Reject anything but the name of a variable. A value must not be in a spec."""
    if re.fullmatch(VARIABLE, name):
        return
    if re.match(rf"{VARIABLE}\s*=", name):
        label = "specs are in git, where others can read them"
        raise rejection(Code.SECRET_IN_SPEC, "secret in a spec", label, "give only the name, and replace the secret")
    raise rejection(Code.BAD_NAME, "invalid variable name", "use letters, digits and `_`, not starting with a digit")


def check_variable_name(name: str) -> None:
    """Reject anything but the name of a variable whose value others can read."""
    check_secret_name(name)
    if not re.fullmatch(PLAIN_VARIABLE, name):
        label = f"the value of `{name}` is in git, where others can read it"
        help_line = f"set it in your shell, and name it: `secrets: [{name}]`"
        raise rejection(Code.SECRET_IN_SPEC, "secret in a spec", label, help_line)


def _check_port_name(name: str) -> None:
    if not re.fullmatch(PORT_NAME, name):
        label = "use at most 32 letters, digits, `_` and `-`, starting with a letter"
        raise rejection(Code.BAD_NAME, "invalid port name", label, "for example `tensorboard: 6006`")


def _check_text(text: str) -> None:
    if not re.fullmatch(VALUE, text, re.DOTALL):
        raise rejection(Code.BAD_CHARACTER, "invalid character", "Linux allows no NUL in variables and arguments")


def _check_command(text: str) -> None:
    if not text.strip(" \t\n\r"):
        raise rejection(Code.EMPTY_VALUE, "empty value", "expected a command", "for example `command: python train.py`")
    _check_text(text)


def _parse_folder(text: str) -> str:
    if re.fullmatch(OUTPUT_FOLDER, text):
        return f"{text.removesuffix('/')}/"
    if text.rstrip("/") == "aml_config":
        label = "it holds the target files, which a job needs"
    elif "/" in text.removesuffix("/"):
        label = "expected a folder at the top of the project"
    else:
        label = "use letters, digits, `.`, `_` and `-`, starting with a letter, a digit or `_`"
    raise rejection(Code.BAD_PATH, "invalid path", label, "for example `checkpoints/`")


def _kind_of_command(value: object) -> str:
    return WORDS if isinstance(value, list | tuple) else LINE


# The tags of the two kinds of command, which are in the location of pydantic's errors.
LINE, WORDS = "command-line", "command-words"
COMMAND_KINDS = frozenset({LINE, WORDS})
_Text = Annotated[str, checked(_check_text)]
_Line = Annotated[str, checked(_check_command)]

Command = Annotated[
    Annotated[_Line, Tag(LINE)] | Annotated[Annotated[tuple[_Text, ...], Field(min_length=1)], Tag(WORDS)],
    Discriminator(_kind_of_command),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string", "pattern": whole(COMMAND)},
                {"type": "array", "minItems": 1, "items": {"type": "string", "pattern": whole(VALUE)}},
            ]
        }
    ),
]
Variables = Annotated[
    dict[Annotated[str, checked(check_variable_name)], _Text],
    WithJsonSchema(
        {
            "type": "object",
            "propertyNames": {"pattern": whole(PLAIN_VARIABLE)},
            "additionalProperties": {"type": "string", "pattern": whole(VALUE)},
        }
    ),
]
SecretName = Annotated[str, checked(check_secret_name), WithJsonSchema({"type": "string", "pattern": whole(VARIABLE)})]
OutputFolder = Annotated[
    str, parsed(_parse_folder), WithJsonSchema({"type": "string", "pattern": whole(OUTPUT_FOLDER)})
]


ENVIRONMENT_SOURCES = ("image", "dockerfile", "conda", "requirements", "pyproject")
"""The fields of an environment that exclude each other."""

Ports = Annotated[
    dict[Annotated[str, checked(_check_port_name)], Annotated[int, Field(ge=1, le=LAST_PORT)]],
    WithJsonSchema(
        {
            "type": "object",
            "propertyNames": {"pattern": whole(PORT_NAME)},
            "additionalProperties": {"type": "integer", "minimum": 1, "maximum": LAST_PORT},
        }
    ),
]


class Environment(Model):
    """What a job runs in: one of these, or nothing for what the project's own files say."""

    image: ContainerImage | None = Field(
        default=None,
        description="A container image with everything that the job needs. It is used as it is.",
        examples=["pytorch/pytorch:2.7.1-cuda11.8-cudnn9-runtime"],
    )
    dockerfile: DockerfilePath | None = Field(
        default=None,
        description="A Dockerfile in the project, built on the machine.",
        examples=["Dockerfile"],
    )
    context: FolderPath | None = Field(
        default=None,
        description="The folder whose files the Dockerfile copies. Default: the project.",
        examples=["docker"],
    )
    conda: YamlPath | None = Field(
        default=None,
        description="A conda file in the project, whose packages are added to target.baseDockerImage.",
        examples=["environment.yml"],
    )
    requirements: RequirementsPath | None = Field(
        default=None,
        description="A requirements file in the project.",
        examples=["requirements.txt"],
    )
    pyproject: PyprojectPath | None = Field(
        default=None,
        description="A pyproject.toml in the project: its dependencies, as locked in uv.lock if there is one.",
        examples=["pyproject.toml"],
    )

    @property
    def needs_container(self) -> bool:
        """Whether only a container can have it."""
        return self.image is not None or self.dockerfile is not None


class Job(Model):
    """The job that `gpuinfra run` runs on the machine."""

    command: Command | None = Field(
        default=None,
        description="A line for the shell, or a list: the program and its arguments.",
        examples=["python train.py --epochs 3"],
    )
    environment: Environment | None = Field(
        default=None,
        description="What the job runs in. Default for containers: what the project's own files say.",
        examples=[{"requirements": "requirements.txt"}],
    )
    env: Variables = Field(
        default_factory=dict, description="Environment variables.", examples=[{"WANDB_PROJECT": "mnist"}]
    )
    secrets: tuple[SecretName, ...] = Field(
        default=(),
        description="Names of secret variables. Their values come from your shell or your keyring.",
        examples=[["WANDB_API_KEY"]],
    )
    outputs: Annotated[tuple[OutputFolder, ...], Field(min_length=1)] = Field(
        default=(f"{OUTPUTS}/",),
        description="Folders at the top of the project whose files are fetched. outputs/ always is.",
        examples=[["outputs/", "checkpoints/"]],
    )
    ports: Ports = Field(
        default_factory=dict,
        description="Ports of the job that are forwarded to your computer while you follow it, by a name for each.",
        examples=[{"tensorboard": 6006}],
    )
    timeout: Duration | None = Field(
        default=None, description="Stop the job after this time. Default: no limit.", examples=["6h"]
    )
    keep_on_failure: ShortDuration | None = Field(
        default=None,
        description="If the job fails, leave the machine on for this time, to look at what it left. At most 23h.",
        examples=["30m"],
    )

    @property
    def more_outputs(self) -> tuple[str, ...]:
        """Names of the output folders besides `outputs`."""
        return tuple(name for each in dict.fromkeys(self.outputs) if (name := each.removesuffix("/")) != OUTPUTS)
