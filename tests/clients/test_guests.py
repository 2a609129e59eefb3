"""Disks of virtual machines (vhost-user-blk), as the small guest of guest.py sees them; `bench/vhost-user` has libblkio as the
client."""

import json
import os
import tempfile

import guest as vm
import nbd
from rig import MI, Server, check, fairq, run, serve, until

BLOCK = 4096


def pattern(number):
    return bytes([number % 251 + 1]) * BLOCK


def sockets(folder):
    path = os.path.join(folder, "guests")
    os.makedirs(path, exist_ok=True)
    return path


def test_a_guest_and_nbd_clients_share_a_disk():
    """What the guest writes is what NBD clients of the tenant read, and the other way round."""
    with tempfile.TemporaryDirectory(prefix="fairq-") as folder:
        place = sockets(folder)
        control = os.path.join(folder, "c")
        with serve("--device", "ram,size=64M", "--tenant", "db=32M", "--listen", f"vhost-user:{place}", "--control", control) as server:
            guest, client = vm.Guest(os.path.join(place, "db.sock")), nbd.Client(server.socket, "db")
            check(guest.capacity() == 32 * MI, "the size of the disk")
            numbers = [guest.submit(vm.WRITE, n * BLOCK, pattern(n)) for n in range(16)]
            check(all(guest.wait(number)[0] == vm.OK for number in numbers), "writes of the guest")
            check(guest.ask(vm.FLUSH) == (vm.OK, b""), "its flush")
            told = json.loads(run(fairq(), "ctl", "--control", control, "--json", "tenants").stdout)[0]["requests"]
            check(told == {"reads": 0, "writes": 16, "others": 1}, f"requests of the guest: {told}")
            for n in range(16):
                check(client.ask(nbd.READ, n * BLOCK, BLOCK) == (0, pattern(n)), f"block {n} as an NBD client reads it")
            check(client.ask(nbd.WRITE, 64 << 10, data=pattern(99))[0] == 0, "a write by NBD")
            check(guest.ask(vm.READ, 64 << 10, length=BLOCK) == (vm.OK, pattern(99)), "the same as the guest reads it")
            check(guest.ask(vm.READ, 32 * MI, length=BLOCK)[0] == vm.FAILED, "a read behind the end")
            check(guest.ask(vm.ID, length=20)[1][:3] == b"db\0", "the disk's name")
            guest.close()
            again = vm.Guest(os.path.join(place, "db.sock"))
            check(again.ask(vm.READ, 0, length=BLOCK) == (vm.OK, pattern(0)), "the next guest reads the data")
            again.close()


def test_a_killed_server_loses_no_request():
    """The server is killed with requests under way, again and again: the guest connects again and gets each answer once."""
    with tempfile.TemporaryDirectory(prefix="fairq-") as folder:
        place, pool = sockets(folder), os.path.join(folder, "pool")
        with open(pool, "wb") as out:
            out.truncate(32 * MI)
        args = ("--device", f"file,path={pool}", "--tenant", "db=16M,max-iops=200", "--listen", f"vhost-user:{place}")
        server, guest, count = Server(folder, *args), None, 0
        try:
            for _ in range(6):
                if guest is None:
                    guest = vm.Guest(os.path.join(place, "db.sock"))
                numbers = [guest.submit(vm.WRITE, (count + n) * BLOCK, pattern(count + n)) for n in range(16)]
                check(guest.wait(numbers[0])[0] == vm.OK, "the first write of a round")
                server.kill()
                server = Server(folder, *args)
                guest.s.close()
                guest.connect(os.path.join(place, "db.sock"))
                check(all(guest.wait(number)[0] == vm.OK for number in numbers[1:]), "writes over a kill -9")
                count += 16
            for n in range(count):
                check(guest.ask(vm.READ, n * BLOCK, length=BLOCK) == (vm.OK, pattern(n)), f"block {n}")
            guest.close()
            check(server.terminate() == 0, "the end of the server")
        finally:
            server.kill()


def test_an_upgrade_keeps_guests():
    """Requests that wait for a cap go on under the next program; the guest stays connected."""
    with tempfile.TemporaryDirectory(prefix="fairq-") as folder:
        place, pool, control = sockets(folder), os.path.join(folder, "pool"), os.path.join(folder, "c")
        with open(pool, "wb") as out:
            out.truncate(32 * MI)
        with serve("--device", f"file,path={pool}", "--tenant", "db=16M,max-iops=100", "--listen", f"vhost-user:{place}",
                   "--control", control, "--shards", "2"):  # fmt: skip

            def ctl(*words):
                return json.loads(run(fairq(), "ctl", "--control", control, "--json", *words).stdout)

            guest, count = vm.Guest(os.path.join(place, "db.sock")), 0
            for _ in range(3):
                numbers = [guest.submit(vm.WRITE, (count + n) * BLOCK, pattern(count + n)) for n in range(16)]
                check(guest.wait(numbers[0])[0] == vm.OK, "the first write of a round")
                ctl("upgrade")
                check(all(guest.wait(number)[0] == vm.OK for number in numbers[1:]), "writes over an upgrade")
                check(guest.ask(vm.FLUSH)[0] == vm.OK, "a flush after it")
                check(guest.capacity() == 16 * MI, "the next program answers on the same connection")
                count += 16
            for n in range(count):
                check(guest.ask(vm.READ, n * BLOCK, length=BLOCK) == (vm.OK, pattern(n)), f"block {n}")
            [attachment] = ctl("tenants")[0]["attachments"]
            check(attachment["connected"] and attachment["queues"] == 1, f"the attachment: {attachment}")
            guest.close()
            until(lambda: not ctl("tenants")[0]["attachments"][0]["connected"], 60, "the guest has gone")


def test_guests_that_break_the_rules():
    """Random rings, and guests that disappear in the middle of everything: their devices fail, and a well-behaved guest works on."""
    with tempfile.TemporaryDirectory(prefix="fairq-") as folder:
        place = sockets(folder)
        with serve("--device", "ram,size=64M", "--tenant", "good=16M", "--tenant", "bad=16M", "--listen", f"vhost-user:{place}",
                   "--policy", "mqfq"):  # fmt: skip
            good = vm.Guest(os.path.join(place, "good.sock"))
            failed = 0
            for seed in range(60):
                bad = vm.Guest(os.path.join(place, "bad.sock"))
                if seed % 4 == 3:
                    bad.submit(vm.WRITE, 0, pattern(seed))
                if seed % 10 == 9:
                    os.ftruncate(bad.memory, vm.REQUESTS)
                bad.scribble(seed)
                for n in range(4):
                    check(good.ask(vm.WRITE, n * BLOCK, pattern(seed + n))[0] == vm.OK, "a write of the good guest")
                    check(good.ask(vm.READ, n * BLOCK, length=BLOCK) == (vm.OK, pattern(seed + n)), "and its data")
                failed += bad.has_failed()
                os.ftruncate(bad.memory, vm.MEMORY)
                bad.close()
            check(failed > 30, f"only {failed} of 60 guests were found out")
            good.close()
