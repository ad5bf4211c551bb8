"""Run all benchmarks, or the named groups, as `python -m bench`; print a table, or JSON with `--json`."""

import json
import sys
from collections.abc import Callable, Sequence

from bench import job, output, reap, startup, tail, up, upload
from bench.ratio import Ratio

GROUPS: dict[str, Callable[[], Sequence[Ratio]]] = {
    "startup": lambda: [startup.measure()],
    "upload": upload.measure,
    "job": job.measure,
    "output": output.measure,
    "tail": tail.measure,
    "up": up.measure,
    "reap": reap.measure,
}


def main() -> None:
    names = [word for word in sys.argv[1:] if word != "--json"] or list(GROUPS)
    if unknown := set(names) - set(GROUPS):
        sys.exit(f"no group {', '.join(sorted(unknown))}; there are {', '.join(GROUPS)}")
    ratios = [ratio for name in names for ratio in GROUPS[name]()]
    if "--json" in sys.argv[1:]:
        print(json.dumps({"schemaVersion": 1, "ratios": [ratio._asdict() for ratio in ratios]}, indent=2))
        return
    for ratio in ratios:
        verdict = "within" if ratio.value <= ratio.limit else "OVER"
        print(f"{ratio.name:<40} {ratio.value:.2f}  ({verdict} {ratio.limit:.2f}; {ratio.of})")


if __name__ == "__main__":
    main()
