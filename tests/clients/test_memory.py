"""The memory of connections: of each, of all together, and when they are idle."""

import contextlib
import json
import os
import ssl
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor

import rig
from nbd import READ, Client, Refused
from rig import MI, check
from test_doors import Authority


@contextlib.contextmanager
def served(*args):
    """A server with a control socket and, for clients that want it, TLS; and a function that returns its memory status."""
    with tempfile.TemporaryDirectory(prefix="fairq-") as folder:
        host = Authority(folder, "ours").issue("localhost", "DNS:localhost", "serverAuth", "server")
        control = os.path.join(folder, "control")
        with rig.serve("--device", "ram,size=64M", "--tenant", "db=64M", "--shards", "1", "--control", control, "--tls", "optional",
                       "--tls-cert", f"{host}/server-cert.pem", "--tls-key", f"{host}/server-key.pem", *args) as server:  # fmt: skip
            ask = [rig.fairq(), "ctl", "--control", control, "--json", "status"]
            yield server, lambda: json.loads(rig.run(*ask).stdout)["memory"]


def resident(server):
    with open(f"/proc/{server.child.pid}/status", encoding="ascii") as lines:
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmRSS:"))


def context():
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
    return tls


def test_a_connection_has_what_is_documented_and_gives_it_back():
    """Reads of 32 MiB whose replies wait, in the clear and over TLS: a little over 40 MiB each, and next to nothing when idle."""
    said, count = [], 4
    for name, tls in (("clear", None), ("TLS", context())):
        with served() as (server, memory):
            first = Client(server.socket, "db", tls=tls)
            first.ask(READ, 0, 4096)
            begin = resident(server)
            clients = [first] + [Client(server.socket, "db", tls=tls, timeout=60) for _ in range(count - 1)]
            for client in clients:
                client.send(READ, 0, 32 * MI)
            # The socket is full, and the rest is in the server.
            most, until = 0, time.monotonic() + 2
            while time.monotonic() < until:
                most = max(most, resident(server) - begin)
                time.sleep(0.02)
            for client in clients:
                client.receive()
            rig.until(lambda: memory()["used"] == count * MI, 20, f"{name}: memory is given back: {memory()}")
            rig.until(lambda: resident(server) - begin < 8 * MI, 20, f"{name}: {(resident(server) - begin) >> 20} MiB are kept")
            idle = resident(server) - begin
            for client in clients:
                client.close()
        said.append(f"{name} {most / count / MI:.1f} MiB a connection, {idle / count / MI:.1f} when idle")
        check(30 * count * MI < most < 42 * count * MI, said[-1])
    return "; ".join(said)


def test_all_connections_together_are_bounded():
    """A client that connects when memory is used up gets an error that says so, and may try again; the others are still served."""
    with served("--memory", "40M") as (server, memory):
        clients = []
        with contextlib.suppress(Refused):
            while len(clients) < 100:
                clients.append(Client(server.socket, "db"))
        check(len(clients) == 20, f"{len(clients)} connections of 1 MiB each: a tenant has half")
        try:
            Client(server.socket, "db")
            raise rig.Failed("one more than there is memory for")
        except Refused as refused:
            check("memory" in str(refused), f"the client is told: {refused}")
        # There is no memory left for requests: they are served one at a time.
        with ThreadPoolExecutor(8) as threads:
            asked = list(threads.map(lambda client: client.ask(READ, 0, 2 * MI)[0], clients[:8]))
        check(asked == [0] * 8, f"all are served in the end: {asked}")
        check(memory() == {"used": 20 * MI, "most": 40 * MI}, "and the bound is kept")
        clients.pop().close()
        rig.until(lambda: memory()["used"] <= 19 * MI, 20, "its part is given back")
        Client(server.socket, "db").close()
