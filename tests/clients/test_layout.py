"""Tenants keep their own bytes, whatever happens to the configuration, the pool, the server and the list of tenants.

A model knows the owner of each MiB of the pool and the data that the owner has written there. Random steps change configuration,
tenants and pool, stop or kill the server and start it again. After each step every tenant that is served must read the data
that it has written and flushed, or zeroes, and no range may have moved or overlap another. $FAIRQ_MODEL_STEPS steps (40), from
the seed $FAIRQ_MODEL_SEED."""

import json
import os
import random
import signal
import socket
import struct
import subprocess

import nbd
import rig
from rig import MI, check

PAGE = 4096
NAMES = [f"t{n}" for n in range(7)]


class Range:
    """A name's range: its offset (unknown until the server reports it), its size in MiB, and the page of each MiB that was written."""

    def __init__(self, size):
        self.offset, self.size, self.pages = None, size, {}

    def cut(self, size):
        self.pages = {mib: page for mib, page in self.pages.items() if mib < size}
        self.size = size


class World:
    def __init__(self, folder, seed):
        self.random, self.folder, self.stamp = random.Random(seed), folder, 0
        self.pool, self.config = os.path.join(folder, "pool"), os.path.join(folder, "fairq.toml")
        self.control = os.path.join(folder, "c")
        self.mib, self.file, self.log = 24, [("t0", 4), ("t1", None)], []
        with open(self.pool, "wb") as pool:
            pool.truncate(self.mib * MI)
        self.held, self.served, self.server = {}, set(), None

    def note(self, *words):
        self.log.append(" ".join(map(str, words)))

    # The server.

    def write_config(self):
        tables = [f'[[tenant]]\nname = "{name}"\n' + (f'size = "{size}M"\n' if size else "") for name, size in self.file]
        with open(self.config, "w", encoding="utf-8") as out:
            out.write(f'shards = 1\nlog = "warn"\ndevice = "file,path={self.pool}"\n' + "".join(tables))

    def start(self):
        """Starts the server; false if it refuses the configuration, which must then have changed nothing."""
        self.write_config()
        process = rig.Process([rig.fairq(), "serve", "--config", self.config, "--control", self.control,
                               "--listen", f"unix:{self.folder}/s"], self.folder)  # fmt: skip
        self.server = process

        def settled():
            return not process.alive() or self.call_or_none("status")

        rig.until(settled, 60, "the server starts or refuses to")
        if process.alive():
            self.served = {name for name, _ in self.file}
            return True
        status = process.child.wait()
        check(status == 2, f"a refused start ended with {status} instead of 2: {process.said()[-500:]}")
        self.note("refused:", process.said().strip()[-300:])
        self.server = None
        return False

    def stop(self, how):
        self.note("stop", how.name)
        self.server.child.send_signal(how)
        self.server.child.wait(30)
        self.server, self.served = None, set()

    def call_or_none(self, method, **params):
        try:
            return self.call(method, **params)
        except (OSError, ValueError):
            return None

    def call(self, method, **params):
        """The result of a method, or its error as text."""
        with socket.socket(socket.AF_UNIX) as s:
            s.settimeout(60)
            s.connect(self.control)
            s.sendall(json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).encode() + b"\n")
            answer = json.loads(s.makefile().readline())
        return answer.get("result", (answer.get("error") or {}).get("message"))

    def tenants(self):
        """The tenants by name, when none is being prepared or resized."""

        def ready():
            tenants = self.call("tenants")
            busy = any(t["preparing"] or t["resizing"] for t in tenants)
            return None if busy else ({t["name"]: t for t in tenants},)

        return rig.until(ready, 60, "all tenants can be opened")[0]

    # Steps.

    def free_name(self):
        return self.random.choice([n for n in NAMES if n not in self.served] or NAMES)

    def some_name(self):
        return self.random.choice(sorted(self.served) or NAMES)

    def write(self):
        if not self.served:
            return
        name = self.some_name()
        held = self.held[name]
        client = nbd.Client(f"{self.folder}/s", name)
        for mib in self.random.sample(range(held.size), min(3, held.size)):
            self.stamp += 1
            page = struct.pack("<Q", self.stamp) * (PAGE // 8)
            check(client.ask(nbd.WRITE, mib * MI, data=page)[0] == 0, f"{name} writes at {mib}M")
            held.pages[mib] = page
        check(client.ask(nbd.FLUSH)[0] == 0, f"{name} flushes")
        client.s.close()

    def add(self):
        name, size = self.free_name(), self.random.randint(1, 8)
        said = self.call("add", tenant=f"{name}={size}M")
        self.note("add", name, size, said)
        if isinstance(said, dict):
            self.served.add(name)
            self.held.setdefault(name, Range(size))

    def remove(self):
        name, keep = self.some_name(), self.random.random() < 0.5
        said = self.call("remove", tenant=name, keep=keep)
        self.note("remove", name, keep, said)
        if isinstance(said, dict):
            self.served.discard(name)
            if not keep:
                self.held.pop(name)

    def rename(self):
        old, new = self.some_name(), self.free_name()
        said = self.call("rename", tenant=old, name=new)
        self.note("rename", old, new, said)
        if isinstance(said, dict):
            self.held[new] = self.held.pop(old)
            self.served = self.served - {old} | {new}
            self.file = [(new if name == old else name, size) for name, size in self.file if name != new]

    def resize(self):
        name, size = self.some_name(), self.random.randint(1, 12)
        said = self.call("resize", tenant=name, size=f"{size}M", discard=True)
        self.note("resize", name, size, said)
        if isinstance(said, dict):
            self.held[name].cut(size)

    def edit(self):
        """The operator edits the file: tables are removed, added and reordered, and some sizes are written out."""
        for _ in range(self.random.randint(1, 3)):
            kind = self.random.randrange(4)
            if kind == 0 and len(self.file) > 1:
                self.file.pop(self.random.randrange(len(self.file)))
            elif kind == 1:
                absent = [n for n in NAMES if n not in dict(self.file)]
                if absent:
                    size = self.random.choice([None, 1, 3, 5])
                    self.file.insert(self.random.randint(0, len(self.file)), (self.random.choice(absent), size))
            elif kind == 2:
                self.random.shuffle(self.file)
            else:
                known = {name: held.size for name, held in self.held.items()}
                self.file = [(name, known.get(name, size)) for name, size in self.file]
        self.write_config()

    def reload(self):
        self.edit()
        gone = sorted(self.served - set(dict(self.file)))
        remove = [name for name in gone if self.random.random() < 0.3]
        said = self.call("config.reload", remove=remove)
        self.note("reload", self.file, remove, said)
        if isinstance(said, dict):
            for name in remove:
                self.held.pop(name)
            now = set(self.tenants())
            check(self.served - set(remove) <= now, f"a reload has removed {self.served - set(remove) - now}")
            check(now <= self.served | set(dict(self.file)), f"a reload has added {now}")
            self.served = now

    def grow(self):
        if self.mib < 64:
            self.mib += self.random.randint(1, 6)
            self.note("grow", self.mib)
            os.truncate(self.pool, self.mib * MI)

    def upgrade(self):
        """The next program, which is the same one, takes over; a client's write arrives in two halves, before and after."""
        name = self.some_name()
        if not self.served or self.held[name].size == 0:
            return
        client = nbd.Client(f"{self.folder}/s", name)
        self.stamp += 1
        page = struct.pack("<Q", self.stamp) * (PAGE // 8)
        client.s.sendall(struct.pack(">IHHQQI", nbd.REQUEST, 0, nbd.WRITE, 1, 0, PAGE) + page[:100])
        said = self.call("upgrade")
        self.note("upgrade", said)
        check(isinstance(said, dict), f"no upgrade: {said}")
        client.lengths[1] = (nbd.WRITE, PAGE)
        client.s.sendall(page[100:])
        check(client.receive()[1] == 0, f"{name} writes over an upgrade")
        self.held[name].pages[0] = page
        client.s.close()

    def restart(self):
        self.stop(self.random.choice([signal.SIGTERM, signal.SIGKILL]))
        if self.random.random() < 0.3:
            self.grow()
        if self.random.random() < 0.6:
            self.edit()
        reserved = sorted(set(self.held) - set(dict(self.file)))
        if reserved and self.random.random() < 0.5:
            self.without_a_server(self.random.choice(reserved))
        self.note("start", self.file)
        if not self.start():
            # As the message says: each tenant with its present size, and no tenant for which there
            # is no room.
            known = [name for name, _ in self.file if name in self.held] or sorted(self.held)
            self.file = [(name, self.held[name].size) for name in known] or [("t0", 1)]
            check(self.start(), f"the server does not start: {self.log[-1]}")

    def without_a_server(self, name, what=None):
        what = what or self.random.choice(["forget", "rename"])
        absent = [n for n in NAMES if n not in self.held and n not in dict(self.file)]
        if what == "rename" and not absent:
            return
        words = [name] if what == "forget" else [name, self.random.choice(absent)]
        rig.run(rig.fairq(), "layout", what, self.pool, *words)
        self.note("layout", what, *words)
        held = self.held.pop(name)
        if what == "rename":
            self.held[words[1]] = held

    # The law.

    def check(self):
        tenants, ranges = self.tenants(), []
        check(set(tenants) == self.served, f"served are {sorted(tenants)}, not {sorted(self.served)}")
        for name, tenant in tenants.items():
            held = self.held.setdefault(name, Range(tenant["size"] // MI))
            if held.offset is None:
                held.offset = tenant["offset"]
            where = (tenant["offset"], tenant["size"] // MI)
            check(where == (held.offset, held.size), f"{name} is at {where}, not {(held.offset, held.size)}")
            client = nbd.Client(f"{self.folder}/s", name)
            for mib in range(held.size):
                error, page = client.ask(nbd.READ, mib * MI, PAGE)
                check(error == 0, f"{name} reads at {mib}M: error {error}")
                wanted = held.pages.get(mib, bytes(PAGE))
                check(page == wanted, f"{name} at {mib}M reads {page[:8].hex()}, not {wanted[:8].hex()}")
            client.s.close()
        reserved = self.call("status")["layout"]["reserved"]
        for one in reserved:
            held = self.held.get(one["name"])
            check(held, f"{one['name']} is reserved and was given up")
            held.offset = one["offset"] if held.offset is None else held.offset
            where = (one["offset"], one["size"] // MI)
            check(where == (held.offset, held.size), f"{one['name']}, reserved, is at {where}")
        names = set(tenants) | {one["name"] for one in reserved}
        check(names == set(self.held), f"the record has {sorted(names)}, not {sorted(self.held)}")
        ranges = sorted((held.offset, held.offset + held.size * MI, name) for name, held in self.held.items())
        for one, next_ in zip(ranges, ranges[1:]):
            check(one[1] <= next_[0], f"{one} and {next_} overlap")
        check(ranges[-1][1] <= self.mib * MI if ranges else True, f"{ranges[-1:]} is beyond the pool's {self.mib}M")


def test_no_tenant_reads_what_is_not_its_own():
    steps, seed = int(os.environ.get("FAIRQ_MODEL_STEPS", 40)), int(os.environ.get("FAIRQ_MODEL_SEED", 1))
    with rig.tempfile.TemporaryDirectory(prefix="fairq-") as folder:
        world = World(folder, seed)
        kinds = [world.write] * 6 + [world.add] * 3 + [world.remove] * 2 + [world.rename, world.grow]
        kinds += [world.resize] * 3 + [world.reload] * 3 + [world.restart] * 3 + [world.upgrade] * 2
        try:
            check(world.start(), "the first start")
            world.check()
            for _ in range(steps):
                world.random.choice(kinds)()
                world.check()
            world.stop(signal.SIGTERM)
        except (rig.Failed, AssertionError, KeyError, OSError, nbd.Refused, nbd.Gone, subprocess.SubprocessError) as error:
            last = "\n  ".join(world.log[-12:])
            raise rig.Failed(f"seed {seed}: {error!r}; the last steps:\n  {last}") from error
        finally:
            if world.server:
                world.server.kill()
    return f"{steps} steps"
