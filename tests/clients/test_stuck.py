"""A store that hangs: a file system that is frozen under load stops its own tenants, and no other."""

import contextlib
import json
import os
import signal
import tempfile

import nbd
import rig
from rig import MI, Skip, check, configured, need, run, serve, until

BLOCK = 4096


class Disk:
    """An ext4 file system of its own, which can be frozen: writes and other changes then wait."""

    def __init__(self, folder, name):
        self.mount = os.path.join(folder, name)
        self.frozen = False

    def freeze(self):
        run("fsfreeze", "--freeze", self.mount)
        self.frozen = True

    def thaw(self):
        if self.frozen:
            run("fsfreeze", "--unfreeze", self.mount)
            self.frozen = False


@contextlib.contextmanager
def disks(*names):
    """File systems on loop devices. They are always thawed at the end, since a process that waits for one cannot be killed."""
    need("mkfs.ext4", "fsfreeze", "losetup")
    with tempfile.TemporaryDirectory(prefix="fairq-stuck-") as folder, contextlib.ExitStack() as clean:
        made = []
        for name in names:
            image = os.path.join(folder, f"{name}.img")
            with open(image, "wb") as f:
                f.truncate(96 * MI)
            run("mkfs.ext4", "-q", "-m", "0", image)
            disk = Disk(folder, name)
            os.mkdir(disk.mount)
            mounted = run("mount", "-o", "loop", image, disk.mount, ok=False)
            if mounted.returncode:
                raise Skip(f"cannot mount anything here: {mounted.stderr.strip()}")
            clean.callback(run, "umount", "-l", disk.mount, ok=False)
            made.append(disk)
        yield folder, made


# The timeouts can be as short as possible, because delays of this test itself do not make them expire.
TIMEOUTS = {"answers": "500ms", "stuck": "300ms", "change": "200ms", "call": "500ms"}


@contextlib.contextmanager
def served(made, *tenants, args=(), config="", **timeouts):
    """A server with these tenants; the disks are thawed before it is ended."""
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as clean:
        control = os.path.join(folder, "ctl")
        flags = [flag for tenant in tenants for flag in ("--tenant", tenant)]
        path = configured(folder, config, **{**TIMEOUTS, **timeouts})
        server = clean.enter_context(serve("--config", path, *args, *flags, "--control", control))
        # Callbacks run in reverse order: the disks are thawed first.
        for disk in made:
            clean.callback(disk.thaw)
        yield server, control


def ctl(control, *words, ok=True, seconds=20):
    return run(rig.fairq(), "ctl", "--control", control, *words, timeout=seconds, ok=ok)


def status(control):
    return json.loads(ctl(control, "--json", "status").stdout)


def stuck(control):
    return [store for store in status(control)["stores"] if store["stuck"]]


def are_stuck(control):
    """The tenants of each store that is stuck."""
    return [store["tenants"] for store in stuck(control)]


def go_on(clients):
    """Each of these clients reads, writes, trims and flushes."""
    for number in range(100):
        at = number % 64 * BLOCK
        for client in clients:
            check(client.ask(nbd.WRITE, at, data=b"n" * BLOCK)[0] == 0, "a neighbour's write")
            check(client.ask(nbd.READ, at, BLOCK)[1] == b"n" * BLOCK, "a neighbour's data")
    for client in clients:
        check(client.ask(nbd.TRIM, 128 * BLOCK, 8 * BLOCK)[0] == 0, "a neighbour's TRIM")
        check(client.ask(nbd.FLUSH)[0] == 0, "a neighbour's flush")


def fill(server, name, byte, blocks):
    with contextlib.closing(nbd.Client(server.socket, name)) as client:
        for block in range(blocks):
            check(client.ask(nbd.WRITE, block * BLOCK, data=byte * BLOCK)[0] == 0, "it works")
        check(client.ask(nbd.FLUSH)[0] == 0, "it works")


def hang(disk, server, name, byte, blocks):
    """Freezes a disk and leaves as many requests on it as a client may have; returns the client, which gets no answer."""
    client = nbd.Client(server.socket, name)
    disk.freeze()
    for block in range(blocks):
        client.send(nbd.WRITE, block * BLOCK, data=byte * BLOCK)
    client.send(nbd.TRIM, 64 * BLOCK, 64 * BLOCK)
    client.send(nbd.FLUSH)
    return client


def begun(control, requests):
    """Waits until this many requests are on the device, because requests that are not yet on it are cancelled with their
    client or their server."""
    until(lambda: sum(store["on_device"] for store in status(control)["stores"]) >= requests, 10, "they are on the device")


def stuck_store(direct):
    with disks("hangs", "other") as (folder, made):
        disk, other = made
        paths = {"hangs": disk.mount, "b": other.mount, "c": folder}
        tenants = [f"{name}=16M,path={path}/{name}.disk,create" for name, path in paths.items()]
        device = ("--device", f"file,direct={direct}", "--shards", "2")
        with served(made, *tenants, args=device) as (server, control):
            fill(server, "hangs", b"1", 64)
            fill(server, "b", b"n", 64)
            fill(server, "c", b"n", 64)
            neighbours = [nbd.Client(server.socket, name) for name in "bc"]
            waiting = [hang(disk, server, "hangs", b"2", 64)]
            waiting += [nbd.Client(server.socket, "hangs") for _ in range(3)]
            for client in waiting[1:]:
                for block in range(64):
                    client.send(nbd.WRITE, block * BLOCK, data=b"2" * BLOCK)
                client.send(nbd.FLUSH)
            # The disk stays frozen: a neighbour that waited for it would get no answer.
            go_on(neighbours)
            with contextlib.closing(nbd.Client(server.socket, "b")) as new:
                check(new.ask(nbd.READ, 0, BLOCK)[1] == b"n" * BLOCK, "a new client of another store gets in")
            # The machine's own disk may be slow for a moment, and with it a neighbour's.
            until(lambda: are_stuck(control) == [["hangs"]], 30, "status says that this store is stuck, and no other")
            until(lambda: "has not answered" in server.said(), 30, "the log says so")
            check("stuck" in ctl(control, "status").stdout, ctl(control, "status").stdout)
            ctl(control, "policy", "sfqd")
            check(neighbours[0].ask(nbd.READ, 0, BLOCK)[0] == 0, "the policy changes without it")
            until(lambda: are_stuck(control) == [["hangs"]], 30, "it is still said to be stuck")
            # A file there cannot be opened: the caller gets an error, and nothing waits.
            refused = ctl(control, "add", f"late=1M,path={disk.mount}/late.disk,create", ok=False)
            check("does not answer" in refused.stderr, f"adding says {refused.stderr!r}")
            ctl(control, "remove", "hangs")
            check("hangs" not in ctl(control, "tenants").stdout, "it is removed")
            ctl(control, "add", f"d=1M,path={folder}/d.disk,create")
            check(nbd.Client(server.socket, "d").ask(nbd.READ, 0, BLOCK)[0] == 0, "tenants of other stores come")
            disk.thaw()
            until(lambda: not stuck(control), 30, "the store is said to answer again")
            ctl(control, "add", f"hangs=16M,path={disk.mount}/hangs.disk")
            with contextlib.closing(until(lambda: opened(server, "hangs"), 20, "it can be opened again")) as again:
                for block in range(64):
                    errno, data = again.ask(nbd.READ, block * BLOCK, BLOCK)
                    check(errno == 0 and data in (b"1" * BLOCK, b"2" * BLOCK), f"block {block}: foreign data")
            for neighbour in neighbours:
                check(neighbour.ask(nbd.READ, 0, BLOCK)[1] == b"n" * BLOCK, "a neighbour's data")


def opened(server, name):
    try:
        return nbd.Client(server.socket, name)
    except Exception:  # there is no such export until it has been prepared
        return None


def test_stuck_cached():
    """Through the page cache: a write waits in the kernel for as long as the file system is frozen."""
    stuck_store("off")


def test_stuck_direct():
    """With direct I/O: the device has the most requests that the server allows."""
    stuck_store("on")


def test_stuck_answers():
    """Requests to a store that hung are answered when it thaws, and their data are there."""
    with disks("hangs") as (folder, made):
        with served(made, f"a=16M,path={made[0].mount}/a,create", args=("--device", "file,direct=off")) as (server, _):
            fill(server, "a", b"1", 32)
            client = hang(made[0], server, "a", b"2", 32)
            made[0].thaw()
            for _ in range(34):
                check(client.receive()[1] == 0, "an answer")
            for block in range(32):
                check(client.ask(nbd.READ, block * BLOCK, BLOCK)[1] == b"2" * BLOCK, "what was acknowledged")


def test_stuck_end():
    """A server that gets SIGTERM ends although a store does not answer: in some seconds, and with an error."""
    with disks("hangs") as (folder, made), tempfile.TemporaryDirectory() as own:
        tenant = f"a=16M,path={made[0].mount}/a,create"
        control = os.path.join(own, "ctl")
        server = rig.Server(own, "--config", configured(own, **TIMEOUTS), "--device", "file,direct=on", "--tenant", tenant, "--control", control)
        try:
            fill(server, "a", b"1", 4)
            client = hang(made[0], server, "a", b"2", 4)
            begun(control, 4)
            server.child.terminate()
            until(lambda: "storage has not answered" in server.said(), 30, "it says what it leaves")
            client.close()
            made[0].thaw()
            check(server.child.wait(rig.PATIENCE) == 1, "it could not end in order")
        finally:
            made[0].thaw()
            server.kill()


def test_stuck_named_store():
    """Files on one device are one store, and others are another, unless the operator names stores."""
    with disks("one", "two") as (folder, made):
        one, two = (disk.mount for disk in made)
        tenants = [f"a=4M,path={one}/a,create", f"b=4M,path={one}/b,create", f"c=4M,path={two}/c,create,store=fast"]
        tenants.append(f"d=4M,path={folder}/d,create,store=fast")
        with served(made, *tenants, args=("--device", "file,direct=off")) as (server, control):
            of = {tenant["name"]: tenant["store"] for tenant in json.loads(ctl(control, "--json", "tenants").stdout)}
            check(of["a"] == of["b"] and of["c"] == of["d"] == "fast" and of["a"] != "fast", f"stores: {of}")
            check(len(status(control)["stores"]) == 2, "two stores")
            ctl(control, "add", f"e=4M,path={two}/e,create")
            of = {tenant["name"]: tenant["store"] for tenant in json.loads(ctl(control, "--json", "tenants").stdout)}
            check(of["e"] not in (of["a"], "fast"), f"a store comes with a tenant: {of}")
            check(nbd.Client(server.socket, "e").ask(nbd.WRITE, 0, data=b"e" * BLOCK)[0] == 0, "it is served")


def change_while_stuck(direct, policies):
    with disks("hangs", "other") as (folder, made):
        disk, other = made
        tenants = [f"{name}=16M,path={at.mount}/{name}.disk,create" for name, at in {"hangs": disk, "b": other}.items()]
        device = ("--device", f"file,direct={direct}", "--shards", "2", "--policy", policies[0])
        with served(made, *tenants, args=device) as (server, control):
            fill(server, "b", b"n", 64)
            for policy in policies[1:]:
                fill(server, "hangs", b"1", 64)
                neighbours = [nbd.Client(server.socket, "b") for _ in range(2)]
                client = hang(disk, server, "hangs", b"2", 64)
                ctl(control, "policy", policy)
                # The disk is frozen until the policy has changed.
                for neighbour in neighbours:
                    check(neighbour.ask(nbd.READ, 0, BLOCK)[1] == b"n" * BLOCK, "a neighbour's data")
                until(lambda: json.loads(ctl(control, "--json", "policy").stdout)["state"]["changing_s"] is None, 30, "it has changed")
                disk.thaw()
                for _ in range(66):
                    check(client.receive()[1] == 0, "an answer")
                for block in range(64):
                    check(client.ask(nbd.READ, block * BLOCK, BLOCK)[1] == b"2" * BLOCK, "what was acknowledged")
                for one in [client, *neighbours]:
                    one.close()


def test_stuck_while_the_policy_changes():
    """A change of policy does not wait for a store that has just stopped answering, and nothing is lost."""
    change_while_stuck("off", ["mqfq", "sfqd", "bfq", "kyber", "kyber-fair", "mqfq"])
    change_while_stuck("on", ["mqfq:slots=4", "nass+bfq", "mqfq"])


def test_stuck_range():
    """A tenant of a disk that hangs is removed, but its range stays reserved: the layout record is on that disk. Once the disk
    answers, the range is free, and no old request is carried out in it afterwards."""
    with disks("hangs") as (folder, made):
        args = ("--device", f"file,path={made[0].mount}/shared,size=32M,create,direct=on", "--policy", "mqfq:slots=32")
        with served(made, "a=32M", args=args) as (server, control):
            fill(server, "a", b"1", 32)
            client = hang(made[0], server, "a", b"2", 32)
            begun(control, 32)
            refused = ctl(control, "remove", "a", ok=False)
            check(refused.returncode == 1 and "stays reserved" in refused.stderr, f"removing says {refused.stderr!r}")
            check(json.loads(ctl(control, "--json", "tenants").stdout) == [], "it is removed")
            refused = ctl(control, "add", "late=32M,keep-data", ok=False)
            check(refused.returncode == 1 and "a (32M at 0)" in refused.stderr, f"adding says {refused.stderr!r}")
            made[0].thaw()
            client.close()
            until(lambda: not status(control)["layout"]["reserved"], 20, "its range is freed")
            ctl(control, "add", "b=32M,keep-data")
            with contextlib.closing(until(lambda: opened(server, "b"), 20, "it can be opened")) as client:
                check(client.ask(nbd.WRITE, 0, data=b"3" * BLOCK)[0] == 0, "it works")
                check(client.ask(nbd.FLUSH)[0] == 0, "it works")
                check(client.ask(nbd.READ, 0, BLOCK)[1] == b"3" * BLOCK, "nothing of the first one arrives later")


def test_range_of_unfinished_requests():
    """A range with unfinished requests of a removed tenant gets no other tenant: adding one fails in the end, and says why."""
    args = ("--device", "paced,size=32M,latency=6s,parallelism=64", "--policy", "none")
    with served([], "a=32M", args=args, range="1s") as (server, control):
        client = nbd.Client(server.socket, "a")
        for block in range(32):
            client.send(nbd.WRITE, block * BLOCK, data=b"2" * BLOCK)
        begun(control, 32)
        ctl(control, "remove", "a")
        refused = ctl(control, "add", "late=32M,keep-data", ok=False)
        check(refused.returncode == 1 and "late" in refused.stderr, f"adding says {refused.stderr!r}")
        check("in flight after 1 s" in server.said(), server.said()[-600:])
        check(json.loads(ctl(control, "--json", "tenants").stdout) == [], "it is removed again")
        check("not added: requests of removed tenants" in server.said(), server.said()[-600:])
        client.close()
        until(lambda: status(control)["stores"][0]["on_device"] == 0, 30, "they end")
        ctl(control, "add", "b=32M,keep-data")
        until(lambda: opened(server, "b"), 20, "it can be opened").close()


def test_stuck_reload():
    """A reload with a tenant on a file system that hangs changes nothing until the file is open, and then everything."""
    with disks("hangs") as (folder, made):
        def configuration(weight, *paths):
            tenants = [("a", f"{folder}/a", weight)] + [(f"late{number}", path, 100) for number, path in enumerate(paths)]
            text = '[device]\nkind = "file"\ndirect = "off"\n'
            for name, path, weight_ in tenants:
                text += f'[[tenant]]\nname = "{name}"\nsize = "1M"\ncreate = true\npath = "{path}"\nweight = {weight_}\n'
            return text

        def weights():
            return {tenant["name"]: tenant["weight"] for tenant in json.loads(ctl(control, "--json", "tenants").stdout)}

        with served(made, config=configuration(100)) as (server, control):
            made[0].freeze()
            configured(os.path.dirname(control), configuration(300, f"{folder}/quick", f"{made[0].mount}/late"), **TIMEOUTS)
            refused = ctl(control, "config", "reload", ok=False)
            check("does not answer" in refused.stderr, f"reloading says {refused.stderr!r}")
            check(weights() == {"a": 100}, f"nothing has changed: {weights()}")
            server.child.send_signal(signal.SIGHUP)
            # The server tries again each second.
            asked = status(control)["uptime_s"]
            until(lambda: status(control)["uptime_s"] > asked + 1.5, 30, "a second passes")
            check(weights() == {"a": 100}, f"nothing has changed: {weights()}")
            made[0].thaw()
            until(lambda: weights() == {"a": 300, "late0": 100, "late1": 100}, 30, "SIGHUP has what it asked for")
