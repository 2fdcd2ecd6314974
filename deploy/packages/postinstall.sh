#!/bin/sh
# After the installation and after each upgrade. Debian calls it with "configure" and the
# version that was there before, RPM with 1 (first installation) or 2 (upgrade).
set -e

getent passwd holdfast >/dev/null ||
  useradd --system --user-group --no-create-home --home-dir /var/lib/holdfast --shell /usr/sbin/nologin holdfast
install -d -o holdfast -g holdfast -m 0700 /var/lib/holdfast
chown root:holdfast /etc/holdfast /etc/holdfast/holdfast.yaml
chmod 0750 /etc/holdfast
chmod 0640 /etc/holdfast/holdfast.yaml

[ -d /run/systemd/system ] || exit 0
systemctl daemon-reload
case "$1" in
configure) # as Debian's packages do: a new service starts, one that runs starts again
  if [ -z "$2" ]; then
    systemctl enable --now holdfast.service
  else
    systemctl try-restart holdfast.service
  fi
  ;;
2) systemctl try-restart holdfast.service ;;
esac
