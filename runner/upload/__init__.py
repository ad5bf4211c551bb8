"""Upload a project: read it, find what the target lacks, and send only that."""

from gpuinfra.runner.errors import UploadError
from gpuinfra.runner.upload.send import Uploaded, upload
from gpuinfra.runner.upload.tree import Entry, Skipped, Tree
from gpuinfra.runner.upload.walk import read_tree

__all__ = ["Entry", "Skipped", "Tree", "UploadError", "Uploaded", "read_tree", "upload"]
