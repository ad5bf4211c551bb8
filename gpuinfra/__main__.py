"""`python -m gpuinfra` is the `gpuinfra` program."""

from gpuinfra.cli.main import program

if __name__ == "__main__":
    program()
