"""Tests the man pages and completions as a user uses them: pages are installed and read by man, and the Tab key is pressed
in real shells."""

import fcntl
import os
import pty
import re
import select
import subprocess
import tempfile
import termios
import time

import rig


def test_man_pages_are_found_and_without_warnings():
    rig.need("man", "groff")
    with tempfile.TemporaryDirectory(prefix="fairq-") as folder:
        section = os.path.join(folder, "man1")
        rig.run(rig.fairq(), "man", section)
        pages = sorted(os.listdir(section))
        rig.check({"fairq.1", "fairq-serve.1", "fairq-ctl-config-reload.1"} <= set(pages), f"pages {pages}")
        env = {**os.environ, "LC_ALL": "C.UTF-8", "MANWIDTH": "80", "MANPATH": folder, "MANPAGER": "cat"}
        texts = {}
        for page in pages:
            read = rig.run("man", "--warnings", "-l", os.path.join(section, page), env=env)
            rig.check(not read.stderr, f"{page}: {read.stderr}")
            texts[page] = re.sub(".\b", "", read.stdout)
        # By name, as installed pages are read.
        rig.check("fairq-serve" in rig.run("man", "fairq-serve", env=env).stdout, "man fairq-serve")
        for page, text in texts.items():
            name = page.removesuffix(".1")
            rig.check(re.search(rf"NAME\n +{name} +- ", text), f"{page} does not say what it is")
            rig.check("EXTRA" not in text, page)
        bench = texts["fairq-bench.1"]
        rig.check(re.search(r"\nEXAMPLES\n +fairq bench --policy none,mqfq --tenant small=weight:300,bs:4k,depth:64", bench), bench)
        rig.check("\nEXIT STATUS\n" in bench, "no exit status")
        # The pages contain every option and every command of the program's help.
        for words in (["serve"], ["bench"], ["ctl", "trace"], ["lab", "run"]):
            said = rig.run(rig.fairq(), *words, "--help").stdout
            options = set(re.findall(r"^ +(?:-\w, )?(--[a-z-]+)", said, re.M))
            absent = [option for option in options if option not in texts["-".join(["fairq", *words]) + ".1"]]
            rig.check(len(options) > 3 and not absent, f"{words}: {absent}")
        return f"{len(pages)} pages"


class Shell:
    """A shell at a terminal."""

    def __init__(self, argv, env):
        self.master, terminal = pty.openpty()
        self.child = subprocess.Popen(
            argv, stdin=terminal, stdout=terminal, stderr=terminal, env=env, start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        os.close(terminal)
        self.heard = ""

    def type(self, text):
        os.write(self.master, text.encode())

    def until(self, pattern, what, seconds=20):
        """The text on the terminal up to a pattern, without control sequences."""
        deadline = time.monotonic() + seconds
        while not re.search(pattern, self.heard):
            if not select.select([self.master], [], [], max(0.0, deadline - time.monotonic()))[0]:
                raise rig.Failed(f"still not: {what}: {self.heard[-1500:]!r}")
            text = os.read(self.master, 1 << 16).decode(errors="replace")
            # fish queries the type of the terminal, and waits for the reply.
            if "\x1b[c" in text or "\x1b[0c" in text:
                os.write(self.master, b"\x1b[?62c")
            self.heard += re.sub(r"\x1b(\[[0-9;?>=]*[ -/]*[@-~]|\][^\x07\x1b]*(\x07|\x1b\\)|[()][A-Z0-9]|[=>78MDE])|[\x07\r\x0e\x0f]", "", text)

    def end(self):
        self.child.kill()
        self.child.wait()
        os.close(self.master)


# How each shell is started without a user's settings, and loads completions as its users do.
SHELLS = {
    "bash": (["bash", "--norc", "--noprofile", "-i"], ". {folder}/completions"),
    "zsh": (["zsh", "-f", "-i"], "fpath=({folder} $fpath); autoload -U compinit; compinit -u -d {folder}/dump"),
    "fish": (["fish", "-N", "-i"], "source {folder}/completions"),
}


def complete(shell):
    rig.need(shell)
    argv, load = SHELLS[shell]
    with tempfile.TemporaryDirectory(prefix="fairq-") as folder:
        script = rig.run(rig.fairq(), "completions", shell).stdout
        for name in ("completions", "_fairq"):
            with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
                file.write(script)
        os.symlink(rig.fairq(), os.path.join(folder, "fairq"))
        env = {"PATH": f"{folder}:{os.environ['PATH']}", "HOME": folder, "TERM": "xterm", "LC_ALL": "C.UTF-8"}
        terminal = Shell(argv, env)
        try:
            terminal.type(f" {load.format(folder=folder)}; echo lo''aded\n")
            terminal.until(r"loaded\n", "the completions are loaded")
            rig.check(not re.search("error|not found|unknown", terminal.heard), terminal.heard)
            # A unique completion is inserted; the next word is completed in the context of the
            # previous ones.
            for typed, there in (("fairq cal", "calibrate "), ("fairq ctl weig", "weight "), ("fairq ctl config rel", "reload "),
                                 ("fairq serve --memory-per-c", "--memory-per-connection"), ("fairq ctl trace --format perf", "perfetto ")):
                terminal.heard = ""
                terminal.type(f"{typed}\t")
                last = typed.rpartition(" ")[0]
                terminal.until(re.escape(f"{last} {there}"), f"{typed} becomes {there}")
                terminal.type("\x15")
            # Several possible completions are listed.
            terminal.heard = ""
            terminal.type("fairq ctl c\t\t")
            terminal.until(r"(?s)call.*config|config.*call", "call and config are offered")
        finally:
            terminal.end()


def test_bash_completes():
    complete("bash")


def test_zsh_completes():
    complete("zsh")


def test_fish_completes():
    complete("fish")
