"""Reserved ports of the servers that tests start."""

from __future__ import annotations

import gc
import socket

from tools.services.ports import is_free, reserve_ports


def test_a_port_stays_ours_while_its_server_is_away_and_is_given_back() -> None:
    reserved = reserve_ports(2)
    first, second = reserved.ports
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers do
        server.bind(("127.0.0.1", first))
        server.listen()
        with socket.create_connection(("127.0.0.1", first), 5):
            pass
    assert not is_free(first)
    assert not is_free(second)
    del reserved
    gc.collect()
    assert is_free(second)


def test_a_place_can_have_a_port_at_a_distance() -> None:
    port, bus = reserve_ports(also=10_000).ports
    assert bus == port + 10_000
