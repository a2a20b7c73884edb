# shellcheck shell=bash
# Sourced: installs what a script needs with the package manager of the machine.
# Works with bash 3.2, which is what macOS has.

# Prints what went wrong and what to do about it, and ends the script.
fail() {
  printf '%s: %s\n' "${0##*/}" "$*" >&2
  exit 1
}

as_root() {
  if [ "$(id -u)" -eq 0 ]; then
    "$@"
  else
    sudo "$@"
  fi
}

package_manager() {
  local manager
  # On Linux, Homebrew may be installed beside the system's own manager, which is preferred.
  for manager in apt-get dnf apk pacman brew; do
    if command -v "$manager" >/dev/null 2>&1; then
      echo "$manager"
      return
    fi
  done
  echo none
}

# A fresh machine or container has no package lists, and old ones name files that mirrors no longer have. So lists are fetched again, once
# in a script.
packages_listed=no
list_packages() {
  [ "$packages_listed" = no ] || return 0
  case "$1" in
    apt-get) as_root apt-get update -q ;;
    pacman) as_root pacman -Sy --noconfirm ;;
  esac
  packages_listed=yes
}

# install_packages MANAGER PACKAGE...: asks no question, since there may be nobody to answer.
install_packages() {
  local manager=$1
  shift
  # Homebrew asks for root itself if it needs it.
  if [ "$manager" != brew ] && [ "$(id -u)" -ne 0 ] && ! command -v sudo >/dev/null 2>&1; then
    fail "needs these packages, and can install them neither as root nor with sudo: $*; install them with $manager and start again"
  fi
  echo "installing with $manager: $*"
  # One dead mirror in the list is no reason not to try the others.
  list_packages "$manager" || echo "$manager could not refresh its package lists; trying with those it has" >&2
  case "$manager" in
    apt-get) as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "$@" ;;
    dnf) as_root dnf install -y "$@" ;;
    apk) as_root apk add --no-cache "$@" ;;
    pacman) as_root pacman -S --needed --noconfirm "$@" ;;
    brew) brew install "$@" ;;
    *) return 1 ;;
  esac
}
