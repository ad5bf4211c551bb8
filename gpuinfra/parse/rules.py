"""Rules between fields, each as a check with a location and as JSON Schema."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from gpuinfra.diagnostics import Code, Diagnostic, listed
from gpuinfra.models.base import whole
from gpuinfra.models.images import ALIAS_DRIVER, ALIASES, DEFAULT_ALIAS
from gpuinfra.models.job import ENVIRONMENT_SOURCES
from gpuinfra.models.sizes import GPU_MODELS, GPUS_WITHOUT_VTPM, NEEDED_DRIVERS, SIZES, gpu_counts, needed_driver
from gpuinfra.models.ssh import WIDE, is_wide
from gpuinfra.parse.source import Source
from gpuinfra.parse.tree import Mapping, Node, Scalar, Sequence, node_at

ZONES = "zones"


@dataclass(frozen=True)
class Rule:
    """A rule about the mapping at `place`, keys with periods between them; an empty place is the top level."""

    place: str
    check: Callable[[Source, Mapping], Iterator[Diagnostic]]
    schema: dict[str, Any]


def check_rules(source: Source, document: Mapping) -> Iterator[Diagnostic]:
    """Return the problems that the rules find."""
    for rule in RULES:
        node = node_at(document, *rule.place.split(".")) if rule.place else document
        if isinstance(node, Mapping):
            yield from rule.check(source, node)


def _value(mapping: Mapping, key: str) -> Any:
    node = mapping.items.get(key)
    return node.value if isinstance(node, Scalar) else None


def _at(source: Source, node: Node, code: Code, summary: str, label: str, help_line: str | None = None) -> Diagnostic:
    return Diagnostic(code, summary, source.span(node.start, node.end), label, help=help_line)


def _exactly_one(keys: tuple[str, ...], example: str) -> Rule:
    def check(source: Source, document: Mapping) -> Iterator[Diagnostic]:
        if not any(key in document.keys for key in keys):
            start = source.span(document.start, document.start)
            label = f"the key {listed(keys)} is missing"
            yield Diagnostic(Code.MISSING_KEY, "missing key", start, label, help=f"for example `{example}`")
        yield from _conflicts(source, document, keys)

    return Rule("", check, {"oneOf": [{"required": [key]} for key in keys]})


def _at_most_one(keys: tuple[str, ...], place: str) -> Rule:
    def check(source: Source, mapping: Mapping) -> Iterator[Diagnostic]:
        yield from _conflicts(source, mapping, keys)

    present = [{"required": [key]} for key in keys]
    return Rule(place, check, {"oneOf": [*present, {"not": {"anyOf": present}}]})


def _conflicts(source: Source, mapping: Mapping, keys: tuple[str, ...]) -> Iterator[Diagnostic]:
    present = [mapping.keys[key] for key in keys if key in mapping.keys]
    for key in sorted(present, key=lambda key: key.start)[1:]:
        label = f"{listed(keys, 'and')} exclude each other"
        yield _at(source, key, Code.CONFLICTING_KEYS, "conflicting keys", label, "keep one of them")


def _check_spot(source: Source, document: Mapping) -> Iterator[Diagnostic]:
    if "spot" in document.keys and _value(document, "priority") != "spot":
        label = "no effect without `priority: spot`"
        yield _at(source, document.keys["spot"], Code.NO_EFFECT, "key without effect", label, "add `priority: spot`")


def _check_internet(source: Source, network: Mapping) -> Iterator[Diagnostic]:
    sources = network.items.get("allowSshFrom")
    if not isinstance(sources, Sequence) or _value(network, "allowInternet") is True:
        return
    for node in sources.items:
        if isinstance(node, Scalar) and is_wide(node.value):
            label = f"`{node.text}` opens SSH to more than 16 million addresses"
            help_line = "write your own address, or allow it with `allowInternet: true`"
            yield _at(source, node, Code.OPEN_TO_INTERNET, "SSH open to the internet", label, help_line)


def _check_remote(source: Source, target: Mapping) -> Iterator[Diagnostic]:
    if _value(target, "type") != "remote":
        return
    for name in ("baseDockerImage", "nvidiaDocker"):
        if name in target.keys:
            label = "no effect with `type: remote`, which runs jobs without a container"
            help_line = "remove it, or write `type: remotedocker`"
            yield _at(source, target.keys[name], Code.NO_EFFECT, "key without effect", label, help_line)


def _check_environment(source: Source, document: Mapping) -> Iterator[Diagnostic]:
    """Check that a machine without containers is not asked for one."""
    target, job = document.items.get("target"), document.items.get("job")
    environment = job.items.get("environment") if isinstance(job, Mapping) else None
    if not isinstance(target, Mapping) or _value(target, "type") != "remote" or not isinstance(environment, Mapping):
        return
    for name in ("image", "dockerfile"):
        if name in environment.keys:
            label = "no effect with `target.type: remote`, which runs jobs without a container"
            help_line = "use `requirements`, `pyproject` or `conda`, or write `type: remotedocker`"
            yield _at(source, environment.keys[name], Code.NO_EFFECT, "key without effect", label, help_line)


def _check_context(source: Source, environment: Mapping) -> Iterator[Diagnostic]:
    if "context" in environment.keys and "dockerfile" not in environment.keys:
        label = "no effect without `dockerfile`"
        help_line = "add `dockerfile: Dockerfile`"
        yield _at(source, environment.keys["context"], Code.NO_EFFECT, "key without effect", label, help_line)


def _check_look(source: Source, document: Mapping) -> Iterator[Diagnostic]:
    lifecycle, job = document.items.get("lifecycle"), document.items.get("job")
    if not isinstance(lifecycle, Mapping) or not isinstance(job, Mapping) or _value(lifecycle, "afterRun") != "keep":
        return
    if "keepOnFailure" in job.keys:
        label = "no effect with `lifecycle.afterRun: keep`, which leaves the machine on after every run"
        help_line = "remove one of them"
        yield _at(source, job.keys["keepOnFailure"], Code.NO_EFFECT, "key without effect", label, help_line)


def _check_gpu(source: Source, gpu: Mapping) -> Iterator[Diagnostic]:
    model, count = _value(gpu, "model"), _value(gpu, "count")
    if model not in GPU_MODELS or not isinstance(count, int) or isinstance(count, bool) or count < 1:
        return
    if count not in (counts := gpu_counts(model)):
        label = f"no NC size has this many; for {model} use {listed(map(str, counts))}"
        yield _at(source, gpu.items["count"], Code.UNKNOWN_GPU, "unavailable number of GPUs", label)


def _check_driver(source: Source, document: Mapping) -> Iterator[Diagnostic]:
    """Check aliased images only: the driver of other images is unknown."""
    image = _value(document, "image") if "image" in document.items else DEFAULT_ALIAS
    if image not in ALIASES:
        return
    for node in _requested(document):
        needed = needed_driver(node.text) or NEEDED_DRIVERS.get(node.text)
        if needed:
            label = f"it needs NVIDIA's GRID driver {needed}; `{image}` has {ALIAS_DRIVER}"
            help_line = "use another GPU, or an image with that driver: `image: publisher:offer:sku:version`"
            yield _at(source, node, Code.UNSUPPORTED_SIZE, "image too old for this GPU", label, help_line)


def _check_trusted_launch(source: Source, document: Mapping) -> Iterator[Diagnostic]:
    if _value(document, "securityType") != "TrustedLaunch":
        return
    for node in _requested(document):
        model = SIZES[node.text].gpu_model if node.text in SIZES else node.text
        if model in GPUS_WITHOUT_VTPM:
            label = "NVIDIA's driver for this GPU does not work with the virtual TPM of Trusted Launch"
            help_line = "write `securityType: Standard`, or use another GPU"
            yield _at(source, node, Code.UNSUPPORTED_SIZE, "GPU without Trusted Launch", label, help_line)


def _requested(document: Mapping) -> Iterator[Scalar]:
    """Return the nodes that name sizes or GPUs."""
    sizes, gpu = document.items.get("sizes"), document.items.get("gpu")
    nodes = [document.items.get("size"), *(sizes.items if isinstance(sizes, Sequence) else ())]
    nodes.append(gpu.items.get("model") if isinstance(gpu, Mapping) else gpu)
    yield from (node for node in nodes if isinstance(node, Scalar))


def _without(*models: str) -> dict[str, Any]:
    """Return the schema of a spec without these GPUs."""
    sizes = [size.name for size in SIZES.values() if size.gpu_model in models]
    return {
        "properties": {
            "size": {"not": {"enum": sizes}},
            "sizes": {"items": {"not": {"enum": sizes}}},
            "gpu": {"not": {"enum": list(models)}, "properties": {"model": {"not": {"enum": list(models)}}}},
        }
    }


def _no_repeats(place: str, key: str) -> Rule:
    def check(source: Source, mapping: Mapping) -> Iterator[Diagnostic]:
        values = mapping.items.get(key)
        seen: set[tuple[type, object]] = set()
        for node in values.items if isinstance(values, Sequence) else ():
            if isinstance(node, Scalar) and not node.doubtful:
                # A zone can be a number or text.
                plain = str(node.value) if key == ZONES and type(node.value) is int else node.value
                value = (type(plain), plain)
                if value in seen:
                    label = f"`{node.text}` is already in the list"
                    yield _at(source, node, Code.REPEATED_VALUE, "repeated value", label, "keep one of them")
                seen.add(value)

    unique: dict[str, Any] = {"uniqueItems": True}
    if key == ZONES:
        twice = [[{"contains": {"const": zone}}, {"contains": {"const": str(zone)}}] for zone in (1, 2, 3)]
        unique["not"] = {"anyOf": [{"allOf": both} for both in twice]}
    return Rule(place, check, {"properties": {key: unique}})


RULES = (
    _exactly_one(("region", "regions"), "region: southcentralus"),
    _exactly_one(("size", "sizes", "gpu"), "size: Standard_NC4as_T4_v3"),
    _no_repeats("", "regions"),
    _no_repeats("", ZONES),
    _no_repeats("", "sizes"),
    _no_repeats("network", "allowSshFrom"),
    _no_repeats("job", "secrets"),
    _no_repeats("job", "outputs"),
    _at_most_one(ENVIRONMENT_SOURCES, "job.environment"),
    Rule("job.environment", _check_context, {"dependentRequired": {"context": ["dockerfile"]}}),
    Rule(
        "",
        _check_spot,
        {
            "if": {"required": ["spot"]},
            "then": {"required": ["priority"], "properties": {"priority": {"const": "spot"}}},
        },
    ),
    Rule(
        "",
        _check_driver,
        {"if": {"properties": {"image": {"enum": list(ALIASES)}}}, "then": _without(*NEEDED_DRIVERS)},
    ),
    Rule(
        "",
        _check_trusted_launch,
        {
            "if": {"required": ["securityType"], "properties": {"securityType": {"const": "TrustedLaunch"}}},
            "then": _without(*GPUS_WITHOUT_VTPM),
        },
    ),
    Rule(
        "network",
        _check_internet,
        {
            "if": {
                "required": ["allowSshFrom"],
                "properties": {
                    "allowSshFrom": {
                        "type": "array",
                        "contains": {"type": "string", "pattern": whole(WIDE)},
                    }
                },
            },
            "then": {"required": ["allowInternet"], "properties": {"allowInternet": {"const": True}}},
        },
    ),
    Rule(
        "target",
        _check_remote,
        {
            "if": {"required": ["type"], "properties": {"type": {"const": "remote"}}},
            "then": {"properties": {"baseDockerImage": False, "nvidiaDocker": False}},
        },
    ),
    Rule(
        "",
        _check_environment,
        {
            "if": {
                "required": ["target"],
                "properties": {"target": {"required": ["type"], "properties": {"type": {"const": "remote"}}}},
            },
            "then": {
                "properties": {
                    "job": {"properties": {"environment": {"properties": {"image": False, "dockerfile": False}}}}
                }
            },
        },
    ),
    Rule(
        "",
        _check_look,
        {
            "if": {
                "required": ["lifecycle"],
                "properties": {"lifecycle": {"required": ["afterRun"], "properties": {"afterRun": {"const": "keep"}}}},
            },
            "then": {"properties": {"job": {"properties": {"keepOnFailure": False}}}},
        },
    ),
    Rule(
        "gpu",
        _check_gpu,
        {
            "allOf": [
                {
                    "if": {"required": ["model"], "properties": {"model": {"const": model}}},
                    "then": {"properties": {"count": {"enum": list(gpu_counts(model))}}},
                }
                for model in GPU_MODELS
            ]
        },
    ),
)
