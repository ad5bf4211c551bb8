"""cloud-init in a guest: read custom data, apply settings before SSH answers, run commands after that."""

import base64
import binascii
import gzip
import json
import shlex
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml

from gpuinfra.sandbox.guest import processes
from gpuinfra.sandbox.guest.disk import Disk, write_atomically
from gpuinfra.sandbox.guest.spec import GuestSpec

# A string is a shell line, a tuple is a command with its arguments.
Command = str | tuple[str, ...]
_DEFAULT_MODE = 0o644
# The parser in C, where PyYAML has it: agents are long files.
_LOADER: type[Any] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_KEY_KINDS = ("rsa", "ecdsa", "ed25519")
_FILE_KEYS = frozenset({"path", "content", "encoding", "permissions", "owner", "append", "defer"})
_ENCODINGS: Mapping[str, tuple[Callable[[bytes], bytes], ...]] = {
    **dict.fromkeys(("", "text/plain"), ()),
    **dict.fromkeys(("b64", "base64"), (base64.b64decode,)),
    **dict.fromkeys(("gz", "gzip"), (gzip.decompress,)),
    **dict.fromkeys(("gz+b64", "gz+base64", "gzip+b64", "gzip+base64"), (base64.b64decode, gzip.decompress)),
}


@dataclass(frozen=True)
class File:
    """A file to write."""

    path: str
    content: bytes
    mode: int
    append: bool


@dataclass
class CloudConfig:
    """What custom data asks for. `problems` are errors; `ignored` is what the guest does not simulate."""

    username: str
    files: list[File] = field(default_factory=list)
    host_keys: dict[str, str] = field(default_factory=dict)
    authorized_keys: list[str] = field(default_factory=list)
    hostname: str | None = None
    boot_commands: list[Command] = field(default_factory=list)
    run_commands: list[Command] = field(default_factory=list)
    script: bytes | None = None
    problems: list[str] = field(default_factory=list)
    ignored: list[str] = field(default_factory=list)


def read_custom_data(data: bytes | None, username: str) -> CloudConfig:
    """Parse custom data. Every error is in `problems`; nothing is raised."""
    config = CloudConfig(username)
    if not data:
        return config
    try:
        if data.startswith(b"\x1f\x8b"):
            data = gzip.decompress(data)
        if data.startswith(b"#!"):
            config.script = data
        elif data.startswith(b"#cloud-config"):
            _read_mapping(yaml.load(data.decode(), _LOADER), config)  # noqa: S506 a safe loader
        else:
            config.problems.append(f"unhandled non-multipart userdata: {data[:24]!r}...")
    except (OSError, EOFError, zlib.error, UnicodeDecodeError, yaml.YAMLError) as error:
        config.problems.append(f"failed loading custom data: {error}")
    return config


def _read_mapping(content: Any, config: CloudConfig) -> None:
    if content is None:
        return
    if not isinstance(content, dict):
        config.problems.append(f"#cloud-config is a {type(content).__name__}, not a mapping")
        return
    for key, value in content.items():
        reader = _READERS.get(key)
        if reader is None:
            config.ignored.append(f"{key}: not simulated")
            continue
        try:
            reader(value, config)
        except (TypeError, ValueError, KeyError, OSError, EOFError, zlib.error) as error:
            config.problems.append(f"{key}: {type(error).__name__}: {error}")


def _write_files(value: Any, config: CloudConfig) -> None:
    for item in _list(value):
        unknown = sorted(set(item) - _FILE_KEYS)
        if unknown:
            config.ignored.append(f"write_files {item.get('path')}: {', '.join(unknown)}: not simulated")
        if "owner" in item:
            config.ignored.append(f"write_files {item.get('path')}: owner: every file is the guest's own")
        try:
            config.files.append(_file(item))
        except (TypeError, ValueError, KeyError, OSError, EOFError, zlib.error) as error:
            config.problems.append(f"write_files {item.get('path')}: {type(error).__name__}: {error}")


def _file(item: Mapping[str, Any]) -> File:
    content = item.get("content") or b""
    content = content.encode() if isinstance(content, str) else bytes(content)
    encoding = str(item.get("encoding") or "").strip().lower()
    if encoding not in _ENCODINGS:
        raise ValueError(f"unknown encoding {encoding!r}")
    for decode in _ENCODINGS[encoding]:
        try:
            content = decode(content)
        except binascii.Error as error:
            raise ValueError(f"content is not {encoding}: {error}") from error
    permissions = item.get("permissions")
    # YAML reads 0644 as an octal number; in quotes it is a string.
    mode = permissions if isinstance(permissions, int) else int(permissions, 8) if permissions else _DEFAULT_MODE
    return File(str(item["path"]), content, mode & 0o7777, bool(item.get("append")))


def _ssh_keys(value: Any, config: CloudConfig) -> None:
    known = {f"{kind}_{part}" for kind in _KEY_KINDS for part in ("private", "public", "certificate")}
    for name, text in dict(value).items():
        if name in known:
            config.host_keys[name] = str(text)
        else:
            config.ignored.append(f"ssh_keys {name}: not simulated")


def _users(value: Any, config: CloudConfig) -> None:
    for user in _list(value):
        if user == "default":
            continue
        if isinstance(user, dict) and user.get("name") == config.username:
            config.authorized_keys += _keys(user)
        else:
            name = user.get("name") if isinstance(user, dict) else user
            config.ignored.append(f"users {name}: the simulated guest has no user but {config.username}")


def _keys(user: Mapping[str, Any]) -> Iterator[str]:
    for name in ("ssh_authorized_keys", "ssh-authorized-keys"):
        yield from (str(key) for key in _list(user.get(name) or []))


def _commands(value: Any) -> Iterator[Command]:
    for command in _list(value):
        if isinstance(command, list):
            yield tuple(str(word) for word in command)
        elif isinstance(command, str):
            yield command
        elif command is not None:
            raise TypeError(f"a command is a string or a list, not {command!r}")


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise TypeError(f"a list is wanted, not {value!r}")
    return value


_READERS: Mapping[str, Callable[[Any, CloudConfig], None]] = {
    "write_files": _write_files,
    "ssh_keys": _ssh_keys,
    "users": _users,
    "ssh_authorized_keys": lambda value, config: config.authorized_keys.extend(str(key) for key in _list(value)),
    "hostname": lambda value, config: setattr(config, "hostname", str(value)),
    "bootcmd": lambda value, config: config.boot_commands.extend(_commands(value)),
    "runcmd": lambda value, config: config.run_commands.extend(_commands(value)),
}
# bootcmd delays the boot, so it gets less time than runcmd.
_BOOT_SECONDS = 60.0
_RUN_SECONDS = 3600.0


class CloudInit:
    """cloud-init during one boot of a guest."""

    def __init__(self, spec: GuestSpec, disk: Disk) -> None:
        self._spec = spec
        self._disk = disk
        self._config = read_custom_data(spec.custom_data, spec.username)
        self._instance = disk.root / "var" / "lib" / "cloud" / "instance"
        self._errors: list[str] = []

    @property
    def has_host_keys(self) -> bool:
        """Whether the custom data contains host keys. Otherwise cloud-init generates one of every kind."""
        return bool(self._config.host_keys)

    async def configure(self) -> None:
        """Apply files, keys and hostname on the first boot; then run bootcmd, as on every boot."""
        self._say_status("running")
        for line in self._config.ignored:
            self._log("WARNING", f"ignored: {line}")
        for line in self._config.problems:
            self._fail(line)
        if not self._done("config"):
            self._apply()
            self._mark_done("config")
        await self._run_commands("bootcmd", self._config.boot_commands, _BOOT_SECONDS)

    async def finish(self) -> None:
        """Execute runcmd once; if that was interrupted, the next boot starts it again."""
        if not self._done("scripts"):
            if self._config.script is not None:
                script = self._instance / "scripts" / "part-001"
                write_atomically(script, self._config.script, 0o700)
                await self._run_script("user script", [str(script)], _RUN_SECONDS)
            await self._run_commands("runcmd", self._config.run_commands, _RUN_SECONDS)
            self._mark_done("scripts")
        write_atomically(self._instance / "boot-finished", f"{time.time():.2f} - v. simulated\n")
        self._say_status("error" if self._errors else "done")
        self._log("INFO", "boot finished")

    def _apply(self) -> None:
        if self._config.hostname:
            write_atomically(self._disk.root / "etc" / "hostname", f"{self._config.hostname}\n")
        for name, text in self._config.host_keys.items():
            kind, part = name.split("_")
            suffix = {"private": "", "public": ".pub", "certificate": "-cert.pub"}[part]
            mode = 0o600 if part == "private" else 0o644
            write_atomically(
                self._disk.root / "etc" / "ssh" / f"ssh_host_{kind}_key{suffix}", text.strip() + "\n", mode
            )
        if self._config.authorized_keys:
            with self._disk.authorized_keys.open("a") as keys:
                keys.writelines(f"{key.strip()}\n" for key in self._config.authorized_keys)
        for file in self._config.files:
            try:
                self._write(file)
            except OSError as error:
                self._fail(f"write_files {file.path}: {error}")

    def _write(self, file: File) -> None:
        if not file.path.startswith("/"):
            self._log("WARNING", f"write_files {file.path}: not absolute, written under /")
        target = self._disk.place("/" + file.path.lstrip("/"))
        before = target.read_bytes() if file.append and target.exists() else b""
        write_atomically(target, before + file.content, file.mode)
        self._log("INFO", f"wrote {file.path}: {len(file.content)} bytes, {file.mode:04o}")

    async def _run_commands(self, name: str, commands: Iterable[Command], deadline_seconds: float) -> None:
        """Run all commands as one script, as cloud-init does: a failing command does not stop the next."""
        lines = [self._shell(command) for command in commands]
        if lines:
            script = self._instance / "scripts" / name
            write_atomically(script, "\n".join(["#!/bin/sh", *lines, ""]), 0o700)
            await self._run_script(name, ["/bin/sh", str(script)], deadline_seconds)

    def _shell(self, command: Command) -> str:
        if isinstance(command, str):
            return self._disk.rewrite(command)
        return shlex.join(self._disk.rewrite(word) for word in command)

    async def _run_script(self, name: str, command: list[str], deadline_seconds: float) -> None:
        with (self._disk.log / "cloud-init-output.log").open("ab") as output:
            try:
                code = await processes.run(
                    command,
                    environment=processes.environment(self._spec, self._disk),
                    folder=self._disk.home,
                    output=output,
                    errors=output,
                    deadline_seconds=deadline_seconds,
                )
            except TimeoutError:
                self._fail(f"{name}: not done after {deadline_seconds:.0f} s, ended")
            except OSError as error:
                self._fail(f"{name}: {error}")
            else:
                self._log("INFO", f"{name}: exit code {code}") if code == 0 else self._fail(f"{name}: exit code {code}")

    def _fail(self, line: str) -> None:
        self._errors.append(line)
        self._log("ERROR", line)

    def _log(self, level: str, line: str) -> None:
        with (self._disk.log / "cloud-init.log").open("a") as log:
            log.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} - cloud-init[{level}]: {line}\n")

    def _say_status(self, status: str) -> None:
        """Write the status for the guest's `cloud-init` program, and cloud-init's own result file."""
        folder = self._disk.run / "cloud-init"
        write_atomically(folder / "errors", "".join(f"{line}\n" for line in self._errors))
        if status != "running":
            result = {"v1": {"datasource": "DataSourceAzure [simulated]", "errors": self._errors}}
            write_atomically(folder / "result.json", json.dumps(result, indent=1) + "\n")
        write_atomically(folder / "status", f"{status}\n")

    def _done(self, stage: str) -> bool:
        return (self._instance / "sem" / stage).exists()

    def _mark_done(self, stage: str) -> None:
        write_atomically(self._instance / "sem" / stage, "")
