"""The common code of the programs in this folder: arguments, bars, runs of fairq and of Linux's schedulers, and tables.

A bar is one figure with a goal. A program adds each of its bars to `Bars`, which prints the figure and the goal. When the program
ends, `Bars` writes each bar as one line of JSON to docs/results/bars.jsonl, in place of the line with the same id. The id begins
with the bar's area, a section of docs/results/notes.md, from which bench/performance makes docs/PERFORMANCE.md. A line states
whether the machine was quiet: whether all processes that the program did not start used less than the part QUIET of all CPUs
meanwhile. Figures of a debug build are printed and not recorded, unless --record names another file."""

import argparse
import contextlib
import ctypes
import datetime
import fcntl
import http.client
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from statistics import median

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.append(os.path.join(ROOT, "tests", "clients"))
sys.dont_write_bytecode = True
import rig  # noqa: E402

RECORD = os.path.join(ROOT, "docs", "results", "bars.jsonl")
QUIET = 0.05
TICKS = os.sysconf("SC_CLK_TCK")
# Tenants of the shares that most programs measure.
WEIGHTS = (1000, 500, 250, 100)


# ---- Processes and their CPU time.


def read_file(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


def write_file(path, text):
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


def processes():
    """The fields of /proc/PID/stat after the name, by process: state, parent, group, session, and so on."""
    found = {}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            found[int(pid)] = read_file(f"/proc/{pid}/stat").rpartition(")")[2].split()
    return found


def family(root, all_of_them=None):
    """A process and its descendants."""
    all_of_them = all_of_them or processes()
    mine, more = set(), {root}
    while more:
        mine |= more
        more = {pid for pid, fields in all_of_them.items() if int(fields[1]) in mine} - mine
    return mine


def cpu_seconds(pids, all_of_them=None):
    """CPU time of processes, with that of their children that have ended."""
    all_of_them = all_of_them or processes()
    return sum(int(x) for pid in pids for x in all_of_them.get(pid, ())[11:15]) / TICKS


def machine_seconds():
    """Seconds of all CPUs, except idle and waiting."""
    fields = [int(x) for x in read_file("/proc/stat").split("\n", 1)[0].split()[1:]]
    return (sum(fields[:8]) - fields[3] - fields[4]) / TICKS


class Others:
    """The part of all CPUs that is used by processes that this one did not start, and by the machine's host. The kernel's own
    threads are not counted, because they work for the benchmark."""

    def __init__(self):
        # A daemon that a benchmark starts remains its child.
        ctypes.CDLL(None).prctl(36, 1)
        self.begun = self.sample()

    @staticmethod
    def sample():
        found = processes()
        return time.monotonic(), machine_seconds() - cpu_seconds(family(os.getpid(), found) | family(2, found), found)

    def part(self):
        (begun, before), (now, after) = self.begun, self.sample()
        return max(0.0, after - before) / max(now - begun, 0.01) / os.cpu_count()


# ---- Bars.


def is_met(line, key="value"):
    """Whether the goal is met; also true without a goal. A figure is a number, or a pair of the smallest and the largest result of
    several runs."""
    low, high = line["goal"]
    least, most = line[key] if isinstance(line[key], list) else (line[key], line[key])
    return (low is None or least >= low) and (high is None or most <= high)


def number(value):
    """Text of a figure, with three digits or so."""
    if isinstance(value, (list, tuple)):
        return " to ".join(dict.fromkeys(map(number, value)))
    return f"{rounded(value):,g}"


def rounded(value):
    if isinstance(value, (list, tuple)):
        return [rounded(part) for part in value]
    return round(value, 3 if abs(value) < 10 else 1 if abs(value) < 1000 else None)


def goal_text(goal):
    low, high = goal
    if low is None and high is None:
        return "–"
    if None in goal:
        return f"≤ {number(high)}" if low is None else f"≥ {number(low)}"
    return f"{number(low)} to {number(high)}"


def verdict(line):
    """Returns `out of reach` if a program that does only the necessary work of a server also misses the goal."""
    if line["goal"] == [None, None]:
        return ""
    if is_met(line):
        return "met"
    return "out of reach" if line.get("floor") is not None and not is_met(line, "floor") else "not met"


def cpu_name():
    names = [line.split(":")[1].strip() for line in read_file("/proc/cpuinfo").splitlines() if line.startswith("model name")]
    return f"{len(names)} x {names[0]}" if names else f"{os.cpu_count()} CPUs"


def commit():
    """The commit of the sources, with a + if they differ from it."""
    git = lambda *words: subprocess.run(["git", "-C", ROOT, *words], capture_output=True, text=True, check=False).stdout.strip()  # noqa: E731
    return git("rev-parse", "--short", "HEAD") + ("+" if git("status", "--porcelain", "--", "Cargo.lock", "bench", "crates", "kernel") else "")


class Bars:
    """The bars that a program has measured."""

    def __init__(self, args=None, command=None):
        words = [os.path.relpath(os.path.abspath(sys.argv[0]), ROOT), *sys.argv[1:]]
        self.command, rounds = command or shlex.join(words), getattr(args, "n", 1)
        self.taken = "one run" if rounds == 1 else f"medians of {rounds}"
        self.file, self.lines, self.others = getattr(args, "record", RECORD), [], Others()

    def add(self, bar, what, value, least=None, most=None, unit="", peer="", floor=None, taken=None):
        """Adds one bar: a figure, with its lower and its upper bound."""
        goal = [bound if bound is None else rounded(bound) for bound in (least, most)]
        line = {"bar": bar, "what": what, "value": rounded(value), "unit": unit, "goal": goal, "peer": peer}
        if floor is not None:
            line["floor"] = rounded(floor)
        self.lines.append(line | {"taken": self.taken if taken is None else taken})
        shown = f"{number(value)}{unit and ' ' + unit}, goal {goal_text(line['goal'])}{peer and ', beside ' + peer}"
        print(f"{verdict(line).upper():<12} {what}: {shown}", flush=True)

    def write(self):
        """Writes the lines, and generates the page. The lines of a debug build are only printed."""
        if not self.lines:
            return
        rest = {"command": self.command, "date": datetime.date.today().isoformat(), "commit": commit(), "cpu": cpu_name(),
                "quiet": self.others.part() < QUIET}
        lines = [line | rest for line in self.lines]
        for line in lines:
            print(json.dumps(line, ensure_ascii=False))
        is_debug = os.path.basename(os.path.dirname(os.environ.get("FAIRQ", "release/"))) == "debug"
        if self.file == "-" or (is_debug and self.file == RECORD):
            print("not recorded" + (": a debug build" if is_debug else ""))
            return
        with open(self.file, "a+", encoding="utf-8") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.seek(0)
            kept = {line["bar"]: line for line in map(json.loads, file)}
            kept.update({line["bar"]: line for line in lines})
            file.truncate(0)
            file.writelines(json.dumps(line, ensure_ascii=False) + "\n" for line in kept.values())
        if self.file == RECORD:
            subprocess.run([os.path.join(ROOT, "bench", "performance")], check=True)


@contextlib.contextmanager
def recorded(command):
    """The bars of a test in bench/clients, which are written also if one of them is not met."""
    bars = Bars(command=command)
    try:
        yield bars
    finally:
        bars.write()


# ---- A program of this folder.


def parser(doc, n=None, seconds=None, only=None, is_json=True):
    """The arguments that most programs take; `n` and `seconds` are defaults, `only` names the parts of a program."""
    made = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    if n is not None:
        made.add_argument("-n", type=int, default=n, metavar="ROUNDS", help=f"rounds; the figures are their medians ({n})")
    if seconds is not None:
        made.add_argument("--seconds", type=type(seconds), default=seconds, metavar="S", help=f"length of a run ({seconds})")
    if only is not None:
        made.add_argument("--only", metavar="NAME,…", type=lambda text: parts(text, only), default=list(only),
                          help="just these of " + ", ".join(only))
    if is_json:
        made.add_argument("--json", metavar="FILE", help="write bars and results there, too")
    made.add_argument("--record", metavar="FILE", default=RECORD, help="where the bars are kept, - for nowhere (docs/results/bars.jsonl)")
    return made


def parts(text, known):
    names = text.split(",")
    if unknown := [name for name in names if name not in known]:
        raise argparse.ArgumentTypeError(f"there is no {unknown[0]}: {', '.join(known)}")
    return names


def perform(program, arguments):
    """Runs `program(args, bars)` and records its bars, also those before a failure; its result goes to --json. Exits 77 if the
    machine lacks something."""
    args = arguments.parse_args()
    # Servers run in process groups of their own, so they have to be ended here, on a signal too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    bars, name, result, status = Bars(args), os.path.basename(sys.argv[0]), None, 0
    try:
        result = program(args, bars)
    except rig.Skip as reason:
        print(f"SKIP {name}: {reason}", file=sys.stderr)
        status = 77
    except rig.Failed as reason:
        print(f"{name}: {reason}", file=sys.stderr)
        status = 1
    except KeyboardInterrupt:
        sys.exit(130)
    bars.write()
    if getattr(args, "json", None):
        write_file(args.json, json.dumps({"bars": bars.lines, "results": result}, indent=1) + "\n")
    sys.exit(status)


# ---- Figures.


def jain(values):
    """Jain's index: 1 if all values are equal."""
    return sum(values) ** 2 / (len(values) * sum(v * v for v in values)) if any(values) else 0.0


def weighted_jain(shares, weights=WEIGHTS):
    return jain([share / weight for share, weight in zip(shares, weights)])


def medians(points):
    """The median of each key."""
    return {key: median(point[key] for point in points) if points[0][key] is not None else None for key in points[0]}


def percent(fraction):
    return f"{100 * fraction:.1f} %"


def shares_text(values):
    return "/".join(f"{100 * value / sum(values):.0f}" for value in values)


def show(rows, title=""):
    """Prints dicts with the same keys as a table."""
    if not rows:
        return
    is_text = [isinstance(cell, str) for cell in rows[0].values()]
    text = lambda cell: cell if isinstance(cell, str) else "-" if cell is None else number(cell)  # noqa: E731
    cells = [list(rows[0]), *([text(cell) for cell in row.values()] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells)]
    print(f"\n{title}" if title else "")
    for line in cells:
        print("  ".join(cell.ljust(width) if left else cell.rjust(width) for cell, width, left in zip(line, widths, is_text)))


# ---- fairq.


def bench(device, policies, tenants, seconds, *more, before=()):
    """Results of `fairq bench --json`, one object per policy; `device` may be the address of a server."""
    command = [*before, rig.fairq(), "bench", "--connect" if device.startswith("nbd") else "--device", device]
    command += ["--seconds", seconds, "--json", "-", *more]
    command += [word for policy in policies for word in ("--policy", policy)]
    command += [word for tenant in tenants for word in ("--tenant", tenant)]
    return json.loads(rig.run(*command, timeout=3600).stdout)["runs"]


def call(control, method, **params):
    """The result of a method of the control socket."""
    with socket.socket(socket.AF_UNIX) as s:
        s.settimeout(120)
        s.connect(control)
        s.sendall(json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).encode() + b"\n")
        with s.makefile(encoding="utf-8") as lines:
            answer = json.loads(lines.readline())
    rig.check("result" in answer, f"{method}: {answer}")
    return answer["result"]


def scrape(port, path="/metrics"):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    connection.request("GET", path)
    rig.check(connection.getresponse().read(), f"{path} is empty")
    connection.close()


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def at_once(threads):
    """Runs threads to their ends."""
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def each(work, items):
    """Runs `work` for all items at once."""
    at_once([threading.Thread(target=work, args=(item,)) for item in items])


# ---- Linux's own schedulers: a loop device over memory, and cgroups.


class Cgroups:
    """Groups with weights (bfq) and caps (io.max), in the version of cgroups that has the block controller."""

    def __init__(self, count, clean):
        self.is_v1 = os.path.isdir("/sys/fs/cgroup/blkio")
        top = "/sys/fs/cgroup/blkio" if self.is_v1 else "/sys/fs/cgroup"
        if not self.is_v1:
            with contextlib.suppress(OSError):
                if "io" in read_file(f"{top}/cgroup.controllers").split():
                    write_file(f"{top}/cgroup.subtree_control", "+io")
            if "io" not in read_file(f"{top}/cgroup.subtree_control").split():
                raise rig.Skip("no cgroup controller for block devices")
        self.paths = [os.path.join(top, f"fairq-bench-{os.getpid()}-{i}") for i in range(count)]
        for path in self.paths:
            os.mkdir(path)
            clean.callback(self.remove, path)

    @staticmethod
    def remove(path):
        with contextlib.suppress(OSError):
            os.rmdir(path)

    def set(self, path, knob, text):
        """The files of a scheduler exist only while a device uses it."""
        if not os.path.exists(os.path.join(path, knob)):
            raise rig.Skip(f"{knob} is not there: a kernel without it")
        write_file(os.path.join(path, knob), text)

    def weigh(self, weights):
        for path, weight in zip(self.paths, weights):
            self.set(path, "blkio.bfq.weight" if self.is_v1 else "io.bfq.weight", str(weight))

    def cap(self, device, caps):
        """Caps of reads a second; None is no cap."""
        node = os.stat(device).st_rdev
        name = f"{os.major(node)}:{os.minor(node)}"
        for path, cap in zip(self.paths, caps):
            if self.is_v1:
                self.set(path, "blkio.throttle.read_iops_device", f"{name} {cap or 0}")
            else:
                self.set(path, "io.max", f"{name} riops={cap or 'max'}")


class Loop:
    """A loop device over a file in memory, whose scheduler changes from run to run."""

    def __init__(self, file, clean):
        if os.geteuid() != 0:
            raise rig.Skip("a loop device and cgroups need root")
        rig.need("fio", "losetup")
        if not os.path.exists("/dev/loop-control"):
            raise rig.Skip("no loop devices")
        self.path = rig.run("losetup", "--find", "--show", file).stdout.strip()
        clean.callback(rig.run, "losetup", "-d", self.path, ok=False)
        self.queue = f"/sys/block/{os.path.basename(self.path)}/queue/scheduler"

    def use(self, scheduler):
        if scheduler not in read_file(self.queue):
            for module in (scheduler, f"{scheduler}-iosched"):
                with contextlib.suppress(FileNotFoundError):
                    rig.run("modprobe", module, ok=False)
        if scheduler not in read_file(self.queue):
            raise rig.Skip(f"this kernel has no {scheduler}")
        write_file(self.queue, scheduler)

    def job(self, cgroup, **options):
        """A fio job on the device, in a cgroup."""
        before = ["sh", "-c", f'echo $$ > {cgroup}/cgroup.procs; exec "$@"', "sh"]
        return {"before": before, "filename": self.path, "ioengine": "libaio", "direct": 1, **options}


@contextlib.contextmanager
def file_in_memory(mebibytes):
    """The path of a file of random bytes in /dev/shm."""
    with tempfile.TemporaryDirectory(prefix="fairq-bench-", dir="/dev/shm") as folder:
        path = os.path.join(folder, "ram.img")
        with open(path, "wb") as file:
            for _ in range(mebibytes):
                file.write(os.urandom(1 << 20))
        yield path


def together(jobs, seconds):
    """The bytes a second of fio jobs that run at once, and their reports."""
    with tempfile.TemporaryDirectory(prefix="fairq-bench-") as folder:
        reports = rig.at_once(folder, *jobs, seconds=seconds)
        return rig.rates(folder, len(jobs), seconds), reports


def p99_us(report):
    return report["read"]["clat_ns"]["percentile"]["99.000000"] / 1e3


class Guest:
    """A script in a guest (kernel/guest): iterates over the words of its lines that begin with one of `names`, and prints the
    others."""

    def __init__(self, script, names, *options, **more):
        self.script, self.names, self.options, self.more = script, names, options, more

    def __iter__(self):
        with tempfile.TemporaryDirectory() as work:
            script = os.path.join(work, "script")
            write_file(script, self.script)
            command = [os.path.join(ROOT, "kernel", "guest"), script, *map(str, self.options)]
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, **self.more)
            for line in self.process.stdout:
                words = line.split()
                if words and words[0] in self.names:
                    yield words
                else:
                    print(line, end="", file=sys.stderr)
            if code := self.process.wait():
                sys.exit(code)
