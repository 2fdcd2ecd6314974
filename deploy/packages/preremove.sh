#!/bin/sh
# Before the package is removed, or replaced by another version. Debian calls it with
# "remove" or "upgrade", RPM with 0 or 1.
set -e
[ -d /run/systemd/system ] || exit 0
case "$1" in
remove | 0) systemctl disable --now holdfast.service ;;
esac
