"""A tenant that behaves badly beside one that is busy and one that asks for 512 bytes now and then: share and latency stay,
memory stays bounded, nothing leaks."""

import contextlib
import json
import os
import select
import socket
import struct
import threading
import time

import rig
from nbd import CACHE, FLUSH, NO_HOLE, READ, REQUEST, STATUS, TRIM, WRITE, ZEROES, Client, Gone, Refused
from rig import MI, PACED, check

# How much of what it is entitled to the good tenant must get. The bad one gets the rest, so what is missing is not capacity.
ENOUGH = 0.85
SECONDS = 3
# How much longer, in seconds, a request of 512 bytes may take than twice what it usually does: what the device may hold of large
# requests, and something for a busy machine.
PATIENCE = 0.02


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
        """Bytes of memory in use."""
        with open(f"/proc/{self.server.child.pid}/status", encoding="ascii") as lines:
            return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmRSS:"))

    def connect(self, export="bad", **more):
        return Client(self.server.socket, export, **more)

    def is_quiet(self):
        status = self.ask("status")
        idle = all(tenant["in_flight"] == 0 for tenant in self.tenants().values())
        return idle and status["connections"] == 0 and status["policy_state"]["slots_in_use"] == 0

    @contextlib.contextmanager
    def good_load(self, seconds, depth=128):
        """The good tenant at work, by another process, with so much in flight that a busy machine does not let it run dry."""
        load = ["bench", "--connect", self.server.uri("good"), "--tenant", f"good=depth:{depth}", "--json"]
        child = rig.start([rig.fairq(), *load, "--seconds", f"{seconds}s", "--warmup", "0s"])
        try:
            rig.until(lambda: self.tenants()["good"]["in_flight"], 20, "the good tenant is at work")
            yield
        finally:
            child.kill()
            child.communicate()

    def measure(self):
        """Over some seconds: the good tenant's bytes a second, its part of all, and how long one in a hundred of the small
        tenant's requests takes, in seconds, one at a time."""
        small, times = self.connect("small"), []
        before, began = self.tenants(), time.monotonic()
        while time.monotonic() < began + SECONDS:
            asked = time.monotonic()
            small.ask(READ, len(times) % 1000 * 512, 512)
            times.append(time.monotonic() - asked)
            time.sleep(0.001)
        after, seconds = self.tenants(), time.monotonic() - began
        small.close()
        moved = {n: sum(after[n][k] - before[n][k] for k in ("read_bytes", "written_bytes")) for n in ("good", "bad")}
        slow = sorted(times)[len(times) * 99 // 100]
        return moved["good"] / seconds, moved["good"] / max(1, sum(moved.values())), slow


@contextlib.contextmanager
def operated(*args, device=PACED):
    with rig.tempfile.TemporaryDirectory(prefix="fairq-") as folder:
        control = os.path.join(folder, "control")
        tenants = ["--tenant", "good=64M", "--tenant", "bad=64M", "--tenant", "small=1M"]
        with rig.serve("--device", device, *tenants, "--control", control, *args) as server:
            yield Operated(server, control)


class Many:
    """Threads that do the same until told to stop. One that is refused a connection, since its tenant has as many as it may, tries again."""

    def __init__(self, count, work):
        self.stop = threading.Event()
        self.threads = [threading.Thread(target=self._run, args=(work, index)) for index in range(count)]

    def _run(self, work, index):
        while not self.stop.is_set():
            with contextlib.suppress(Gone, Refused, OSError):
                work(self.stop, index)

    def __enter__(self):
        for thread in self.threads:
            thread.start()

    def __exit__(self, *_):
        self.stop.set()
        for thread in self.threads:
            thread.join(30)


def slow_reader(rigged):
    """Asks for much and never takes it."""

    def work(stop, _):
        client = rigged.connect(timeout=5)
        for nth in range(60):
            client.send(READ, nth * MI // 2, MI // 2)
        stop.wait(30)
        client.s.close()

    return Many(2, work)


def half_open(rigged):
    """Says nothing, or half of what a client says first."""

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
            if len(client.s.recv(MI)) == 0:
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
    """One handshake after the other, and nothing else."""

    def work(stop, index):
        client = Client(rigged.server.socket, "bad" if index % 2 else None, timeout=10)
        client.s.close()
        stop.wait(0.001)

    return Many(4, work)


EVENTS = [slow_reader, half_open, many_connections, large_requests, killed_in_a_write, handshakes]


def test_hostile_clients_hurt_nobody_and_leave_nothing_behind():
    said = []
    with operated() as rigged:
        rigged.connect("good").close()
        rig.until(rigged.is_quiet, 20, "nothing is in flight")
        descriptors, resident = rigged.descriptors(), rigged.resident()
        with rigged.good_load(300):
            calm, _, usual = rigged.measure()
            for event in EVENTS:
                name = event.__name__
                with event(rigged):
                    time.sleep(0.5)
                    rate, part, slow = rigged.measure()
                    bound = resident + 90 * 40 * MI
                    check(rigged.resident() < bound, f"{name}: {rigged.resident() >> 20} MiB in use")
                # Entitled to half at least, and to all that the bad one does not take.
                entitled = max(calm / 2, calm * part)
                said.append(f"{name} {rate / calm:.2f}, {slow * 1e3:.1f} ms")
                check(rate >= ENOUGH * entitled, f"{name}: {rate / MI:.1f} MiB/s of {calm / MI:.1f}, part {part:.2f}")
                check(slow <= 2 * usual + PATIENCE, f"{name}: 512 bytes take {slow * 1e3:.1f} ms, usually {usual * 1e3:.1f}")
                check(part >= 0.5 * ENOUGH, f"{name}: the good tenant got only {part:.2f} of all bytes")
                # What a client that has gone has staged is cancelled; what is on the device ends.
                rig.until(lambda: not rigged.tenants()["bad"]["in_flight"], 60, f"what {name} left is done")
        rig.until(rigged.is_quiet, 30, "everything is given back")
        rig.until(lambda: rigged.descriptors() <= descriptors, 20, f"no more than {descriptors} descriptors are open")
        grown = rigged.resident() - resident
        check(grown < 96 * MI, f"{grown >> 20} MiB more in use than before")
    return f"of the calm rate, and 512 bytes ({usual * 1e3:.1f} ms when calm): " + "; ".join(said)


ALL_SECONDS = int(os.environ.get("FAIRQ_HOSTILE_SECONDS", "10"))
# Of what the others have beside polite clients, this much is theirs beside hostile ones: in each second of a long run, for which
# the machine has nothing else to do, and in all of a short one.
KEPT = 0.8
IS_LONG = ALL_SECONDS > 60


def polite(rigged):
    """As many clients as the hostile ones are, each with a few requests at a time, which takes its answers."""

    def work(stop, index):
        client = rigged.connect(timeout=20)
        for nth in range(8):
            client.send(READ, (index * 8 + nth) * 4096, 4096)
        while not stop.is_set():
            client.receive()
            client.send(READ, index * 4096, 4096)
        client.s.close()

    return Many(84, work)


def each_second(rigged, seconds, work):
    """Two well-behaved tenants beside `work`: the bytes that each moved in each full second."""
    job = {"rw": "randread", "bs": "4k", "iodepth": 128, "size": "64M", "time_based": 1, "runtime": seconds,
           "log_avg_msec": 1000}  # fmt: skip
    names = ("good", "also")
    logs = [os.path.join(rigged.server.folder, f"{name}-{work.__name__}") for name in names]
    children = [
        rig.start(rig.fio_args(rigged.server.uri(name), write_bw_log=log, **job)) for name, log in zip(names, logs)
    ]
    with work(rigged):
        reports = rig.finish(children, seconds + 60)
    check(all(report["error"] == 0 for report in reports), "an error reached a tenant that did nothing wrong")
    rates = []
    for log in logs:
        with open(f"{log}_bw.1.log", encoding="utf-8") as lines:
            # The first and the last second have the beginning and the end of the others in them.
            rates.append([int(line.split(",")[1]) << 10 for line in lines][2:-1])
    return rates


def all_at_once(rigged):
    """All of them."""

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
    """The other tenants keep 0.8 of what they have beside as many polite clients, without an error, and memory and descriptors come
    back. Requests are what the device is short of, so the least cost is 4 KiB."""
    rig.need("fio")
    with operated("--policy", "mqfq:least-cost=4k", "--tenant", "also=64M") as rigged:
        rigged.connect("also").close()
        rig.until(rigged.is_quiet, 20, "nothing is in flight")
        descriptors, resident = rigged.descriptors(), rigged.resident()
        calm = [sorted(rates)[len(rates) // 2] for rates in each_second(rigged, 10, polite)]
        rig.until(rigged.is_quiet, 30, "the polite ones have gone")
        hurt = each_second(rigged, ALL_SECONDS, all_at_once)
        least = [min(rates) / usual for rates, usual in zip(hurt, calm)]
        for rates, usual in zip(hurt, calm):
            mean = sum(rates) / len(rates)
            check(mean >= KEPT * usual, f"{mean / MI:.1f} MiB/s of {usual / MI:.1f} beside polite clients")
            if not IS_LONG:
                continue
            slow = [f"second {at}: {rate / usual:.2f}" for at, rate in enumerate(rates) if rate < KEPT * usual]
            check(not slow, f"of {len(rates)} seconds with {usual / MI:.1f} MiB/s beside polite clients: {', '.join(slow[:20])}")
        rig.until(rigged.is_quiet, 60, "everything is given back")
        rig.until(lambda: rigged.descriptors() <= descriptors, 20, f"no more than {descriptors} descriptors are open")
        grown = rigged.resident() - resident
        check(grown < 96 * MI, f"{grown >> 20} MiB more in use than before")
    return f"{len(hurt[0])} seconds, the least {min(least):.2f} of {' and '.join(f'{c / MI:.1f}' for c in calm)} MiB/s"


def flood(rigged, command, flags=0, **more):
    """One small request about all it has, 128 times at once."""

    def work(stop, _):
        client = rigged.connect(timeout=60, **more)
        for _ in range(128):
            client.send(command, 0, 64 * MI, flags=flags)
        while not stop.is_set():
            # An answer may take half a minute beside others; the end of the test is not to wait for it.
            if select.select([client.s], [], [], 0.1)[0]:
                client.receive()
                client.send(command, 0, 64 * MI, flags=flags)
        client.s.close()

    return Many(1, work)


def zeroes(rigged):
    """Zeroes it."""
    return flood(rigged, ZEROES, flags=NO_HOLE)


def questions(rigged):
    """Asks where its holes are."""
    return flood(rigged, STATUS, context="base:allocation")


def test_a_few_bytes_that_ask_for_much_are_no_free_ride():
    """tmpfs cannot zero a range that is to stay allocated: a few bytes on the wire are 64 MiB to write, and cost that. And it looks for
    holes page by page, to the end of the file. The good tenant keeps 0.8 of its half."""
    if not os.path.isdir("/dev/shm"):
        raise rig.Skip("no /dev/shm")
    said = []
    with rig.tempfile.TemporaryDirectory(prefix="fairq-", dir="/dev/shm") as folder:
        disk = f"{folder}/disk"
        with open(disk, "wb") as file:
            for _ in range(256):
                file.write(bytes(MI))
        with operated("--shards", "1", device=disk) as rigged, rigged.good_load(60):
            for event in (zeroes, questions):
                # The CPU is what is shared here, and what else runs on the host changes its speed for seconds: a free ride is one each time.
                for attempt in range(3):
                    calm, _, usual = rigged.measure()
                    with event(rigged):
                        time.sleep(0.5)
                        rate, _, slow = rigged.measure()
                    if rate >= 0.8 * calm / 2 and slow <= 2 * usual + PATIENCE:
                        break
                said.append(f"{event.__name__} {rate / calm:.2f}, {slow * 1e3:.1f} ms ({usual * 1e3:.1f} when calm), {attempt + 1} tried")
                check(rate >= 0.8 * calm / 2, f"{event.__name__}: {rate / MI:.1f} MiB/s of {calm / MI:.1f}")
                check(slow <= 2 * usual + PATIENCE, f"{event.__name__}: 512 bytes take {slow * 1e3:.1f} ms, usually {usual * 1e3:.1f}")
    return "of the calm rate, and 512 bytes: " + "; ".join(said)


def test_clients_that_close_do_not_keep_their_places():
    """Hundreds of requests that take long, and a close: the next client gets a place when they have gone, not when all is done."""
    with operated("--policy", "mqfq:slots=4") as rigged:
        for command, flags, bye in ((TRIM, 0, False), (ZEROES, NO_HOLE, False), (READ, 0, False), (TRIM, 0, True)):
            clients = [rigged.connect(timeout=60) for _ in range(16)]
            for client in clients:
                for nth in range(500):
                    client.send(command, nth % 2 * 32 * MI, 32 * MI if command != READ else MI // 16, flags=flags)
            rig.until(lambda: rigged.tenants()["bad"]["in_flight"], 20, "it is at work")
            for client in clients:
                client.close() if bye else client.s.close()
            # Work for minutes; one that says good-bye has 5 s.
            rig.until(lambda: rigged.ask("status")["connections"] == 0, 20, f"places are free after requests {command}")
            rig.until(rigged.is_quiet, 20, "nothing is left")


def test_large_requests_leave_short_queues_their_part():
    """4 KiB beside 32 MiB on a slow device: what is due, for a shorter queue too if D is as small as the device allows."""
    said = []
    for depth, policy in ((32, "mqfq"), (16, "mqfq:slots=4")):
        with operated("--policy", policy) as rigged, rigged.good_load(60, depth):
            _, _, usual = rigged.measure()
            with large_requests(rigged):
                time.sleep(0.5)
                _, part, slow = rigged.measure()
        said.append(f"depth {depth} gets {part:.2f}, 512 bytes take {slow * 1e3:.1f} ms")
        check(part >= 0.5 * ENOUGH, f"at depth {depth} only {part:.2f} of all bytes")
        check(slow <= 2 * usual + PATIENCE, f"512 bytes take {slow * 1e3:.1f} ms, usually {usual * 1e3:.1f}")
    return "; ".join(said)


def test_tenants_that_come_and_go_leave_nothing_behind():
    with operated() as rigged:
        descriptors = rigged.descriptors()
        with rigged.good_load(120):
            for round_ in range(100):
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
        check(set(rigged.tenants()) == {"good", "bad", "small"}, "only those are left who stayed")


def pour(rigged, header):
    """The same request over and over, as fast as the server takes it, by two connections."""

    def work(stop, _):
        client = rigged.connect(timeout=1)
        client.s.setblocking(False)
        blob, rest = header * 1000, b""
        while not stop.is_set():
            reads, writes, _ = select.select([client.s], [client.s], [], 1)
            if reads and not client.s.recv(MI):
                return
            if writes:
                rest = rest or blob
                rest = rest[client.s.send(rest) :]

    return Many(2, work)


def request(command, offset, length, data=b""):
    return struct.pack(">IHHQQI", REQUEST, 0, command, 1, offset, length) + data


# Work that moves little or no data: what a request asks for that is refused, advice, flushes, and bytes of blocks.
FLOODS = {
    "refused": request(READ, 1 << 40, 4096),
    "advice": request(CACHE, 0, 4096),
    "flushes": request(FLUSH, 0, 0),
    "bytes": request(WRITE, 5, 1, b"x"),
}


def test_work_without_data_is_charged():
    """A tenant is charged for the work that it makes, however few bytes it moves: the good one keeps 0.8 of all. Requests are what
    this device is short of, so the least cost is 4 KiB."""
    said = []
    with operated("--policy", "mqfq:least-cost=4k") as rigged, rigged.good_load(120):
        for name, header in FLOODS.items():
            # As above: what else runs on the host changes the speed of this machine for seconds.
            for attempt in range(3):
                calm, _, _ = rigged.measure()
                with pour(rigged, header):
                    time.sleep(0.5)
                    rate, _, _ = rigged.measure()
                if rate >= 0.8 * calm:
                    break
            said.append(f"{name} {rate / calm:.2f}, {attempt + 1} tried")
            check(rate >= 0.8 * calm, f"{name}: {rate / MI:.1f} MiB/s of {calm / MI:.1f}")
    return "of the calm rate: " + "; ".join(said)
