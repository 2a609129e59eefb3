# Inside the guest; see run.
set -u
die() { echo "FAIL: $*"; dmesg | tail -n 8; exit 1; }
modprobe -a nvme ext4 2> /dev/null || die "no driver"
# disk NUMBER: waits for the disk of a controller.
disk() {
  for _ in $(seq 200); do [ -b "/dev/nvme$1n1" ] && { echo "/dev/nvme$1n1"; return; }; sleep 0.1; done
  die "there is no disk of controller $1" >&2
}
verified() {
  fio --name=v --directory=/mnt --size=16M --rw=randrw --bs=4k-64k --ioengine=libaio --iodepth=16 --direct=1 \
    --verify=crc32c --do_verify=1 --fsync=32 "$@" > /tmp/fio 2>&1 || die "fio: $(cat /tmp/fio)"
}

files() {
  a=$(disk 0) || exit 1
  [ "$(cat /sys/class/nvme/nvme0/model | tr -d ' ')" = fairq ] || die "model $(cat /sys/class/nvme/nvme0/model)"
  [ "$(cat /sys/class/nvme/nvme0/queue_count)" -gt 2 ] || die "queues: $(cat /sys/class/nvme/nvme0/queue_count)"
  grep -q "nvme0q1" /proc/interrupts || die "no interrupts: $(cat /proc/interrupts)"
  dd if=/dev/urandom of="$a" bs=1M count=4 oflag=direct 2> /dev/null || die "no write"
  blkdiscard -f -z -o 1M -l 1M "$a" && blkdiscard -f -o 2M -l 1M "$a" || die "no zeroes or discard"
  dd if="$a" bs=1M skip=1 count=1 iflag=direct 2> /dev/null | cmp -s -n 1048576 - /dev/zero || die "no zeroes"
  dd if="$a" bs=1M count=1 iflag=direct 2> /dev/null | cmp -s -n 1048576 - /dev/zero && die "zeroes beside the range"
  mkfs.ext4 -q "$a" && mount "$a" /mnt || die "no file system on $a"
  verified
  fstrim /mnt || die "no trim"
  touch /run/fairq/resize
  for _ in $(seq 200); do [ "$(blockdev --getsize64 "$a")" = $((96 << 20)) ] && break; sleep 0.1; done
  [ "$(blockdev --getsize64 "$a")" = $((96 << 20)) ] || die "the disk has $(blockdev --getsize64 "$a") bytes"
  resize2fs "$a" > /dev/null 2>&1 && dd if=/dev/urandom of=/mnt/big bs=1M count=60 2> /dev/null || die "no room after the resize"
  # The driver deletes its queues, and creates them again, while commands are under way.
  verified --time_based --runtime=20 &
  load=$!
  for _ in 1 2 3; do sleep 4; echo 1 > /sys/class/nvme/nvme0/reset_controller || die "no reset"; done
  wait $load || die "fio ended after a reset"
  sha256sum < /mnt/big > /mnt/sum
  umount /mnt
}

again() {
  a=$(disk 0) || exit 1
  mount "$a" /mnt || die "no file system"
  [ "$(sha256sum < /mnt/big)" = "$(cat /mnt/sum)" ] || die "other data"
  umount /mnt
}

shares() {
  a=$(disk 0) b=$(disk 1) || exit 1
  # The controllers are numbered in the order in which their probes end, which may be any order.
  case $(tr -d ' ' < /sys/class/nvme/nvme0/serial) in b) c=$a a=$b b=$c ;; esac
  for one in "$a" "$b"; do
    fio --name=x --filename="$one" --rw=randread --bs=4k --ioengine=libaio --iodepth=64 --direct=1 --time_based --runtime=20 \
      --ramp_time=5 --output-format=terse > "/tmp/f${one##*/}" &
  done
  wait
  one=$(cut -d';' -f8 "/tmp/f${a##*/}") other=$(cut -d';' -f8 "/tmp/f${b##*/}")
  echo "a $one, b $other requests a second"
  [ $((one * 100)) -gt $((other * 270)) ] && [ $((one * 100)) -lt $((other * 330)) ] || die "shares of 3:1"
}

write_without_end() {
  touch /run/fairq/loaded
  fio --name=w --directory=/mnt --size=32M --rw=randwrite --bs=4k-64k --ioengine=libaio --iodepth=16 --direct=1 --time_based \
    --runtime=1000 > /dev/null 2>&1
}

load() {
  a=$(disk 0) || exit 1
  mkfs.ext4 -q "$a" && mount "$a" /mnt || die "no file system on $a"
  dd if=/dev/urandom of=/mnt/kept bs=1M count=20 2> /dev/null && sha256sum < /mnt/kept > /mnt/sum && sync || die "no data"
  write_without_end
}

check() {
  a=$(disk 0) || exit 1
  mount "$a" /mnt || die "no file system"
  [ "$(sha256sum < /mnt/kept)" = "$(cat /mnt/sum)" ] || die "other data"
  umount /mnt
  e2fsck -fn "$a" > /tmp/fsck 2>&1 || die "fsck: $(cat /tmp/fsck)"
  mount "$a" /mnt || die "no file system after fsck"
  verified
}

reload() {
  check
  write_without_end
}

# An endless load whose data are verified, until the file "enough" is there.
verify() {
  a=$(disk 0) || exit 1
  fio --name=v --filename="$a" --size=32M --rw=randwrite --bs=4k-64k --ioengine=libaio --iodepth=16 --direct=1 --time_based \
    --runtime=100000 --verify=crc32c --verify_backlog=64 --verify_fatal=1 > /tmp/fio 2>&1 &
  load=$!
  touch /run/fairq/loaded
  until [ -e /run/fairq/enough ]; do
    kill -0 $load 2> /dev/null || die "fio ended: $(cat /tmp/fio)"
    sleep 0.2
  done
  kill -INT $load
  wait $load
  grep -qi "verify.*bad\|error=" /tmp/fio && die "fio: $(cat /tmp/fio)"
  grep -q "issued rwts: total=[1-9][0-9]*,[1-9][0-9]*" /tmp/fio || die "nothing was verified: $(cat /tmp/fio)"
  dmesg | grep -i "nvme.*\(timeout\|error\|reset\)" && die "the driver has noticed something"
  grep "issued rwts" /tmp/fio
}

# nvme ARGUMENTS of which each is to succeed.
asked() { nvme "$@" > /tmp/nvme 2>&1 || die "nvme $*: $(cat /tmp/nvme)"; }
# shown TEXT: the last command has shown this.
shown() { grep -q "$1" /tmp/nvme || die "no $1: $(cat /tmp/nvme)"; }

commands() {
  disk 0 > /dev/null || exit 1
  command -v nvme > /dev/null || { echo "SKIP nvme-cli is not installed (tests/setup)"; return; }
  asked id-ctrl /dev/nvme0; shown "^mn[[:space:]]*: fairq"; shown "^sn  *: a "
  asked id-ns /dev/nvme0n1; shown "^nsze *: 0x20000$"
  asked list-ns /dev/nvme0; shown "0x1"
  asked smart-log /dev/nvme0; shown "^critical_warning[[:space:]]*: 0"
  asked error-log /dev/nvme0 -e 4; shown "Error Log Entries"
  asked effects-log /dev/nvme0 --csi=0; shown "Get Log Page"
  asked fw-log /dev/nvme0
  asked get-feature /dev/nvme0 -f 1 -H; shown "Arbitration"
  asked set-feature /dev/nvme0 -f 1 --value=0x08020007
  asked get-feature /dev/nvme0 -f 1; shown "0x0*8020007"
  asked get-feature /dev/nvme0 -f 6
  asked get-feature /dev/nvme0 -f 7; shown "Number of Queues"
  asked flush /dev/nvme0 -n 1
  nvme format /dev/nvme0n1 -f > /tmp/nvme 2>&1 && die "formatted"
  echo "nvme-cli: identify, logs, features and flush"
}

device() {
  a=$(disk 0) || exit 1
  [ "$(blockdev --getsize64 "$a")" = $((256 << 20)) ] || die "size $(blockdev --getsize64 "$a")"
  mkfs.ext4 -q "$a" && mount "$a" /mnt || die "no file system on $a"
  verified
  umount /mnt
  fio --name=x --filename="$a" --rw=randread --bs=4k --ioengine=libaio --iodepth=64 --numjobs=2 --group_reporting --direct=1 \
    --time_based --runtime=15 --ramp_time=3 --output-format=terse > /tmp/fio || die "fio: $(cat /tmp/fio)"
  iops=$(cut -d';' -f8 /tmp/fio)
  echo "$iops requests a second of 3750"
  [ "$iops" -gt 1000 ] && [ "$iops" -lt 3900 ] || die "not the speed of the drive"
}
