"""The script that child processes start with: take over the parent's ``sys.path``, then serve.

Run as a file, before windlass can be imported: nothing but the standard library may be used here.
"""

import json
import socket
import sys


def _receive(pipe: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        part = pipe.recv(count - len(data))
        if not part:
            sys.exit(0)  # the parent is gone
        data += part
    return data


if __name__ == "__main__":
    pipe = socket.socket(fileno=int(sys.argv[1]))
    length = int.from_bytes(_receive(pipe, 4), "big")
    sys.path[:] = json.loads(_receive(pipe, length))
    from windlass.sandbox.child import main

    main(pipe)
