"""Runs the tests of a folder: each in a process of its own, with servers, sockets and files of its own, several at a time."""

import argparse
import importlib
import itertools
import os
import signal
import subprocess
import sys
import time
import traceback

import rig


def known(folder):
    """Every test of the folder: its file, its name, and the function."""
    tests = []
    for file in sorted(f[5:-3] for f in os.listdir(folder) if f.startswith("test_") and f.endswith(".py")):
        module = importlib.import_module(f"test_{file}")
        tests += [(file, name[5:], function) for name, function in vars(module).items() if name.startswith("test_")]
    return tests


def wanted(tests, names):
    every = {n for file, name, _ in tests for n in (file, name)}
    for name in names:
        if name not in every:
            sys.exit(f"no test or file is called {name}; there are: {', '.join(n for _, n, _ in tests)}")
    return [t for t in tests if not names or t[0] in names or t[1] in names]


def one(function):
    """Runs a test in this process; its verdict is the exit status, its note the standard output."""
    try:
        note, status = function() or "", 0
    except rig.Skip as reason:
        note, status = str(reason), 77
    except rig.Failed as reason:
        note, status = str(reason), 1
    except Exception:  # a bug of the test, or an unforeseen reply: either way not a pass
        note, status = traceback.format_exc().strip(), 1
    print(note, flush=True)
    # Threads of a failed test may wait for ever.
    os._exit(status)


class Running:
    """A test in a process of its own."""

    def __init__(self, name, limit):
        self.name, self.began, self.limit = name, time.monotonic(), limit
        self.child = subprocess.Popen(
            [sys.executable, sys.argv[0], "--one", name], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, start_new_session=True,
        )  # fmt: skip

    def interrupt(self):
        """Makes the test end its servers and unmount its file systems."""
        self.child.send_signal(signal.SIGINT)

    def end(self):
        """Waits until the test has ended, and kills it if that takes long."""
        try:
            self.child.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(self.child.pid, signal.SIGKILL)

    def verdict(self):
        """The verdict and the line to print; None while it runs."""
        seconds = time.monotonic() - self.began
        # A pipe holds all output of a test: the test ends whether or not the pipe is read.
        if self.child.poll() is not None:
            verdict, late = {0: "PASS", 77: "SKIP"}.get(self.child.returncode, "FAIL"), ""
        elif seconds > self.limit:
            self.interrupt()
            self.end()
            verdict, late = "FAIL", f"it did not end within {self.limit} s; "
        else:
            return None
        note = late + self.child.communicate()[0].strip()
        return verdict, f"{verdict} {self.name} ({seconds:.1f} s){': ' if note else ''}{note}"


def several(tests, jobs, limit):
    """Runs tests, `jobs` at a time, each for at most `limit` seconds; gives each one's name, verdict and line as it ends."""
    waiting, running = list(tests), []
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                running.append(Running(waiting.pop(0)[1], limit))
            for test in list(running):
                ended = test.verdict()
                if ended:
                    running.remove(test)
                    yield test.name, *ended
            time.sleep(0.02)
    finally:
        for test in running:
            test.interrupt()
        for test in running:
            print(f"FAIL {test.name}: it was ended after {time.monotonic() - test.began:.1f} s", flush=True)
            test.end()


def main(folder, title, jobs, doc):
    """Runs the named tests, by default `jobs` at a time. Verdicts are printed in the tests' order."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=jobs, metavar="N", help=f"tests at a time ({jobs}); 1: one after the other")
    # Far beyond the time of a test on a busy machine. A test that hangs fails, and the others'
    # verdicts are printed.
    parser.add_argument("--limit", type=float, default=300, metavar="SECONDS", help="the longest that a test may take (300)")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("names", nargs="*", metavar="NAME", help="a test, or a file of them; all if none is named")
    given = parser.parse_args()
    sys.path.insert(0, folder)
    tests = wanted(known(folder), given.names)
    if given.one:
        one(tests[0][2])
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    began = time.monotonic()
    # The long tests first, because they determine the total time; tests that need the machine alone
    # come last.
    order = sorted(tests, key=lambda test: -getattr(test[2], "long", 0))
    crowd = [test for test in order if not hasattr(test[2], "alone")]
    alone = [test for test in order if hasattr(test[2], "alone")]
    names, told = [name for _, name, _ in tests], {}
    counts = {"PASS": 0, "FAIL": 0, "SKIP": 0}
    for name, verdict, line in itertools.chain(several(crowd, given.jobs, given.limit), several(alone, 1, given.limit)):
        counts[verdict] += 1
        told[name] = line
        while names and names[0] in told:
            print(told[names.pop(0)], flush=True)
    seconds = time.monotonic() - began
    print(f"{title}: {counts['PASS']} passed, {counts['FAIL']} failed, {counts['SKIP']} skipped, {seconds:.0f} s")
    return 1 if counts["FAIL"] or not counts["PASS"] else 0
