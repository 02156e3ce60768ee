#!/bin/sh
# Makes the zone's root tree at $1: the agent $2, Debian's crun, and the libraries that both need.
# An existing tree is replaced by a rename: zones that run from it keep it until the build after the next.
set -eu
tree=$1
agent=$2
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
for program in "$agent" /usr/bin/crun; do
	# ldd fails for a static program.
	ldd "$program" 2>/dev/null | grep -o '/[^ ]*' || true
done | sort -u | while read -r library; do
	mkdir -p "$new$(dirname "$library")"
	install -m 755 "$library" "$new$library"
done
if [ -e "$tree" ]; then
	rm -rf "$tree.old"
	mv "$tree" "$tree.old"
fi
mv "$new" "$tree"
