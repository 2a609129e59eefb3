"""One tenant behaves badly, one is busy, and one reads 512 bytes now and then: the scheduler gives each tenant its
share (`law`), memory stays bounded, and no memory or descriptor leaks. `bench/clients/run beside` measures their
rates."""

import contextlib
import json
import os
import select
import socket
import struct
import threading

import guest as vm
import law
import rig
from nbd import CACHE, FLUSH, NO_HOLE, READ, REQUEST, STATUS, TRIM, WRITE, ZEROES, Client, Gone, Refused
from rig import MI, PACED, check

# All tenants have one weight, and a request costs 4 KiB at least.
EQUAL = dict.fromkeys(("good", "bad", "small"), 100)
POLICY = f"{law.POLICY},least-cost=4k"
# Bytes of the staged requests of clients that vanish while others of their tenant stay: the tenant
# gets them back later.
CANCELLED = 3 * MI


class Operated:
    """A server with tenants of one weight, and its control socket."""

    def __init__(self, server, control):
        self.server, self.control = server, control

    def ask(self, *words):
        return json.loads(rig.run(rig.fairq(), "ctl", "--control", self.control, "--json", *words).stdout)

    def tenants(self):
        return {tenant["name"]: tenant for tenant in self.ask("tenants")}

    def descriptors(self):
        return len(os.listdir(f"/proc/{self.server.child.pid}/fd"))

    def resident(self):
        """Resident memory in bytes."""
        with open(f"/proc/{self.server.child.pid}/status", encoding="ascii") as lines:
            return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmRSS:"))

    def connect(self, export="bad", **more):
        return Client(self.server.socket, export, **more)

    def small(self):
        return self.connect("small")

    def attach(self, socket=0, tenant="bad"):
        """A guest at one of a tenant's two sockets."""
        return vm.Guest(os.path.join(os.path.dirname(self.control), f"guests-{socket}", f"{tenant}.sock"))

    def is_quiet(self):
        status = self.ask("status")
        idle = all(tenant["in_flight"] == 0 for tenant in self.tenants().values())
        return idle and status["connections"] == 0 and status["policy_state"]["slots_in_use"] == 0

    @contextlib.contextmanager
    def good_load(self, seconds, depth=128):
        """Runs the good tenant's load in another process, with so many requests in flight that its queue does not run empty on
        a busy machine."""
        load = ["bench", "--connect", self.server.uri("good"), "--tenant", f"good=depth:{depth}", "--json"]
        child = rig.start([rig.fairq(), *load, "--seconds", f"{seconds}s", "--warmup", "0s"])
        try:
            rig.until(lambda: self.tenants()["good"]["in_flight"], 20, "the good tenant is at work")
            yield
        finally:
            child.kill()
            child.communicate()

    def share(self, enough=2 * MI, **more):
        """Checks that all tenants have their shares until `enough` was issued to two tenants that both wait, and that the small
        tenant's requests are answered meanwhile."""
        small, before = self.small(), self.tenants()["good"]["reads"]
        over = threading.Event()

        def now_and_then():
            while not over.is_set():
                check(small.ask(READ, 0, length=512)[0] == 0, "a small request failed")

        asking = threading.Thread(target=now_and_then)
        asking.start()
        try:
            # A flush is charged for the time that it takes.
            law.shares(self.control, EQUAL, enough, **{"cost": self.cost, "at_least": ("bad",), **more})
        finally:
            over.set()
            asking.join()
        small.close()
        rig.until(lambda: self.tenants()["good"]["reads"] > before, 60, "the good tenant is served")

    @staticmethod
    def cost(row):
        """The policy's charge for a row of the recording. On these devices zeroing and discarding only change the map
        of the file, so they cost little."""
        return max(4096, int(row["bytes"]) // (256 if row["op"] in ("discard", "write-zeroes") else 1))


class OperatedGuests(Operated):
    """The same; the small tenant is a guest."""

    def small(self):
        return self.attach(tenant="small")


@contextlib.contextmanager
def operated(*args, device=PACED, kind=Operated):
    with rig.tempfile.TemporaryDirectory(prefix="fairq-") as folder:
        control = os.path.join(folder, "control")
        if kind is OperatedGuests:
            for number in range(2):
                os.mkdir(os.path.join(folder, f"guests-{number}"))
                args += ("--listen", f"vhost-user:{folder}/guests-{number}")
        tenants = ["--tenant", "good=64M", "--tenant", "bad=64M", "--tenant", "small=1M"]
        with rig.serve("--device", device, *tenants, "--control", control, *args) as server:
            yield kind(server, control)


class Many:
    """Threads that repeat the same work until stopped. A thread whose connection is refused, since its tenant has the most allowed, tries again."""

    def __init__(self, count, work):
        self.stop = threading.Event()
        self.threads = [threading.Thread(target=self._run, args=(work, index)) for index in range(count)]

    def _run(self, work, index):
        while not self.stop.is_set():
            with contextlib.suppress(Gone, Refused, vm.Gone, OSError):
                work(self.stop, index)

    def __enter__(self):
        for thread in self.threads:
            thread.start()

    def __exit__(self, *_):
        self.stop.set()
        for thread in self.threads:
            thread.join(rig.PATIENCE)


def slow_reader(rigged):
    """Sends many reads and takes no reply."""

    def work(stop, _):
        client = rigged.connect(timeout=5)
        for nth in range(60):
            client.send(READ, nth * MI // 2, MI // 2)
        stop.wait(30)
        client.s.close()

    return Many(2, work)


def half_open(rigged):
    """Sends nothing, or half of a client's first message."""

    def work(stop, index):
        sockets = []
        for _ in range(60):
            s = socket.socket(socket.AF_UNIX)
            s.settimeout(5)
            s.connect(rigged.server.socket)
            if index % 2:
                s.sendall(b"\0\0\0\3IHAVEOPT\0\0")
            sockets.append(s)
        stop.wait(30)
        for s in sockets:
            s.close()

    return Many(4, work)


def many_connections(rigged):
    """64 connections against one."""

    def work(stop, index):
        client = rigged.connect(timeout=20)
        for nth in range(4):
            client.send(READ, (index * 4 + nth) * 4096, 4096)
        while not stop.is_set():
            if select.select([client.s], [], [], 0.1)[0]:
                client.receive()
                client.send(READ, index * 4096, 4096)
        client.s.close()

    return Many(64, work)


def large_requests(rigged):
    """Requests of 32 MiB."""

    def work(stop, _):
        client = rigged.connect(timeout=60)
        for _ in range(2):
            client.send(READ, 0, 32 * MI)
        while not stop.is_set():
            if select.select([client.s], [], [], 0.1)[0] and not client.s.recv(MI):
                return
        client.s.close()

    return Many(2, work)


def killed_in_a_write(rigged):
    """Vanishes in the middle of a write's payload."""

    def work(stop, index):
        client = rigged.connect(timeout=10)
        client.s.sendall(struct.pack(">IHHQQI", REQUEST, 0, WRITE, 1, index * MI, MI) + bytes(MI // 3))
        client.s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.s.close()
        stop.wait(0.01)

    return Many(4, work)


def handshakes(rigged):
    """Makes one handshake after the other, and does nothing else."""

    def work(stop, index):
        client = Client(rigged.server.socket, "bad" if index % 2 else None, timeout=10)
        client.s.close()
        stop.wait(0.001)

    return Many(4, work)


EVENTS = [slow_reader, half_open, many_connections, large_requests, killed_in_a_write, handshakes]


def test_hostile_clients_hurt_nobody_and_leave_nothing_behind():
    with operated("--policy", POLICY, "--shards", "1") as rigged:
        rigged.connect("good").close()
        rig.until(rigged.is_quiet, 20, "nothing is in flight")
        descriptors, resident = rigged.descriptors(), rigged.resident()
        with rigged.good_load(300):
            for event in EVENTS:
                with event(rigged):
                    if event not in (half_open, handshakes):
                        rig.until(lambda: rigged.tenants()["bad"]["in_flight"], 60, "the bad one is at work")
                    rigged.share(credit=CANCELLED if event == killed_in_a_write else 0)
                    bound = resident + 90 * 40 * MI
                    check(rigged.resident() < bound, f"{event.__name__}: {rigged.resident() >> 20} MiB in use")
                # Staged requests of a client that has gone are cancelled, and those on the device end.
                rig.until(lambda: not rigged.tenants()["bad"]["in_flight"], 60, f"what {event.__name__} left is done")
        leaves_nothing(rigged, descriptors, resident)


def leaves_nothing(rigged, descriptors, resident):
    rig.until(rigged.is_quiet, 60, "everything is given back")
    rig.until(lambda: rigged.descriptors() <= descriptors, 60, f"no more than {descriptors} descriptors are open")
    grown = rigged.resident() - resident
    check(grown < 96 * MI, f"{grown >> 20} MiB more in use than before")


def guest_floods(rigged):
    """Keeps all its places busy, with the largest requests on one socket and with flushes on the other."""

    def work(stop, index):
        guest = rigged.attach(index)

        def submit():
            guest.submit(*((vm.FLUSH,) if index else (vm.READ, 0, b"", vm.DATA)))

        while guest.free:
            submit()
        while not stop.is_set():
            select.select([guest.call], [], [], 0.1)
            with contextlib.suppress(BlockingIOError):
                os.eventfd_read(guest.call)
            guest.poll()
            for number in list(guest.taken):
                guest.taken.pop(number)
                guest.free.append(number)
                submit()
        guest.close()

    return Many(2, work)


def guest_scribbles(rigged):
    """Requests, and then random rings."""

    def work(stop, index):
        for seed in range(1000):
            if stop.is_set():
                return
            guest = rigged.attach(index)
            for number in range(8):
                guest.submit(vm.READ, number * vm.DATA, length=vm.DATA)
            guest.scribble(seed)
            stop.wait(0.01)
            guest.close()

    return Many(2, work)


def guest_vanishes(rigged):
    """Writes, and disappears; or takes its memory away first."""

    def work(stop, index):
        guest = rigged.attach(index)
        while guest.free:
            guest.submit(vm.WRITE, index * 32 * MI, bytes(vm.DATA))
        if index:
            os.ftruncate(guest.memory, vm.REQUESTS)
            stop.wait(0.05)
            os.ftruncate(guest.memory, vm.MEMORY)
        guest.close()

    return Many(2, work)


def guest_half_open(rigged):
    """Connects many times, and says nothing, or half of a message."""

    def work(stop, index):
        sockets = []
        for _ in range(30):
            s = socket.socket(socket.AF_UNIX)
            s.settimeout(5)
            s.connect(os.path.join(os.path.dirname(rigged.control), f"guests-{index}", "bad.sock"))
            if index:
                s.sendall(struct.pack("=II", vm.SET_OWNER, 1))
            sockets.append(s)
        stop.wait(1)
        for s in sockets:
            s.close()

    return Many(2, work)


def test_hostile_guests_hurt_nobody_and_leave_nothing_behind():
    """The same with guests: NBD's clients and another guest have their shares beside them."""
    with operated("--policy", POLICY, "--shards", "1", kind=OperatedGuests) as rigged:
        rigged.connect("good").close()
        rigged.small().close()
        rig.until(rigged.is_quiet, 20, "nothing is in flight")
        descriptors, resident = rigged.descriptors(), rigged.resident()
        with rigged.good_load(300):
            for event in (guest_floods, guest_scribbles, guest_vanishes, guest_half_open):
                with event(rigged):
                    if event is not guest_half_open:
                        rig.until(lambda: rigged.tenants()["bad"]["in_flight"], 60, "the bad one is at work")
                    rigged.share(credit=CANCELLED if event in (guest_scribbles, guest_vanishes) else 0)
                rig.until(lambda: not rigged.tenants()["bad"]["in_flight"], 60, f"what {event.__name__} left is done")
            check(rigged.tenants()["good"]["errors"] == 0, "an error reached a tenant that did nothing wrong")
        leaves_nothing(rigged, descriptors, resident)


def all_at_once(rigged):
    """All of these events at once."""

    class All:
        def __enter__(self):
            self.stack = contextlib.ExitStack()
            for event in (*EVENTS, questions, zeroes):
                self.stack.enter_context(event(rigged))
            for header in FLOODS.values():
                self.stack.enter_context(pour(rigged, header))

        def __exit__(self, *_):
            self.stack.close()

    return All()


def test_all_hostile_clients_at_once():
    """The others have their shares and no error, and memory and descriptors are released."""
    with operated("--policy", POLICY, "--shards", "1") as rigged:
        rigged.connect("good").close()
        rig.until(rigged.is_quiet, 20, "nothing is in flight")
        descriptors, resident = rigged.descriptors(), rigged.resident()
        with rigged.good_load(300):
            with all_at_once(rigged):
                rig.until(lambda: rigged.tenants()["bad"]["in_flight"], 60, "they are at work")
                rigged.share(4 * MI, credit=CANCELLED)
            check(rigged.tenants()["good"]["errors"] == 0, "an error reached a tenant that did nothing wrong")
        leaves_nothing(rigged, descriptors, resident)


def flood(rigged, command, flags=0, **more):
    """One small request for the whole export, 128 times at once."""

    def work(stop, _):
        client = rigged.connect(timeout=60, **more)
        for _ in range(128):
            client.send(command, 0, 64 * MI, flags=flags)
        while not stop.is_set():
            # An answer may take half a minute beside others; the end of the test must not wait for
            # it.
            if select.select([client.s], [], [], 0.1)[0]:
                client.receive()
                client.send(command, 0, 64 * MI, flags=flags)
        client.s.close()

    return Many(1, work)


def zeroes(rigged):
    """Zeroes the export."""
    return flood(rigged, ZEROES, flags=NO_HOLE)


def questions(rigged):
    """Requests the map of the export's holes."""
    return flood(rigged, STATUS, context="base:allocation")


def test_a_few_bytes_that_ask_for_much_are_no_free_ride():
    """tmpfs cannot zero a range that must stay allocated, so a request of a few bytes writes 64 MiB, and is charged for them. tmpfs
    also searches for holes page by page, to the end of the file."""
    if not os.path.isdir("/dev/shm"):
        raise rig.Skip("no /dev/shm")
    with rig.tempfile.TemporaryDirectory(prefix="fairq-", dir="/dev/shm") as folder:
        disk = f"{folder}/disk"
        with open(disk, "wb") as file:
            for _ in range(160):
                file.write(bytes(MI))
        with operated("--shards", "1", "--policy", POLICY, device=disk) as rigged, rigged.good_load(300):
            for event in (zeroes, questions):
                with event(rigged):
                    rig.until(lambda: rigged.tenants()["bad"]["in_flight"], 60, "it is at work")
                    # Memory is fast: many decisions in a short time.
                    rigged.share(MI // 2, cost=lambda row: max(4096, int(row["bytes"])), seconds=0.03)
                rig.until(lambda: not rigged.tenants()["bad"]["in_flight"], 60, f"what {event.__name__} left is done")


def test_clients_that_close_do_not_keep_their_places():
    """Hundreds of slow requests, and a close: the next client gets a place when the clients are gone, not when their requests are done."""
    # The requests would take the device minutes.
    slow = "paced,size=512M,bandwidth=2M,iops=50,latency=1ms,parallelism=4"
    with operated("--policy", "mqfq:slots=4", device=slow) as rigged:
        for command, flags, bye in ((TRIM, 0, False), (ZEROES, NO_HOLE, False), (READ, 0, False), (TRIM, 0, True)):
            clients = [rigged.connect(timeout=60) for _ in range(16)]
            for client in clients:
                for nth in range(500):
                    client.send(command, nth % 2 * 32 * MI, 32 * MI if command != READ else MI // 16, flags=flags)
            rig.until(lambda: rigged.tenants()["bad"]["in_flight"], 20, "it is at work")
            for client in clients:
                client.close() if bye else client.s.close()
            # A client that says good-bye may take 5 s.
            rig.until(lambda: rigged.ask("status")["connections"] == 0, 20, f"places are free after requests {command}")
            rig.until(rigged.is_quiet, 20, "nothing is left")


def test_tenants_that_come_and_go_leave_nothing_behind():
    with operated() as rigged:
        descriptors = rigged.descriptors()
        with rigged.good_load(120):
            for round_ in range(30):
                rigged.ask("add", f"t{round_}=8M")
                client = rigged.connect(f"t{round_}")
                client.send(READ, 0, 65536)
                client.send(WRITE, 0, data=bytes(4096))
                rigged.ask("remove", f"t{round_}")
                with contextlib.suppress(Gone, OSError):
                    while True:
                        client.receive()
                client.s.close()
            check(rigged.tenants()["good"]["in_flight"] > 0, "the good tenant went on")
        rig.until(rigged.is_quiet, 30, "everything is given back")
        rig.until(lambda: rigged.descriptors() <= descriptors, 20, f"no more than {descriptors} descriptors are open")
        check(set(rigged.tenants()) == {"good", "bad", "small"}, "the other tenants are still there, and no more")


def pour(rigged, header):
    """The same request over and over, as fast as the server accepts it, on two connections."""

    def work(stop, _):
        client = rigged.connect(timeout=1)
        client.s.setblocking(False)
        blob, rest = header * 1000, b""
        while not stop.is_set():
            reads, writes, _ = select.select([client.s], [client.s], [], 0.1)
            if reads and not client.s.recv(MI):
                return
            if writes:
                rest = rest or blob
                rest = rest[client.s.send(rest) :]

    return Many(2, work)


def request(command, offset, length, data=b""):
    return struct.pack(">IHHQQI", REQUEST, 0, command, 1, offset, length) + data


# Work that moves little or no data: refused requests, advice, flushes, and parts of blocks.
FLOODS = {
    "refused": request(READ, 1 << 40, 4096),
    "advice": request(CACHE, 0, 4096),
    "flushes": request(FLUSH, 0, 0),
    "bytes": request(WRITE, 5, 1, b"x"),
}


def test_work_without_data_is_charged():
    """A tenant is charged for its work, however few bytes it moves: each request costs 4 KiB at least."""
    with operated("--policy", POLICY, "--shards", "1") as rigged, rigged.good_load(300):
        for name, header in FLOODS.items():
            before = rigged.tenants()["bad"]
            with pour(rigged, header):
                rig.until(lambda: rigged.tenants()["bad"]["in_flight"], 60, f"{name} is at work")
                rigged.share(4 * MI)
            check(rigged.tenants()["bad"] != before, f"{name} is not counted")
            rig.until(lambda: not rigged.tenants()["bad"]["in_flight"], 60, f"what {name} left is done")
