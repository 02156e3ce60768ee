#!/bin/sh
# Makes the directory $1, with a libsystemd.so.0 without functions, for Debian's crun.
#
# crun is linked with libsystemd, for a control group manager and a log that zones do not have, and through it with
# five libraries for ciphers and compression.  Their load takes as long as the rest of a short crun command.
# The list of functions is read from crun itself; each function fails with ENOSYS.  If crun does not use libsystemd,
# the directory stays empty.
set -eu
directory=$1
rm -rf "$directory"
mkdir -p "$directory"
cd "$directory"
nm -D --undefined-only /usr/bin/crun | sed -n 's/^ *U \(sd_[a-z0-9_]*\)@@*\(LIBSYSTEMD_[0-9]*\)$/\2 \1/p' | sort >symbols
if [ -s symbols ]; then
	sed 's/.* \(.*\)/int \1(void);\nint \1(void) { return -ENOSYS; }/; 1i #include <errno.h>' symbols >libsystemd.c
	for version in $(cut -d' ' -f1 symbols | uniq); do
		echo "$version { global: $(sed -n "s/^$version \(.*\)/\1;/p" symbols | tr '\n' ' ')};"
	done >versions
	${CC:-cc} -std=c11 -Os -shared -fPIC -nostdlib -s -Wl,-z,noseparate-code -Wl,-soname,libsystemd.so.0 \
		-Wl,--version-script=versions -o libsystemd.so.0 libsystemd.c
fi
rm -f symbols versions libsystemd.c
