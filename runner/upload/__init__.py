"""The project travels to the target: what is in it, what the target lacks of it, and one stream of just that."""

from runner.upload.errors import UploadError
from runner.upload.sending import Uploaded, upload
from runner.upload.tree import Entry, Skipped, Tree
from runner.upload.walk import read_tree

__all__ = ["Entry", "Skipped", "Tree", "UploadError", "Uploaded", "read_tree", "upload"]
