"""Data that is shipped with the program: starter specs now; cloud-init, the guest agent, workflows later."""

from importlib.resources import files


def read_template(name: str) -> str:
    """The text of a template."""
    return files(__name__).joinpath(name).read_text("utf-8")
