"""GPU machines in Azure from a YAML file in git. The front door and the vocabulary of the toolkit."""

__version__ = "0.1.0"
