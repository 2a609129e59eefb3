# Inside the guest; see run.
set -u
die() { echo "FAIL: $*"; tail -n 30 /tmp/fairq.log 2>/dev/null; dmesg | tail -n 8; exit 1; }
modprobe -a ublk_drv ext4 2>/dev/null || die "no ublk_drv"
ctl() { "$FAIRQ" ctl --control /tmp/c "$@"; }
# serve ARGUMENT…: starts the server and waits for its control socket.
serve() {
  "$FAIRQ" serve --listen ublk --control /tmp/c "$@" >> /tmp/fairq.log 2>&1 &
  server=$!
  for _ in $(seq 200); do ctl status > /dev/null 2>&1 && return; sleep 0.1; done
  die "the server does not start"
}
# device NAME: waits for a tenant's device, and prints it.
device() {
  local found
  for _ in $(seq 200); do
    found=$(readlink -f "/dev/fairq/$1") && [ -b "$found" ] && { echo "$found"; return; }
    sleep 0.1
  done
  die "there is no device of $1" >&2
}
stop() { kill -TERM $server; wait $server || die "the server ended with $?"; }

files() {
  serve --device file,path=/tmp/pool,size=192M,create --tenant b=size:64M,uid:1 --tenant a=size:64M
  a=$(device a) b=$(device b) || exit 1
  [ "$(stat -c %u "$b")" = 1 ] || die "$b does not belong to user 1"
  mkfs.ext4 -q "$a" && mount "$a" /mnt || die "no file system on $a"
  fio --name=v --directory=/mnt --size=16M --rw=randrw --bs=4k-64k --ioengine=libaio --iodepth=16 --direct=1 \
    --verify=crc32c --do_verify=1 --fsync=32 > /tmp/fio 2>&1 || die "fio: $(cat /tmp/fio)"
  fstrim /mnt || die "no trim"
  ctl tenants --json > /tmp/t; grep -q ublk /tmp/t || die "no attachment: $(cat /tmp/t)"
  ctl resize a 96M || die "no resize"
  for _ in $(seq 50); do [ "$(blockdev --getsize64 "$a")" = $((96 << 20)) ] && break; sleep 0.1; done
  [ "$(blockdev --getsize64 "$a")" = $((96 << 20)) ] || die "the device has $(blockdev --getsize64 "$a") bytes"
  resize2fs "$a" > /dev/null 2>&1 && dd if=/dev/urandom of=/mnt/big bs=1M count=60 2> /dev/null || die "no room after the resize"
  sum=$(sha256sum < /mnt/big)
  umount /mnt
  dd if=/dev/urandom of="$b" bs=1M count=4 oflag=direct 2> /dev/null || die "no write"
  ctl tenants --json > /tmp/t
  [ "$(grep -A3 '"requests"' /tmp/t | grep -c '"writes": [1-9]')" = 2 ] || die "requests are not counted: $(cat /tmp/t)"
  blkdiscard -z -o 1M -l 1M "$b" && blkdiscard -o 2M -l 1M "$b" || die "no zeroes or discard"
  dd if="$b" bs=1M skip=1 count=1 iflag=direct 2> /dev/null | cmp -s -n 1048576 - /dev/zero || die "no zeroes"
  dd if="$b" bs=1M count=1 iflag=direct 2> /dev/null | cmp -s -n 1048576 - /dev/zero && die "zeroes beside the range"
  ctl rename a alpha && a=$(device alpha) || die "no new name"
  stop
  serve --device file,path=/tmp/pool,size=192M,create --tenant b=size:64M,uid:1 --tenant alpha=size:96M
  mount "$(device alpha)" /mnt || die "no file system after a restart"
  [ "$sum" = "$(sha256sum < /mnt/big)" ] || die "other data after a restart"
  umount /mnt
  ctl remove b || die "no removal"
  for _ in $(seq 50); do [ -e /dev/fairq/b ] || break; sleep 0.1; done
  [ ! -e /dev/fairq/b ] || die "the device of a removed tenant is there"
  stop
}

shares() {
  serve --device paced,size=64M,iops=400,bandwidth=0,latency=2ms --policy mqfq --tenant a=weight:300 --tenant b=weight:100
  a=$(device a) b=$(device b) || exit 1
  fio --name=a --filename="$a" --rw=randread --bs=4k --ioengine=libaio --iodepth=64 --direct=1 --time_based --runtime=20 \
    --ramp_time=5 --output-format=terse > /tmp/fa &
  first=$!
  fio --name=b --filename="$b" --rw=randread --bs=4k --ioengine=libaio --iodepth=64 --direct=1 --time_based --runtime=20 \
    --ramp_time=5 --output-format=terse > /tmp/fb
  wait $first || die "fio: $(cat /tmp/fa)"
  one=$(cut -d';' -f8 /tmp/fa) other=$(cut -d';' -f8 /tmp/fb)
  echo "a $one, b $other requests a second"
  [ $((one * 100)) -gt $((other * 270)) ] && [ $((one * 100)) -lt $((other * 330)) ] || die "shares of 3:1"
  stop
}

# A tenant that behaves badly beside a busy one: the scheduler's decisions keep the bound of fair queueing (tests/clients/law.py),
# and no request of the other one fails.
hostile() {
  serve --device paced,size=128M,bandwidth=4M,iops=1000,latency=1ms --policy "$(law 'print(law.POLICY)'),least-cost=4k" --shards 1 \
    --tenant good=size:48M --tenant bad=size:48M
  good=$(device good) bad=$(device bad) || exit 1
  fio --name=good --filename="$good" --rw=randread --bs=4k --ioengine=libaio --iodepth=128 --direct=1 --time_based --runtime=100000 \
    > /tmp/fg 2>&1 &
  load=$!
  for kind in large flushes discards vanishing; do
    case $kind in
      large) job="--rw=randread --bs=1M --iodepth=16 --numjobs=4" ;;
      flushes) job="--rw=randwrite --bs=512 --iodepth=32 --numjobs=2 --fsync=1" ;;
      discards) job="--rw=randtrim --bs=8M --iodepth=32" ;;
      vanishing) job="--rw=randwrite --bs=64k --iodepth=64" ;;
    esac
    while :; do
      timeout -s KILL "$([ $kind = vanishing ] && echo 1 || echo 1000)" \
        fio --name=bad --filename="$bad" $job --ioengine=libaio --direct=1 --time_based --runtime=100000 > /tmp/fb 2>&1
    done 2> /dev/null &
    loop=$!
    law "cost = lambda row: max(4096, int(row['bytes']) // (256 if row['op'] in ('discard', 'write-zeroes') else 1))
law.shares('/tmp/c', {'good': 100, 'bad': 100}, 1 << 20, seconds=1, cost=cost, at_least=('bad',))" || die "shares beside $kind"
    kill $loop; pkill -KILL -f name=bad; wait $loop 2> /dev/null
    kill -0 $load 2> /dev/null || die "the good load ended beside $kind: $(cat /tmp/fg)"
    echo "shares beside $kind"
  done
  kill -INT $load; wait $load
  grep -q "err= 0" /tmp/fg || die "the good load: $(cat /tmp/fg)"
  stop
}

# law CODE: Python with the law of shares.
law() { PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=../clients FAIRQ="$FAIRQ" python3 -c "import law
$1"; }

life() {
  args="--device file,path=/tmp/pool,size=160M,create --tenant a=size:64M --tenant b=size:64M"
  serve $args
  a=$(device a) || exit 1
  fio --name=v --filename="$a" --size=64M --rw=randwrite --bs=4k-64k --ioengine=libaio --iodepth=16 --direct=1 --time_based \
    --runtime=100000 --verify=crc32c --verify_backlog=64 --verify_fatal=1 > /tmp/fio 2>&1 &
  load=$!
  for turn in $(seq "$TIMES"); do
    ctl upgrade > /tmp/u 2>&1 || die "upgrade $turn: $(cat /tmp/u)"
    sleep 0.3
    kill -0 $load 2> /dev/null || die "fio ended after upgrade $turn: $(cat /tmp/fio)"
  done
  echo "$TIMES upgrades under load"
  for turn in $(seq "$TIMES"); do
    kill -9 $server; wait $server 2> /dev/null
    sleep 0.2
    serve $args
    sleep 0.5
    kill -0 $load 2> /dev/null || die "fio ended after kill $turn: $(cat /tmp/fio)"
  done
  echo "$TIMES kills under load"
  kill -INT $load; wait $load
  grep -qi "verify.*bad\|error=" /tmp/fio && die "fio: $(cat /tmp/fio)"
  ls /dev/ublkb* | wc -l | grep -qx 2 || die "$(ls /dev/ublk*)"
  for turn in $(seq $((TIMES * 5))); do
    ctl add c=size:16M > /tmp/u 2>&1 && device c > /dev/null && ctl remove c || die "device $turn: $(cat /tmp/u)"
  done
  # Without b in the configuration its device must be removed, because its range may be given to another tenant.
  stop
  serve --device file,path=/tmp/pool,size=160M,create --tenant a=size:64M
  for _ in $(seq 50); do [ "$(ls /dev/ublkb* | wc -l)" = 1 ] && break; sleep 0.1; done
  [ "$(ls /dev/ublkb* | wc -l)" = 1 ] || die "the device of a tenant that is gone: $(ls /dev/ublk*)"
  stop
}
