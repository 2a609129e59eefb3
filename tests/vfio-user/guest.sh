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
  # The numbers of controllers are those of probes, which may end in any order.
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
