"""The outputs of a run on this computer: fetch, list, compare and copy them."""
