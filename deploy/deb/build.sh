#!/usr/bin/env bash
# Builds a Debian package with the program, its locked packages and its units.
# Usage: deploy/deb/build.sh PYTHON DIR
#   PYTHON  an interpreter with pip and what deploy/locks/build.txt locks
#   DIR     where the package goes, its name on stdout
# DEB_PACKAGES=DIR takes the packages from there instead of fetching them; with DEB_BORROW=PLACE, too, they are left
# out, and the program looks for them in that place. DEB_COMPRESS=none is quick.
set -euo pipefail
umask 022
here=$(cd "$(dirname "$0")/../.." && pwd)
python=$(command -v "$1")
mkdir -p "$2"
out=$(cd "$2" && pwd)
# The one that the package depends on, not one of a developer's.
system=/usr/bin/python3
minor=$($system -c 'import sys; print("%d.%d" % sys.version_info[:2])')
work=$(mktemp -d "$out/deb.XXXXXX")
trap 'rm -rf "$work"' EXIT
root=$work/root
home=/usr/lib/chat-gateway
venv=$root$home
pip=("$python" -m pip --quiet --disable-pip-version-check)

mkdir -p "$work/source" "$root/usr/bin" "$venv"
# Built from a copy, so that nothing of an earlier build is in it and nothing of this one stays.
cp -a "$here"/{gateway,channels,session,durable,pyproject.toml,README.md,LICENSE} "$work/source/"
[ -e "$here/.git" ] && version=$("$python" -m setuptools_scm --root "$here") || version=${VERSION:-0.1.0}
SETUPTOOLS_SCM_PRETEND_VERSION=$version "${pip[@]}" wheel --no-deps --no-build-isolation --wheel-dir "$work" "$work/source"

echo "collects the packages (about 400 MB) …" >&2
$system -m venv --without-pip "$venv"
site=$venv/lib/python$minor/site-packages
if [ -n "${DEB_BORROW:-}" ]; then
  echo "$DEB_BORROW" >"$site/borrowed.pth"
elif [ -n "${DEB_PACKAGES:-}" ]; then
  "$python" "$here/deploy/deb/taken.py" "$here/deploy/locks/extras.txt" "$DEB_PACKAGES" "$site"
else
  "${pip[@]}" --python "$venv/bin/python3" install --no-compile --require-hashes --no-deps -r "$here/deploy/locks/extras.txt"
fi
"${pip[@]}" --python "$venv/bin/python3" install --no-compile --no-deps --no-index "$work"/*.whl
# The program and its interpreter stay of what pip wrote there, with the folder that they get.
find "$venv/bin" -mindepth 1 ! -name 'python*' ! -name chat-gateway -delete
sed -i "1s|.*|#!$home/bin/python3|" "$venv/bin/chat-gateway"
sed -i '/^command = /d' "$venv/pyvenv.cfg"
rm -f "$venv"/lib64 "$venv"/.gitignore
echo "compiles them …" >&2
# The service cannot write there: without these each start would compile them anew.
$system -m compileall -q -j 0 -s "$root" "$site" || true
ln -s "..${home#/usr}/bin/chat-gateway" "$root/usr/bin/chat-gateway"
(cd / && PYTHONPATH=${DEB_BORROW:+$DEB_PACKAGES} "$venv/bin/python3" -m gateway systemd install --to "$root/usr/lib" --program /usr/bin/chat-gateway) >/dev/null 2>"$work/said" ||
  { cat "$work/said" >&2 && exit 1; }

# Where each of these shells looks for what completes a command.
while read -r shell file; do
  install -d "$(dirname "$root/usr/share/$file")"
  (cd / && PYTHONPATH=${DEB_BORROW:+$DEB_PACKAGES} "$venv/bin/python3" -m gateway completion "$shell") >"$root/usr/share/$file"
done <<END
bash bash-completion/completions/chat-gateway
zsh zsh/vendor-completions/_chat-gateway
fish fish/vendor_completions.d/chat-gateway.fish
END

doc=$root/usr/share/doc/chat-gateway
install -d "$doc" "$root/etc/chat-gateway" "$root/usr/share/man/man1" "$root/DEBIAN"
# README.md is the index of the pages there.
cp -R "$here/docs/." "$doc/"
install -m 0644 "$here/LICENSE" "$doc/copyright"
# The pages name them by these paths.
for folder in deploy/rabbitmq deploy/prometheus; do
  install -d "$doc/$folder"
  cp "$here/$folder"/* "$doc/$folder/"
done
chmod -R u=rwX,go=rX "$doc"
gzip -9nc "$here/CHANGELOG.md" >"$doc/changelog.gz"
gzip -9nc "$here/deploy/deb/chat-gateway.1" >"$root/usr/share/man/man1/chat-gateway.1.gz"
install -m 0644 "$here/deploy/deb/config.toml" "$root/etc/chat-gateway/config.toml"
install -m 0755 "$here"/deploy/deb/{postinst,prerm,postrm} "$root/DEBIAN/"
echo /etc/chat-gateway/config.toml >"$root/DEBIAN/conffiles"
deb_version=$(sed -E 's/\.?(dev|a|b|rc)/~\1/' <<<"$version")
machine=$(dpkg --print-architecture)
cat >"$root/DEBIAN/control" <<END
Package: chat-gateway
Version: $deb_version
Architecture: $machine
Maintainer: the chat-gateway authors <chat-gateway@localhost>
Section: net
Priority: optional
Installed-Size: $(du -sk --exclude=DEBIAN "$root" | cut -f1)
Depends: python3 (>= $minor), python3 (<< ${minor%.*}.$((${minor#*.} + 1))), systemd (>= 252), init-system-helpers, ca-certificates
Recommends: bubblewrap, libseccomp2
Suggests: rabbitmq-server
Description: chat channels to language models through a durable queue
 A daemon that connects Telegram and Discord to language models: no accepted
 message is lost, no two chats are mixed, and a crash costs at most a repeat.
END
deb=$out/chat-gateway_${deb_version}_$machine.deb
echo "packs all of it, which takes longest …" >&2
dpkg-deb --root-owner-group -Z"${DEB_COMPRESS:-xz}" --build "$root" "$deb" >/dev/null
echo "$deb"
