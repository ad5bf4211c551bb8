"""`python -m bench`: every measurement, as a table and with `--json` as data."""

import json
import sys

from bench import startup


def main() -> None:
    ratios = [startup.measure()]
    if "--json" in sys.argv[1:]:
        print(json.dumps({"schemaVersion": 1, "ratios": [ratio._asdict() for ratio in ratios]}, indent=2))
        return
    for ratio in ratios:
        verdict = "within" if ratio.value <= ratio.limit else "OVER"
        print(f"{ratio.name:<40} {ratio.value:.2f}  ({verdict} {ratio.limit:.2f}; {ratio.of})")


if __name__ == "__main__":
    main()
