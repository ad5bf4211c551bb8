"""The commands, one small file each. `commands` lists them; `main` is the program."""
