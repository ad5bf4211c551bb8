"""Data that is shipped with the program: specs to start from, scripts, the guest agent and what goes with it."""

from importlib.resources import files


def read_template(name: str) -> str:
    """The text of a template."""
    return files(__name__).joinpath(name).read_text("utf-8")
