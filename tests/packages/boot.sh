#!/bin/sh
# Boots systemd in the tree $1: a machine of its own namespaces, control groups and devices, on this kernel.
# What started it is outside; with the argument "inside" it is process 1 to be.
set -eu
root=$1
name=xenpod-machine-$(basename "$root")

if [ "${2:-}" != inside ]; then
	# Groups of its own, which are roots for the machine.
	for hierarchy in $(awk '$3 ~ /^cgroup2?$/ { print $2 }' /proc/mounts); do
		mkdir -p "$hierarchy/$name"
		for file in cpuset.cpus cpuset.mems; do
			[ ! -e "$hierarchy/$file" ] || cat "$hierarchy/$file" >"$hierarchy/$name/$file"
		done
		echo $$ >"$hierarchy/$name/cgroup.procs"
	done
	exec unshare --mount --uts --ipc --pid --net --cgroup --fork --kill-child --propagation slave "$0" "$root" inside
fi

hierarchies=$(awk '$3 == "cgroup" { print $2 }' /proc/mounts)
unified=$(awk '$3 == "cgroup2" { print $2 }' /proc/mounts)
hostname xenpod-machine
mount --bind "$root" "$root"
cd "$root"
mount -t proc proc proc
mount -t sysfs sysfs sys
if [ -z "$hierarchies" ]; then
	mount -t cgroup2 cgroup2 sys/fs/cgroup
else
	mount -t tmpfs -o mode=755 tmpfs sys/fs/cgroup
	for hierarchy in $hierarchies; do
		folder=sys/fs/cgroup/$(basename "$hierarchy")
		options=$(awk -v at="$hierarchy" '$2 == at { print $4 }' /proc/mounts | tr , '\n' |
			grep -Ev '^(rw|ro|relatime|nosuid|nodev|noexec|xattr|clone_children|release_agent.*)$' | paste -sd ,)
		case $options in name=*) options=none,$options ;; esac
		mkdir "$folder"
		mount -t cgroup -o "$options" cgroup "$folder"
	done
	[ -z "$unified" ] || { mkdir sys/fs/cgroup/unified && mount -t cgroup2 cgroup2 sys/fs/cgroup/unified; }
fi
# Devices: none of the host's but loop devices, and what zones have.
mount -t tmpfs -o mode=755 tmpfs dev
mkdir dev/pts dev/shm dev/net dev/mapper
mount -t devpts -o newinstance,ptmxmode=0666,mode=0620 devpts dev/pts
mount -t tmpfs tmpfs dev/shm
ln -s pts/ptmx dev/ptmx
ln -s /proc/self/fd dev/fd
for node in 'null 1 3' 'zero 1 5' 'full 1 7' 'random 1 8' 'urandom 1 9' 'tty 5 0' 'fuse 10 229' 'net/tun 10 200' \
	'loop-control 10 237'; do
	# shellcheck disable=SC2086  # name, major, minor
	set -- $node
	mknod -m 666 "dev/$1" c "$2" "$3"
done
number=0
while [ $number -lt 256 ]; do
	mknod -m 660 dev/loop$number b 7 $number
	number=$((number + 1))
done
: >dev/console && mount --bind dev/null dev/console
mkdir -p .before
pivot_root . .before
cd /
umount -l /.before
mount --make-rshared /
exec env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin container=other TERM=dumb /lib/systemd/systemd --log-target=journal
