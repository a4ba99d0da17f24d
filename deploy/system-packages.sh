#!/usr/bin/env bash
# Installs the named Debian packages where they are missing; says what to do where it may not.
set -euo pipefail
missing=()
for package in "$@"; do
  dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'install ok installed' || missing+=("$package")
done
[ ${#missing[@]} -eq 0 ] && exit 0
root=()
if [ "$(id -u)" -ne 0 ]; then
  if sudo -n true 2>/dev/null; then root=(sudo -n); else
    echo "error: not installed: ${missing[*]}" >&2
    echo "try: sudo apt-get install ${missing[*]}" >&2
    exit 1
  fi
fi
export DEBIAN_FRONTEND=noninteractive
"${root[@]}" apt-get update -q >/dev/null
"${root[@]}" apt-get install -y -q --no-install-recommends "${missing[@]}" >/dev/null
