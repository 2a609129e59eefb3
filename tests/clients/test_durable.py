"""Acknowledged data survive kill -9 at any moment, and SIGTERM under load."""

import fcntl
import os
import random
import signal
import struct
import tempfile
import threading
import time

import nbd
from rig import PATIENCE, Failed, Server, check, until

BLOCK = 4096
BLOCKS = 2048
ESHUTDOWN = 108
ROUNDS = int(os.environ.get("FAIRQ_KILL_ROUNDS", "6"))


def content(index, generation):
    """A block whose content shows its number, its generation, and that it is whole."""
    return random.Random(index << 32 | generation).randbytes(BLOCK - 16) + struct.pack(">QQ", index, generation)


class Writer(threading.Thread):
    """Keeps writes in flight on a connection of its own until the server dies; records the promises received by then.

    A write with FUA counts as promised when its reply arrives. The reply to a flush promises every write whose reply
    had arrived before the flush was sent. `promised` holds the newest promised generation of a block; `sent` the newest
    sent."""

    def __init__(self, address, export, mine, history, seed):
        super().__init__(daemon=True)
        self.mine, self.history, self.random = mine, history, random.Random(seed)
        self.client = nbd.Client(address, export, structured=seed % 2 == 1)
        self.replies, self.promises, self.error = 0, 0, None
        self.answered = {}

    def run(self):
        try:
            self.load()
        except nbd.Gone:
            pass
        except Exception as e:  # shown by the test; a thread cannot fail it
            self.error = e

    def load(self):
        sent, promised = self.history
        flying, answered = {}, self.answered
        while True:
            while len(flying) < 24:
                busy = {index for kind, index, _ in flying.values() if kind != "flush"}
                draw = self.random.random()
                if draw < 0.06:
                    flying[self.client.send(nbd.FLUSH)] = ("flush", 0, dict(answered))
                    continue
                index = self.random.choice(self.mine)
                if index in busy:
                    continue  # two concurrent writes of a block have no defined order
                kind = "fua" if draw < 0.3 else "write"
                sent[index] = generation = sent.get(index, 0) + 1
                cookie = self.client.send(
                    nbd.WRITE, index * BLOCK, data=content(index, generation), flags=nbd.FUA if kind == "fua" else 0
                )
                flying[cookie] = (kind, index, generation)
            cookie, error, _ = self.client.receive()
            kind, index, what = flying.pop(cookie)
            if error:
                raise Failed(f"{kind} of block {index} was answered with error {error}")
            self.replies += 1
            if kind == "flush":
                for block, generation in what.items():
                    promised[block] = max(promised.get(block, 0), generation)
                self.promises += len(what)
            else:
                answered[index] = what
                if kind == "fua":
                    promised[index] = max(promised.get(index, 0), what)
                    self.promises += 1


def verify(address, export, history, where):
    """Every block holds a complete write of that block, not older than the newest promised one."""
    sent, promised = history
    client = nbd.Client(address, export)
    for index in sorted(sent):
        error, data = client.ask(nbd.READ, index * BLOCK, BLOCK)
        check(error == 0, f"{where}: reading block {index}: error {error}")
        at, generation = struct.unpack(">QQ", data[-16:])
        floor = promised.get(index, 0)
        if generation == 0 and at == 0 and not any(data):
            check(floor == 0, f"{where}: block {index} is empty, generation {floor} was promised")
            continue
        check(at == index, f"{where}: block {index} holds block {at}")
        check(floor <= generation <= sent[index],
              f"{where}: block {index} holds generation {generation}; promised {floor}, sent {sent[index]}")  # fmt: skip
        check(data == content(index, generation), f"{where}: block {index}, generation {generation}, is torn")
    client.close()


def released(path):
    """Waits until the kernel has closed the file of a killed server, which it does after the process has gone."""

    def is_free():
        with open(path, "rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
            return True

    until(is_free, 20, f"{path} is locked no more")


def test_kill():
    """The server is killed at random moments under load on four connections of two tenants, and started again; all is verified."""
    draw = random.Random(7)
    replies = promises = 0
    with tempfile.TemporaryDirectory(prefix="fairq-") as folder:
        args = ("--device", f"file,path={folder}/pool.img,size=32M,create", "--tenant", "a=16M", "--tenant", "b=16M,weight=300")
        history = {"a": ({}, {}), "b": ({}, {})}
        for turn in range(ROUNDS):
            server = Server(folder, *args)
            try:
                writers = [
                    Writer(server.socket, name, range(half, BLOCKS, 2), history[name], 4 * turn + 2 * half + (name == "a"))
                    for name in history
                    for half in (0, 1)
                ]
                for w in writers:
                    w.start()
                # The moment of the kill is a random number of replies, not of seconds, so that the server is also
                # killed under load on a slow machine.
                moment = draw.randrange(1, 1500)
                until(lambda: sum(w.replies for w in writers) >= moment or any(w.error for w in writers), 60, "load")
                server.child.send_signal(signal.SIGKILL)
                for w in writers:
                    w.join(PATIENCE)
                    check(not w.is_alive(), "a writer did not see the server die")
                    check(w.error is None, f"round {turn}: {w.error}")
                replies += sum(w.replies for w in writers)
                promises += sum(w.promises for w in writers)
            finally:
                server.kill()
            released(f"{folder}/pool.img")
            server = Server(folder, *args)
            try:
                for name in history:
                    verify(server.socket, name, history[name], f"round {turn}, tenant {name}")
                if turn % 2:
                    check(server.terminate() == 0, f"SIGTERM: {server.said()[-400:]}")
            finally:
                server.kill()
            released(f"{folder}/pool.img")
    check(promises > ROUNDS, f"only {promises} promises were made: the test shows nothing")
    return f"{ROUNDS} rounds, {replies} replies, {promises} promises kept"


def test_sigterm():
    """Requests in flight on a slow device at SIGTERM are all finished, and the server ends with 0."""
    with tempfile.TemporaryDirectory(prefix="fairq-") as folder:
        server = Server(folder, "--device", "paced,size=64M,iops=100,parallelism=4", "--tenant", "a=32M",
                        "--tenant", "b=32M")  # fmt: skip
        try:
            clients = [nbd.Client(server.socket, name) for name in ("a", "b")]
            for c in clients:
                cookies = {c.send(nbd.WRITE, i * BLOCK, data=content(i, 1)) for i in range(32)}
                cookies.add(c.send(nbd.READ, 0, BLOCK))
                c.wanted = cookies
            # The first reply shows that requests were read; the others were sent before it and are
            # in the same socket.
            for c in clients:
                cookie, error, _ = c.receive()
                check(error == 0, f"error {error}")
                c.wanted.discard(cookie)
            idle = nbd.Client(server.socket, "a")
            server.child.send_signal(signal.SIGTERM)
            began = time.monotonic()
            for c in clients:
                try:
                    while c.wanted:
                        cookie, error, _ = c.receive()
                        check(error == 0, f"a request in flight at SIGTERM was answered with {error}")
                        c.wanted.discard(cookie)
                except nbd.Gone:
                    raise Failed(f"{len(c.wanted)} of 33 requests in flight at SIGTERM got no answer") from None
            status = server.child.wait(PATIENCE)
            check(status == 0, f"it ended with {status}: {server.said()[-600:]}")
            check(not os.path.exists(server.socket), "its socket is still there")
            idle.s.close()
            return f"66 requests finished, ended {time.monotonic() - began:.1f} s after SIGTERM"
        finally:
            server.kill()


def test_sigterm_under_load():
    """SIGTERM and SIGINT while clients keep sending: the server ends with 0, and all acknowledged writes are there."""
    with tempfile.TemporaryDirectory(prefix="fairq-") as folder:
        args = ("--device", f"file,path={folder}/pool.img,size=32M,create", "--tenant", "a=16M", "--tenant", "b=16M")
        history = {"a": ({}, {}), "b": ({}, {})}
        for turn, number in enumerate((signal.SIGTERM, signal.SIGINT)):
            server = Server(folder, *args)
            try:
                writers = [Writer(server.socket, n, range(BLOCKS), history[n], turn) for n in history]
                for w in writers:
                    w.start()
                until(lambda: all(w.replies > 300 for w in writers), 60, "load")
                server.child.send_signal(number)
                check(server.child.wait(PATIENCE) == 0, f"{number.name}: {server.child.returncode}, {server.said()[-400:]}")
                for w, (_, promised) in zip(writers, history.values()):
                    w.join(PATIENCE)
                    check(w.error is None or f"error {ESHUTDOWN}" in str(w.error), f"{number.name}: {w.error}")
                    promised.update(w.answered)
            finally:
                server.kill()
            server = Server(folder, *args)
            try:
                for name in history:
                    verify(server.socket, name, history[name], f"after {number.name}, tenant {name}")
            finally:
                server.kill()
            released(f"{folder}/pool.img")
