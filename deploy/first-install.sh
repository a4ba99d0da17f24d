#!/usr/bin/env bash
# Says what the first installation does and how long it takes, before pip is silent for a minute or more.
# Usage: deploy/first-install.sh .venv LOCK...
set -euo pipefail
venv=$1
shift
[ -e "$venv/.runtime" ] && exit 0
packages=$(grep -h '^[A-Za-z0-9].*==' "$@" | wc -l)
echo "The first time: installs $packages locked packages into $venv, about 400 MB, in one to three minutes." >&2
echo "Once only: from the next time on it starts at once." >&2
