"""The common parts of all tests with real clients. They start a server, wait until it is ready and stop it, and run
programs with a time limit. No function waits for a fixed time: each polls a condition until a deadline. A deadline only
detects a failure, so it is longer than any delay on a busy machine."""

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
os.environ["PATH"] += os.pathsep + "/usr/sbin" + os.pathsep + "/sbin"

MI = 1 << 20
# The shortest deadline, in seconds.
PATIENCE = 60
# The device of the tests that need contention. It is so slow that a client's queue outlasts the
# moments in which the client waits for a CPU of a busy machine: a tenant without waiting requests
# has no claim to its share.
PACED = "paced,size=512M,bandwidth=16M,iops=20000,latency=300us,parallelism=16"


class Skip(Exception):
    """The machine lacks something; the reason is the message."""


class Failed(Exception):
    """A test's expectation did not hold."""


def takes(seconds):
    """Marks a test that takes long, in seconds on an idle machine: the longest tests begin first."""

    def mark(test):
        test.long = seconds
        return test

    return mark


def alone(test):
    """Marks a test that runs while no other does."""
    test.alone = True
    return test


def check(condition, message):
    if not condition:
        raise Failed(message)


def need(*programs):
    absent = [p for p in programs if not shutil.which(p)]
    if absent:
        raise Skip("not installed: " + ", ".join(absent))


def fairq():
    """The binary under test: $FAIRQ, else the release build."""
    target = os.environ.get("CARGO_TARGET_DIR", os.path.join(ROOT, "target"))
    path = os.environ.get("FAIRQ") or os.path.join(target, "release", "fairq")
    if not os.access(path, os.X_OK):
        raise Failed(f"{path} is not there: cargo build --release -p fairq")
    return os.path.abspath(path)


def run(*argv, timeout=0, ok=True, **more):
    """Runs a program to its end; its output is text. A failure shows its output."""
    timeout = max(timeout, 2 * PATIENCE)
    more.setdefault("stdin", subprocess.DEVNULL)
    if "input" in more:
        del more["stdin"]
    try:
        done = subprocess.run([str(a) for a in argv], capture_output=True, text=True, timeout=timeout, **more)
    except subprocess.TimeoutExpired as late:
        said = (late.stderr or b"")[-400:]
        raise Failed(f"{os.path.basename(str(argv[0]))} did not end within {timeout} s; said {said!r}") from late
    if ok and done.returncode != 0:
        words = " ".join(str(a) for a in argv)
        raise Failed(f"{words}\n  ended with {done.returncode}: {(done.stderr or done.stdout).strip()[-600:]}")
    return done


def until(condition, seconds, what):
    """Polls until the condition returns a true value, and returns that."""
    seconds = max(seconds, PATIENCE)
    deadline = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise Failed(f"after {seconds} s still not: {what}")
        time.sleep(0.01)


def greets(address):
    """Whether an NBD server sends its greeting at this address (a path, or a (host, port) pair)."""
    family = socket.AF_UNIX if isinstance(address, str) else socket.AF_INET
    with contextlib.closing(socket.socket(family)) as s:
        s.settimeout(2)
        try:
            s.connect(address)
            return s.recv(8) == b"NBDMAGIC"
        except OSError:
            return False


class Process:
    """A child in a process group of its own, with its stderr in a file."""

    def __init__(self, argv, folder, name="server", **more):
        self.log = os.path.join(folder, f"{name}-{time.monotonic_ns()}.log")
        self.name = name
        more.setdefault("stdin", subprocess.DEVNULL)
        with open(self.log, "w", encoding="utf-8") as log:
            self.child = subprocess.Popen(
                [str(a) for a in argv], stdout=more.pop("stdout", log), stderr=log, start_new_session=True, **more
            )

    def said(self):
        with open(self.log, encoding="utf-8", errors="replace") as log:
            return log.read()

    def alive(self):
        return self.child.poll() is None

    def kill(self):
        if self.alive():
            os.killpg(self.child.pid, signal.SIGKILL)
        self.child.wait()

    def terminate(self, seconds=PATIENCE):
        """SIGTERM; returns the exit status."""
        self.child.send_signal(signal.SIGTERM)
        try:
            return self.child.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill()
            raise Failed(f"{self.name} did not end within {seconds} s of SIGTERM: {self.said()[-400:]}") from None


class Server(Process):
    """`fairq serve` on a Unix socket. The server is ready when it sends the greeting."""

    def __init__(self, folder, *args, **more):
        self.socket = os.path.join(folder, "s")
        more.setdefault("env", dict(os.environ, STATE_DIRECTORY=os.path.join(folder, "state")))
        super().__init__([fairq(), "serve", "--listen", f"unix:{self.socket}", *args], folder, **more)
        try:
            self.await_greeting()
        except BaseException:  # also for an interrupt, because no caller has a reference to the server yet
            self.kill()
            raise

    def await_greeting(self):
        def up():
            check(self.alive(), f"fairq serve ended with {self.child.returncode}: {self.said()[-800:]}")
            return os.path.exists(self.socket) and greets(self.socket)

        until(up, 30, "fairq serve answers on its socket")

    def uri(self, export=""):
        return f"nbd+unix:///{export}?socket={self.socket}"


def configured(folder, text="", **timeouts):
    """Writes a configuration to a folder: `text`, and the server's timeouts; returns its path."""
    path = os.path.join(folder, "fairq.toml")
    with open(path, "w", encoding="utf-8") as file:
        file.write("\n".join([text, "[timeouts]", *(f'{key} = "{time}"' for key, time in timeouts.items())]))
    return path


@contextlib.contextmanager
def serve(*args, timeouts=None, **more):
    """A server in a folder of its own; it must still be alive at the end, and end with 0 on SIGTERM."""
    with tempfile.TemporaryDirectory(prefix="fairq-") as folder:
        if timeouts:
            args = ("--config", configured(folder, **timeouts), *args)
        server = Server(folder, *args, **more)
        server.folder = folder
        try:
            yield server
            check(server.alive(), f"the server died: {server.said()[-800:]}")
            status = server.terminate()
            check(status == 0, f"SIGTERM ended the server with {status}: {server.said()[-800:]}")
        finally:
            server.kill()


def fio_args(uri=None, name="job", before=(), **options):
    """The command line of one fio job on an NBD export, or on the file of its options; `before` precedes it."""
    options = {"thread": 1, "randrepeat": 0, "norandommap": 1, **options}
    if uri:
        options = {"ioengine": "nbd", "uri": uri, **options}
    return [*before, "fio", "--output-format=json", f"--name={name}", *(f"--{k}={v}" for k, v in options.items())]


def fio(uri, timeout=120, **options):
    """Runs one fio job and returns its part of the JSON report."""
    done = run(*fio_args(uri, **options), timeout=timeout)
    job = fio_report(done.stdout)
    check(job["error"] == 0, f"fio: error {job['error']}: {done.stderr[-400:]}")
    return job


def fio_report(text):
    """The first job of fio's report. fio prints notes of its engine before the JSON."""
    report = json.loads(text[text.index("{"):])
    check(report["jobs"], "fio reported no job")
    return report["jobs"][0]


def finish(children, seconds=150):
    """The reports of fio processes that run at once."""
    reports = []
    for child in children:
        try:
            out, err = child.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            for c in children:
                c.kill()
            raise Failed(f"fio did not end within {seconds} s") from None
        check(child.returncode == 0, f"fio ended with {child.returncode}: {err.strip()[-400:]}")
        reports.append(fio_report(out))
    return reports


def start(argv, **more):
    return subprocess.Popen(
        argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **more
    )


def rate_between(log, begin, end):
    """Bytes a second, by a bandwidth log, of the windows that lie between two moments (seconds since the epoch). A line is
    the mean of the window that ends at its time. The edges of windows differ between logs, so the bytes of each log are divided
    by the time that its own windows cover."""
    moved = covered = 0.0
    last = None
    with open(log, encoding="utf-8") as lines:
        for line in lines:
            at, kib = (float(x) for x in line.split(",")[:2])
            at /= 1000
            if last is not None and last >= begin and at <= end:
                moved += kib * 1024 * (at - last)
                covered += at - last
            last = at
    check(covered > (end - begin) / 2, f"the log covers {covered:.1f} s of {end - begin:.1f} s")
    return moved / covered


def at_once(folder, *jobs, seconds):
    """Runs fio jobs at once, a process each; returns their reports, and writes the bandwidth log of each to the folder."""
    children = []
    for i, job in enumerate(jobs):
        logged = {"write_bw_log": os.path.join(folder, f"job{i}"), "log_avg_msec": 250, "log_unix_epoch": 1}
        children.append(start(fio_args(**job, time_based=1, runtime=seconds, **logged)))
    return finish(children, seconds + 2 * PATIENCE)


def together(folder, *jobs, seconds):
    """Runs fio jobs at once; returns the bytes a second of each while all of them ran, without the first second."""
    at_once(folder, *jobs, seconds=seconds)
    return rates(folder, len(jobs), seconds)


def rates(folder, jobs, seconds):
    """The bytes a second of each of `jobs` jobs that ran at once.

    Two processes never begin and end at the same moment, and a job that runs alone gets all of the device. So only the
    time counts in which all of them ran."""
    logs, spans = [os.path.join(folder, f"job{i}_bw.1.log") for i in range(jobs)], []
    for log in logs:
        with open(log, encoding="utf-8") as lines:
            times = [float(line.split(",")[0]) / 1000 for line in lines]
        check(times, "fio logged nothing")
        spans.append((times[0], times[-1]))
    begin, end = max(s[0] for s in spans) + 1, min(s[1] for s in spans)
    check(end - begin > seconds / 2, f"the clients ran together for {end - begin:.1f} s only, of {seconds}: {spans}")
    return [rate_between(log, begin, end) for log in logs]


def pattern(path, size, seed=1):
    """A file of reproducible noise with holes: every fourth 64 KiB is left out."""
    import random

    noise = random.Random(seed)
    with open(path, "wb") as f:
        f.truncate(size)
        for offset in range(0, size, 65536):
            if offset // 65536 % 4 != 3:
                f.seek(offset)
                f.write(noise.randbytes(min(65536, size - offset)))
    return path
