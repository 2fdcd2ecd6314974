#!/bin/sh
# After the package was removed. The data stays, until Debian's purge. RPM has no purge:
# there the data is the administrator's to delete.
set -e
if [ "$1" = purge ]; then
  rm -rf /var/lib/holdfast
fi
[ ! -d /run/systemd/system ] || systemctl daemon-reload
