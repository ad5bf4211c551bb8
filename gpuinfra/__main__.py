"""`python -m gpuinfra` is the `gpuinfra` program."""

import sys

from gpuinfra.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
