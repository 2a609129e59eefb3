#!/usr/bin/env python3
"""The tests that tests/service/run runs within the container, as root: fairq as a service; each test builds on the one before.

The state directory is a folder of the real disk, so that O_DIRECT works as in production."""

import contextlib
import json
import os
import pwd
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "tests", "clients"))
import nbd  # noqa: E402
import rig  # noqa: E402
from rig import check, run, until  # noqa: E402

SOCKET = "/run/fairq.sock"
# From linux/capability.h and include/linux/sched.h.
CAP_SYS_RESOURCE = 24
PF_MEMALLOC_NOIO = 0x00080000
CONFIG = "/etc/fairq/fairq.toml"
URI = f"nbd+unix:///{{}}?socket={SOCKET}"
TEXT = """listen = {listen}
[device]
kind = "file"
path = "{path}"
size = "64M"
create = true
direct = "on"
[[tenant]]
name = "db"
weight = {weight}
[[tenant]]
name = "web"
"""


def write(path, text):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


def configure(path="/var/lib/fairq/disk.img", weight=300, listen=("unix:/run/fairq.sock",)):
    write(CONFIG, TEXT.format(path=path, weight=weight, listen=json.dumps(list(listen))))


def systemctl(*words, ok=True):
    return run("systemctl", "--no-ask-password", *words, ok=ok)


def show(name):
    return systemctl("show", "--value", "-p", name, "fairq.service").stdout.strip()


def pid():
    return int(show("MainPID"))


def journal():
    return run("journalctl", "-u", "fairq.service", "-o", "cat", "--no-pager", "-q").stdout


def ctl(*words):
    return json.loads(run("fairq", "ctl", "--json", *words).stdout)


def weight(name):
    return next(tenant["weight"] for tenant in ctl("tenants") if tenant["name"] == name)


def drop_in(text):
    """Sets the unit's settings for a test; an empty text removes them."""
    path = "/etc/systemd/system/fairq.service.d/test.conf"
    if text:
        write(path, f"[Service]\n{text}\n")
    else:
        os.remove(path)
    systemctl("daemon-reload")


def exports():
    return [export["export-name"] for export in json.loads(run("nbdinfo", "--json", "--list", URI.format("")).stdout)["exports"]]


def package():
    """The package of the program."""
    return run(f"{ROOT}/contrib/debian/package", "--program", rig.fairq(), "--version", "0.1.0", "--out", "/tmp/packages").stdout.strip()


def next_version(package):
    """The same package under another version."""
    run("dpkg-deb", "--raw-extract", package, "/tmp/next")
    run("sed", "-i", "s/^Version: .*/&+1/", "/tmp/next/DEBIAN/control")
    run("dpkg-deb", "-Znone", "--build", "/tmp/next", "/tmp/packages/next.deb")
    return "/tmp/packages/next.deb"


def test_the_package_is_installed():
    run("dpkg", "-i", package())
    check(show("ActiveState") == "inactive", "the server runs before it has a configuration")
    os.makedirs("/var/lib/fairq", exist_ok=True)
    run("mount", "--bind", "/var/lib/private-fairq-state", "/var/lib/fairq")
    configure()
    said = run("systemd-analyze", "--man=no", "verify", *(f"/usr/lib/systemd/system/fairq.{kind}" for kind in ("service", "socket")))
    check(not (said.stdout + said.stderr), f"systemd-analyze verify: {said.stdout}{said.stderr}")
    systemctl("enable", "--now", "fairq.socket")
    check(show("ActiveState") == "inactive", "the server runs before anybody has come")


def test_the_first_client_starts_it():
    check(exports() == ["db", "web"], exports())
    check(show("ActiveState") == "active", "it runs")
    check(ctl("status")["listening"] == [f"unix:{SOCKET}"], ctl("status")["listening"])
    check(show("StatusText"), "it says what it does")


def test_it_is_ready_when_systemctl_returns():
    systemctl("stop", "fairq.service")
    systemctl("start", "fairq.service")
    check(show("ActiveState") == "active", show("ActiveState"))
    check('"message":"serving"' in journal().rsplit("Started fairq.service", 1)[0], "the log says so before systemd does")


def test_data_go_around_the_page_cache():
    job = rig.fio(URI.format("db"), rw="write", bs="4k", iodepth=16, size="8M", verify="crc32c", do_verify=1)
    check((job["write"]["total_ios"], job["read"]["total_ios"]) == (2048, 2048), "written and verified")
    flags = {int(run("sed", "-n", "s/flags:[[:space:]]*//p", f"/proc/{pid()}/fdinfo/{fd}").stdout, 8)
             for fd in os.listdir(f"/proc/{pid()}/fd") if os.readlink(f"/proc/{pid()}/fd/{fd}") == "/var/lib/fairq/disk.img"}
    check(flags and all(flag & os.O_DIRECT for flag in flags), f"opened with {flags}")


def test_it_is_hardened():
    # The exposure level must be below 1.9: 1.7, and 0.2 for a capability that the server drops before it opens a socket or a file.
    said = run("systemd-analyze", "security", "--no-pager", "--threshold=19", "fairq.service", ok=False)
    check(said.returncode == 0, said.stdout[-2000:])
    return said.stdout.strip().splitlines()[-1].strip()


def refused(done):
    return done.returncode != 0 and any(why in done.stderr for why in ("Permission denied", "not permitted"))


def test_it_runs_as_a_user_of_its_own():
    owner = pwd.getpwnam("fairq").pw_uid
    check(owner != 0 and os.stat(f"/proc/{pid()}").st_uid == owner, "it runs as its own user")
    with open(f"/proc/{pid()}/status", encoding="ascii") as lines:
        kept = {line.split()[0]: line.split()[1] for line in lines if line.startswith("Cap")}
    check(all(int(kept[f"Cap{which}:"], 16) == 0 for which in ("Eff", "Prm", "Inh", "Amb")), f"no capabilities: {kept}")
    # Dropped capabilities stay in the bounding set, but NoNewPrivileges= prevents regaining them.
    check(int(kept["CapBnd:"], 16) == can_flush() << CAP_SYS_RESOURCE, f"nor others to be had: {kept}")


def can_flush():
    """Whether this machine's systemd has CAP_SYS_RESOURCE; in a container it may not."""
    with open("/proc/1/status", encoding="ascii") as lines:
        return next(int(line.split()[1], 16) for line in lines if line.startswith("CapBnd:")) >> CAP_SYS_RESOURCE & 1


def test_its_threads_are_io_flushers_or_the_log_says_that_they_are_not():
    """The kernel gives memory to I/O flushers without waiting for disks; this server may be such a disk."""
    if not can_flush():
        check("not marked as an I/O flusher" in journal(), "it serves without the capability, and says so")
        return
    check("not marked as an I/O flusher" not in journal(), "the log says that the threads are not I/O flushers")
    flags = {}
    for thread in os.listdir(f"/proc/{pid()}/task"):
        with open(f"/proc/{pid()}/task/{thread}/stat", encoding="ascii") as line:
            name, rest = line.read().rsplit(")", 1)
            flags[name.split("(", 1)[1]] = int(rest.split()[6])
    check(all(of & PF_MEMALLOC_NOIO for of in flags.values()), f"not all are: { {name: hex(of) for name, of in flags.items()} }")


def test_other_users_are_kept_out():
    """Other users of the machine try to reach the server in every way except through the listeners that the operator
    opened."""
    os.chmod("/etc/fairq", 0o755)
    attempts = {
        "the clients' socket": ["python3", "-c", f"import socket; socket.socket(socket.AF_UNIX).connect('{SOCKET}')"],
        "the control socket": ["fairq", "ctl", "--control", "/run/fairq/fairq.ctl", "status"],
        "the data": ["dd", "if=/var/lib/fairq/disk.img", "of=/dev/null", "count=1"],
        "the data's folder": ["ls", "/var/lib/fairq/."],
        "the configuration, to write": ["tee", "-a", CONFIG],
        "its memory": ["dd", f"if=/proc/{pid()}/mem", "of=/dev/null", "count=1"],
        "its environment": ["cat", f"/proc/{pid()}/environ"],
        "its files": ["ls", f"/proc/{pid()}/fd"],
        "its life": ["kill", "-TERM", str(pid())],
    }
    for user in ("nobody", "daemon"):
        for what, words in attempts.items():
            done = run("setpriv", f"--reuid={user}", f"--regid={user if user == 'daemon' else 'nogroup'}", "--clear-groups", *words, ok=False)
            check(refused(done), f"{user} got at {what}: {done.returncode} {done.stdout[-200:]} {done.stderr[-200:]}")
    check(show("ActiveState") == "active" and exports() == ["db", "web"], "it serves on")


PROBE = r"""
import json, os, resource, socket, sys

def attempt(do):
    try:
        do()
    except OSError as error:
        return error.strerror
    return "done"

disk = sys.argv[1] if len(sys.argv) > 1 else None
print("PROBE" + json.dumps({
    "a disk that nobody named": attempt(lambda: os.open(disk, os.O_RDWR)) if disk else None,
    "the null device": attempt(lambda: os.open("/dev/null", os.O_RDWR)),
    "/etc": attempt(lambda: open("/etc/probe", "w")),
    "/usr": attempt(lambda: open("/usr/probe", "w")),
    "/srv": attempt(lambda: open("/srv/probe", "w")),
    "shadow": attempt(lambda: open("/etc/shadow")),
    "home": attempt(lambda: os.listdir("/root")),
    "root": attempt(lambda: os.setuid(0)),
    "packets": attempt(lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW)),
    "netlink": attempt(lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW)),
    "its own state": attempt(lambda: open("/var/lib/fairq/probe", "w")),
    "core": resource.getrlimit(resource.RLIMIT_CORE),
    "uid": os.getuid(),
    "others": [name for name in os.listdir("/proc") if name.isdigit() and attempt(lambda: os.stat(f"/proc/{name}")) == "done"
               and os.stat(f"/proc/{name}").st_uid != os.getuid()],
    "proc": [name for name in ("meminfo", "sys", "kallsyms") if os.path.exists(f"/proc/{name}")],
}), file=sys.stderr)
"""


def bars_devices(disk):
    """Whether this machine can deny a device to any service."""
    reads = []
    for policy in ("auto", "closed"):
        write("/run/systemd/system/reader.service", f"[Service]\nType=oneshot\nDevicePolicy={policy}\nExecStart=/bin/dd if={disk} of=/dev/null count=1\n")
        systemctl("daemon-reload")
        reads.append(systemctl("start", "reader.service", ok=False).returncode == 0)
        systemctl("reset-failed", "reader.service", ok=False)
    check(reads[0], "the disk cannot be read even without a policy")
    return not reads[1]


def test_what_the_service_itself_may_not_do():
    """A program in place of the server, with the server's user and sandbox, attempts the actions of a compromised
    server."""
    disk = os.environ.get("DISK", "")
    write("/usr/local/libexec/probe.py", PROBE)
    os.chmod("/usr/local/libexec/probe.py", 0o755)
    if disk:
        os.chmod(disk, 0o666)  # The mode lets any user open the disk, so that only the unit can refuse.
    drop_in(f"ExecStartPre=/usr/bin/python3 /usr/local/libexec/probe.py {disk}")
    systemctl("restart", "fairq.service")
    said = json.loads(journal().rsplit("PROBE", 1)[1].splitlines()[0])
    drop_in("")
    systemctl("restart", "fairq.service")
    check(said["uid"] == pwd.getpwnam("fairq").pw_uid, f"it runs as {said['uid']}")
    check(said["core"] == [0, 0], f"core dumps hold tenants' data: {said['core']}")
    check((said["the null device"], said["its own state"]) == ("done", "done"), said)
    for what in ("/etc", "/usr", "/srv", "shadow", "home", "root", "packets", "netlink"):
        check(said[what] != "done", f"{what}: {said}")
    check(not said["others"], f"it sees other users' processes: {said['others']}")
    # A container may be unable to deny devices; then no unit can.
    barred = disk and bars_devices(disk)
    if barred:
        check(said["a disk that nobody named"] == "Operation not permitted", said["a disk that nobody named"])
    limits = {name: show(name) for name in ("TasksMax", "MemoryMax", "DevicePolicy", "ProcSubset")}
    check(limits["TasksMax"].isdigit() and limits["MemoryMax"].isdigit(), limits)
    check((limits["DevicePolicy"], limits["ProcSubset"]) == ("closed", "pid"), limits)
    proc = said["proc"] or "processes only"
    return f"a disk that nobody named: {'refused' if barred else 'not tried, nothing bars devices here'}; of /proc it sees {proc}"


def test_it_comes_before_other_work():
    # The thread that queries file systems for their maps starts with the first such request.
    run("nbdinfo", "--map", URI.format("db"))
    nice = {}
    for thread in os.listdir(f"/proc/{pid()}/task"):
        with open(f"/proc/{pid()}/task/{thread}/comm", encoding="ascii") as name:
            nice[thread] = name.read().strip(), os.getpriority(os.PRIO_PROCESS, int(thread))
    behind = {(name, priority) for name, priority in nice.values() if priority != -10}
    check(behind == {("fairq-survey", 0)}, f"not all but one have priority -10: {nice}")


def test_it_reads_its_configuration_again():
    before = pid()
    configure(weight=500)
    systemctl("reload", "fairq.service")
    check(weight("db") == 500, f"the weight is {weight('db')}")
    configure(weight="\"many\"")
    refused = systemctl("reload", "fairq.service", ok=False)
    check(refused.returncode != 0, "a bad file is no success")
    check(f"nothing has changed: {CONFIG}:10:10: weight" in journal(), f"the journal names no line: {journal()[-600:]}")
    check(weight("db") == 500 and pid() == before and show("ActiveState") == "active", "nothing has changed")
    configure(weight=200)
    os.kill(before, signal.SIGHUP)
    until(lambda: weight("db") == 200, 10, "SIGHUP does the same")


def test_a_stuck_server_is_restarted():
    drop_in("WatchdogSec=2s\nTimeoutAbortSec=1s")
    systemctl("restart", "fairq.service")
    # Longer than the watchdog's time.
    until(lambda: ctl("status")["uptime_s"] > 3, 30, "three seconds pass")
    before = pid()
    check(show("NRestarts") == "0", "a healthy server was restarted")
    os.kill(before, signal.SIGSTOP)
    until(lambda: pid() not in (0, before), 20, "systemd has started another")
    check(exports() == ["db", "web"], "it serves again")
    check("atchdog" in journal(), "the journal says why")
    drop_in("")
    systemctl("reset-failed", "fairq.service", ok=False)


def greeting():
    """The first bytes that a client receives; empty if the server that accepted it ended meanwhile."""
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(10)
        client.connect(SOCKET)
        with contextlib.suppress(ConnectionError):
            return client.recv(8)
    return b""


def test_clients_wait_while_it_restarts():
    """No client is refused, and none is disconnected twice. A client that connects between two servers waits. A client that the
    ending server has accepted is disconnected like all its connections: NBD cannot hand a connection to another server, neither
    during a handshake nor later. But that server accepts no more clients, so a client that reconnects reaches the next one."""
    systemctl("restart", "fairq.service")
    heard = 0
    for _ in range(3):
        child = subprocess.Popen(["systemctl", "restart", "fairq.service"])
        while child.poll() is None:
            check((greeting() or greeting()) == b"NBDMAGIC", "a client that came again was sent away again")
            heard += 1
        check(child.returncode == 0, "it restarts")
        check(greeting() == b"NBDMAGIC", "it serves again")
    check(heard >= 3, f"{heard}: clients are taken in all the time")


def test_a_socket_of_its_own_survives_a_crash():
    """A socket that the server has made is in systemd's store as well: a client that connects while no server runs waits for the
    next one, and is not refused. A server that ends normally removes the socket from the store."""
    own = ("127.0.0.1", 10809)
    configure(listen=["unix:/run/fairq.sock", "tcp:{}:{}".format(*own)])
    drop_in("RestartSec=2s")
    systemctl("restart", "fairq.service")
    # The server sends the socket before it says that it is ready; systemd may count it after that.
    until(lambda: show("NFileDescriptorStore") == "1", 10, "the socket is in the store")
    before = pid()
    os.kill(before, signal.SIGKILL)
    until(lambda: show("SubState") == "auto-restart", 10, "no server is there")
    with socket.create_connection(own, timeout=60) as client:
        check(client.recv(8) == b"NBDMAGIC", "the next server greets the client")
    check(pid() not in (0, before), "it is another one")
    configure()
    systemctl("restart", "fairq.service")
    until(lambda: show("NFileDescriptorStore") == "0", 10, "no socket is left in the store")
    drop_in("")
    systemctl("restart", "fairq.service")


@contextlib.contextmanager
def a_client_that_works():
    """A client that writes and reads on one connection until the block ends; gives its count of rounds, as a list of one."""
    page, rounds, over, errors = 4096, [0], threading.Event(), []

    def work():
        try:
            client = nbd.Client(SOCKET, "web")
            while not over.is_set():
                data = rounds[0].to_bytes(8, "little") * (page // 8)
                place = rounds[0] % 256 * page
                check(client.ask(nbd.WRITE, place, data=data)[0] == 0, "a write")
                check(client.ask(nbd.READ, place, page) == (0, data), "what was written is not there")
                rounds[0] += 1
            client.close()
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        until(lambda: rounds[0] > 0 or errors, 10, "the client works")
        yield rounds
    finally:
        over.set()
        thread.join()
    check(not errors, f"the client was disturbed: {errors}")


def test_an_upgrade_keeps_clients_and_settings():
    """The package of another version is installed under load: the new program takes over in the unit's sandbox, as the same process,
    and systemd notices nothing but that it is ready. Later upgrades do the same."""
    next_package = next_version("/tmp/packages/" + os.listdir("/tmp/packages")[0])
    run("fairq", "ctl", "weight", "db", "777")
    before, restarts = pid(), show("NRestarts")
    with a_client_that_works() as rounds:
        said = run("dpkg", "-i", next_package).stdout
        check("the running server was upgraded from 0.1.0, with its clients" in said, said)
        for _ in range(2):
            check(weight("db") == 777, f"the weight is {weight('db')}")
            run("fairq", "ctl", "upgrade")
        done = rounds[0]
        until(lambda: rounds[0] > done + 1, 10, "the client goes on")
    check((pid(), show("NRestarts"), show("ActiveState")) == (before, restarts, "active"), journal()[-1500:])
    check(os.readlink(f"/proc/{pid()}/exe") == "/usr/bin/fairq", "it runs the new program")
    check(exports() == ["db", "web"], "new clients come")
    test_its_threads_are_io_flushers_or_the_log_says_that_they_are_not()
    test_it_comes_before_other_work()


def test_it_finishes_before_it_stops():
    load = rig.start(rig.fio_args(URI.format("web"), rw="write", bs="64k", iodepth=8, size="32M", time_based=1, runtime=30))
    until(lambda: any(tenant["in_flight"] for tenant in ctl("tenants")), 10, "something is in flight")
    systemctl("stop", "fairq.socket", "fairq.service")
    check((show("Result"), show("ExecMainStatus"), show("ActiveState")) == ("success", "0", "inactive"), journal()[-600:])
    load.kill()
    load.communicate()
    check(not os.path.exists("/run/fairq"), "its runtime directory is gone")


def test_a_bad_configuration_is_not_tried_again():
    configure(weight="\"many\"")
    systemctl("start", "fairq.socket")
    check(systemctl("start", "fairq.service", ok=False).returncode != 0, "it starts")
    until(lambda: show("ActiveState") == "failed", 10, "it has failed")
    check((show("ExecMainStatus"), show("NRestarts")) == ("2", "0"), f"{show('ExecMainStatus')} {show('NRestarts')}")
    configure()
    systemctl("reset-failed", "fairq.service", "fairq.socket")
    systemctl("restart", "fairq.socket")
    check(exports() == ["db", "web"], "it serves again")


def test_a_block_device_behind_it():
    disk = os.environ.get("DISK")
    if not disk:
        raise rig.Skip("no loop device")
    run("chgrp", "disk", disk)
    os.chmod(disk, 0o660)
    configure(path=disk)
    check(systemctl("restart", "fairq.service", ok=False).returncode != 0, "it opens a disk that the unit does not name")
    systemctl("stop", "fairq.service", "fairq.socket", ok=False)
    systemctl("reset-failed", "fairq.service", "fairq.socket", ok=False)
    drop_in(f"DeviceAllow={disk} rw\nSupplementaryGroups=disk")
    systemctl("start", "fairq.socket")
    systemctl("restart", "fairq.service")
    rig.fio(URI.format("db"), rw="write", bs="64k", iodepth=4, size="4M", verify="crc32c", do_verify=1)
    configure()
    drop_in("")
    systemctl("restart", "fairq.service")


def test_its_logs_are_json():
    ours = [line for line in journal().splitlines() if line.startswith("{")]
    check(len(ours) > 5, f"{len(ours)} lines")
    for line in ours:
        check({"timestamp", "level"} <= set(json.loads(line)), line)


def test_it_is_removed_and_the_data_stay():
    run("dpkg", "--purge", "fairq")
    check(not os.path.exists("/usr/bin/fairq") and show("LoadState") == "not-found", "it is gone")
    check(os.path.getsize("/var/lib/fairq/disk.img") == 64 << 20 and os.path.exists(CONFIG), "data and configuration are there")


def main():
    counts = {"passed": 0, "failed": 0, "skipped": 0}
    with contextlib.suppress(FileNotFoundError):
        os.remove("/etc/fairq/fairq.toml")
    for name, test in [(n[5:], f) for n, f in globals().items() if n.startswith("test_")]:
        if len(sys.argv) > 1 and name not in sys.argv[1:]:
            continue
        began = time.monotonic()
        try:
            note, verdict = test() or "", "passed"
        except rig.Skip as reason:
            note, verdict = str(reason), "skipped"
        except rig.Failed as reason:
            note, verdict = str(reason), "failed"
        except Exception:
            note, verdict = traceback.format_exc().strip(), "failed"
        if verdict == "failed":
            configure()
            systemctl("reset-failed", ok=False)
        counts[verdict] += 1
        word = {"passed": "PASS", "failed": "FAIL", "skipped": "SKIP"}[verdict]
        print(f"{word} {name} ({time.monotonic() - began:.1f} s){': ' if note else ''}{note}", flush=True)
    if counts["failed"]:
        print(journal()[-4000:])
    print("service: " + ", ".join(f"{count} {what}" for what, count in counts.items()), flush=True)


if __name__ == "__main__":
    main()
