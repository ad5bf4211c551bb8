"""`systemctl` in a simulated guest: sends its arguments to the server. Copied there: standard library only.

A guest calls it several times during a boot, so it imports little: `socket` and `json` would double its time.
"""

import _socket
import os
import sys

# A oneshot service may take its time to start.
DEADLINE_SECONDS = 3600.0


def main() -> int:
    """Send the arguments, print the answer, and return its exit code."""
    # A socket's name has at most 107 bytes, and the guest's path may be longer: use a relative name.
    os.chdir(os.path.join(os.path.dirname(os.path.realpath(__file__)), "..", "run"))
    server = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    server.settimeout(DEADLINE_SECONDS)
    reply = b""
    try:
        server.connect("systemd.socket")
        server.sendall("\0".join(sys.argv[1:]).encode("utf-8", "surrogateescape"))
        server.shutdown(_socket.SHUT_WR)
        while True:
            part = server.recv(1 << 16)
            if not part:
                break
            reply += part
    except OSError as error:
        sys.stderr.write(f"Failed to connect to bus (simulated): {error}\n")
        return 1
    if not reply:
        sys.stderr.write("Failed to get an answer from the bus (simulated)\n")
        return 1
    code, output, errors = reply.decode("utf-8", "replace").split("\0")
    sys.stdout.write(output)
    sys.stderr.write(errors)
    return int(code)


if __name__ == "__main__":
    sys.exit(main())
