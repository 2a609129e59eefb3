"""The longest time that clients wait while another program takes over the server."""

import json
import os
import selectors
import socket
import struct
import tempfile
import threading
import time

import nbd
import rig
from common import recorded
from rig import MI, check, run

TENANTS, CONNECTIONS, PAGE = 1000, 100, 4096
# The longest that a client may wait, in seconds.
BAR = 1.0


class Load:
    """One request of each connection at a time, from one thread: a page is written and read again. Every reply must be complete."""

    def __init__(self, clients):
        self.clients, self.longest, self.done, self.wrong, self.is_over = clients, 0.0, 0, None, False
        self.thread = threading.Thread(target=self.run)

    def send(self, at):
        client = self.clients[at]
        turn = client.turn = client.turn + 1
        client.page = struct.pack("<Q", at << 32 | turn >> 1) * (PAGE // 8) if turn % 2 == 0 else client.page
        command, data = (nbd.WRITE, client.page) if turn % 2 == 0 else (nbd.READ, b"")
        client.since, client.got, client.wanted = time.monotonic(), b"", 16 + (PAGE if turn % 2 else 0)
        client.s.sendall(struct.pack(">IHHQQI", nbd.REQUEST, 0, command, turn, at % 8 * PAGE, PAGE) + data)

    def take(self, at):
        client = self.clients[at]
        part = client.s.recv(client.wanted - len(client.got))
        if not part:
            raise nbd.Gone(f"connection {at} has ended")
        client.got += part
        if len(client.got) < client.wanted:
            return
        self.longest = max(self.longest, time.monotonic() - client.since)
        magic, error, turn = struct.unpack(">IIQ", client.got[:16])
        is_right = (magic, error, turn) == (nbd.SIMPLE, 0, client.turn)
        if not is_right or (turn % 2 and client.got[16:] != client.page):
            raise AssertionError(f"connection {at}: a wrong reply to request {client.turn}")
        self.done += 1
        self.send(at)

    def run(self):
        try:
            with selectors.DefaultSelector() as ready:
                for at, client in enumerate(self.clients):
                    client.turn, client.page = 1, b""
                    ready.register(client.s, selectors.EVENT_READ, at)
                    self.send(at)
                while not self.is_over:
                    for key, _ in ready.select(0.1):
                        self.take(key.data)
        except (OSError, AssertionError, nbd.Gone) as error:
            self.wrong = error


def test_pause_of_an_upgrade():
    with recorded("bench/clients/run upgrade") as bars, tempfile.TemporaryDirectory(prefix="fairq-") as folder:
        pool, config, control = (os.path.join(folder, name) for name in ("pool", "fairq.toml", "c"))
        with open(pool, "wb") as out:
            out.truncate(TENANTS * MI)
        with open(config, "w", encoding="utf-8") as out:
            out.write(f'shards = 2\nlog = "warn"\ndevice = "file,path={pool}"\n')
            out.writelines(f'[[tenant]]\nname = "t{n}"\nsize = "1M"\n' for n in range(TENANTS))
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            tcp = free.getsockname()
        server = rig.Process([rig.fairq(), "serve", "--config", config, "--control", control, "--listen", f"unix:{folder}/s",
                              "--listen", f"tcp:127.0.0.1:{tcp[1]}"], folder)  # fmt: skip
        try:
            rig.until(lambda: rig.greets(f"{folder}/s"), 60, "the server greets")
            addresses = [f"{folder}/s", tcp]
            load = Load([nbd.Client(addresses[n % 2], f"t{n * 7 % TENANTS}") for n in range(CONNECTIONS)])
            load.thread.start()
            pauses = []
            for _ in range(5):
                rig.until(lambda: load.wrong or load.done > 1000, 60, "requests are answered")
                before, load.longest = load.longest, 0.0
                run(rig.fairq(), "ctl", "--control", control, "upgrade")
                done = load.done
                rig.until(lambda: load.wrong or load.done > done + 1000, 60, "requests are answered again")
                pauses.append(load.longest)
                load.longest = 0.0
            load.is_over = True
            load.thread.join()
            check(not load.wrong, f"{load.wrong!r}")
            status = json.loads(run(rig.fairq(), "ctl", "--control", control, "status", "--json").stdout)
            check(status["upgrades"] == 5 and status["connections"] == CONNECTIONS, f"after 5 upgrades: {status}")
            bars.add("clients/upgrade", f"the longest wait of {CONNECTIONS} clients in 5 upgrades", 1000 * max(pauses), most=1000 * BAR, unit="ms")
            said = ", ".join(f"{pause * 1000:.0f}" for pause in pauses)
            check(max(pauses) <= BAR, f"the longest waits were {said} ms; at most {BAR * 1000:.0f}")
            return f"longest waits of 5 upgrades {said} ms (before {before * 1000:.0f} ms), at most {BAR * 1000:.0f}"
        finally:
            server.kill()
