#!/bin/sh
# Makes the zone's root tree at $1: the agent $2, Debian's crun, and the libraries of both.  Libraries in the
# directory $3 replace the system's libraries of the same name.
# A rename replaces an existing tree: zones that run from the old tree keep it until the build after the next.
set -eu
tree=$1
agent=$2
instead=$3
new=$tree.new

# Two builds of one checkout may run at the same time.
exec 9>"$tree.lock"
flock 9
rm -rf "$new"
for directory in dev etc lib/modules mnt proc run sys tmp usr/bin var; do
	mkdir -p "$new/$directory"
done
install -m 755 "$agent" "$new/init"
install -m 755 /usr/bin/crun "$new/usr/bin/crun"
beside=$(dirname "$(ldd /usr/bin/crun | grep -o '/[^ ]*/libc\.so[^ ]*')")
for program in "$agent" /usr/bin/crun; do
	# ldd fails for a static program.
	LD_LIBRARY_PATH=$instead ldd "$program" 2>/dev/null | grep -o '/[^ ]*' || true
done | sort -u | while read -r library; do
	case $library in
	"$instead"/*) place=$beside/${library##*/} ;;
	*) place=$library ;;
	esac
	mkdir -p "$new$(dirname "$place")"
	install -m 755 "$library" "$new$place"
done
if [ -e "$tree" ]; then
	rm -rf "$tree.old"
	mv "$tree" "$tree.old"
fi
mv "$new" "$tree"
