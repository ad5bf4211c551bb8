"""`systemctl` in a simulated guest: sends its arguments to the server. Copied there: standard library only.

A guest calls it several times during a boot, so it imports little.
"""

import json
import os
import socket
import sys

# A oneshot service may take its time to start.
DEADLINE_SECONDS = 3600.0


def main() -> int:
    """Send the arguments, print the answer, and return its exit code."""
    # A socket's name has at most 107 bytes, and the guest's path may be longer: use a relative name.
    os.chdir(os.path.join(os.path.dirname(os.path.realpath(__file__)), "..", "run"))
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server:
        server.settimeout(DEADLINE_SECONDS)
        try:
            server.connect("systemd.socket")
            server.sendall(json.dumps(sys.argv[1:]).encode() + b"\n")
            with server.makefile("rb") as answer:
                line = answer.readline()
        except OSError as error:
            sys.stderr.write(f"Failed to connect to bus (simulated): {error}\n")
            return 1
    if not line:
        sys.stderr.write("Failed to get an answer from the bus (simulated)\n")
        return 1
    reply = json.loads(line)
    sys.stdout.write(reply["stdout"])
    sys.stderr.write(reply["stderr"])
    return int(reply["exit_code"])


if __name__ == "__main__":
    sys.exit(main())
