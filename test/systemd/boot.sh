#!/bin/sh
# boot.sh TREE DIR: becomes systemd as the first process of a machine whose files are TREE
# below DIR/upper. It is called in namespaces (mounts, processes, host name, IPC, control
# groups) and a control group of its own.
#
# The kernel and the network are the caller's. So the kernel's settings are read-only to the
# machine, and the network's, the clock, modules and auditing out of its reach.
set -eu
tree=$1 dir=$2 root=$2/root

mount --make-rprivate /
mount -t overlay -o "lowerdir=$tree,upperdir=$dir/upper,workdir=$dir/work" overlay "$root"

mount -t proc -o nosuid,nodev,noexec proc "$root/proc"
mount --bind "$root/proc/sys" "$root/proc/sys"
mount -o remount,bind,ro "$root/proc/sys"
mount -t sysfs -o nosuid,nodev,noexec sysfs "$root/sys"
mount -t cgroup2 -o nosuid,nodev,noexec cgroup2 "$root/sys/fs/cgroup"

mount -t tmpfs -o mode=755,nosuid tmpfs "$root/dev"
for d in null zero full random urandom tty fuse autofs; do
  if [ -e "/dev/$d" ]; then
    cp -a "/dev/$d" "$root/dev/$d"
  fi
done
ln -s /proc/self/fd "$root/dev/fd"
ln -s pts/ptmx "$root/dev/ptmx"
mkdir "$root/dev/pts" "$root/dev/shm"
mount -t devpts -o newinstance,ptmxmode=666,mode=620,nosuid,noexec devpts "$root/dev/pts"
mount -t tmpfs -o mode=1777,nosuid,nodev tmpfs "$root/dev/shm"
mount -t tmpfs -o mode=755,nosuid,nodev tmpfs "$root/run"

# The cache lies on the host's file system: one on the overlay would have no passthrough.
mkdir -p "$root/var/cache/leatfs"
mount --bind "$dir/cache" "$root/var/cache/leatfs"

cd "$root"
mkdir run/host
pivot_root . run/host
umount -l run/host
rmdir run/host
exec setpriv --bounding-set=-net_admin,-net_raw,-sys_time,-sys_module,-sys_rawio,-syslog,-audit_control,-audit_read \
  env -i container=other PATH=/usr/sbin:/usr/bin:/sbin:/bin /sbin/init
