#!/usr/bin/env bash
# Installs locked packages into a virtual environment: with uv, or with pip where uv is not to be had.
# Usage: deploy/install-packages.sh VENV LOCK... [.]     (with "." this checkout as well, editable)
set -euo pipefail
venv=$1
shift
files=() locks=() checkout=()
for each in "$@"; do
  if [ "$each" = . ]; then checkout=(--no-build-isolation --editable .); else files+=("$each") locks+=(-r "$each"); fi
done
python=${PYTHON:-python3}
quiet=(--disable-pip-version-check --quiet)

# An environment without a pip of its own is made in no time; Debian has pip only inside of one.
prepare_uv() {
  [ -x "$venv/bin/uv" ] && return
  local pip=("$python" -m pip --python "$venv/bin/python")
  if ! "$python" -m pip --version >/dev/null 2>&1; then
    pip=("$venv/bin/python" -m pip)
    [ -x "$venv/bin/pip" ] || "$python" -m venv "$venv" || return
  fi
  [ -e "$venv" ] || "$python" -m venv --without-pip "$venv"
  "${pip[@]}" "${quiet[@]}" install --require-hashes --no-deps -r deploy/locks/uv.txt
}
uv_install() {
  # The lines that say how far it is stay; the list of all packages is left out.
  VIRTUAL_ENV=$venv "$venv/bin/uv" pip install --no-deps "$@" 2>&1 | sed -u '/^ [-+~]/d' >&2
}
with_uv() {
  prepare_uv || return
  # uv does not read pip's configuration, where a mirror may be named.
  local index=${PIP_INDEX_URL:-$("$python" -m pip config get global.index-url 2>/dev/null || true)}
  if [ -n "$index" ]; then export UV_DEFAULT_INDEX=${UV_DEFAULT_INDEX:-$index}; fi
  uv_install --require-hashes -r deploy/locks/uv.txt "${locks[@]}" || return
  [ ${#checkout[@]} -eq 0 ] || uv_install --quiet "${checkout[@]}"
}
with_pip() {
  [ -x "$venv/bin/pip" ] || "$python" -m venv "$venv"
  local pip=("$venv/bin/python" -m pip "${quiet[@]}" install --no-deps)
  "${pip[@]}" --require-hashes "${locks[@]}"
  [ ${#checkout[@]} -eq 0 ] || "${pip[@]}" "${checkout[@]}"
}

if [ ! -e "$venv/.runtime" ]; then
  packages=$(cat "${files[@]}" | grep -c '^[A-Za-z0-9].*==')
  echo "First run: installing $packages locked packages (about 400 MB) into $venv." >&2
  echo "This takes some seconds with uv, a minute or two with pip, and is done only once." >&2
fi
[ "${INSTALLER:-uv}" = uv ] && with_uv && exit
[ "${INSTALLER:-uv}" = uv ] && echo "uv could not install the packages; pip installs them now" >&2
with_pip
