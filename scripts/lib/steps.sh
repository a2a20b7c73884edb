# shellcheck shell=bash
# Sourced after redis.sh: the steps of a check, and what a machine needs for them.
# Works with bash 3.2, which is what macOS has.
#
#   set_up WHAT...           installs what is missing, and says so: rustfmt clippy cc openssl redis java go python valgrind
#                            cargo-hack cargo-mutants
#   step HEADING COMMAND...  runs the command, and ends the script if it fails

if [ -n "${CI:-}" ]; then
  # CI builds nothing twice, so incremental builds would only cost time.
  export CARGO_INCREMENTAL=0
fi

step() {
  local heading=$1 begun=$SECONDS code=0
  shift
  printf '\n==> %s\n    %s\n' "$heading" "$*"
  "$@" || code=$?
  if [ "$code" -ne 0 ]; then
    printf '\nFAILED after %d s: %s (exit code %d)\n    %s\n' $((SECONDS - begun)) "$heading" "$code" "$*" >&2
    exit 1
  fi
  printf '    passed in %d s\n' $((SECONDS - begun))
}

set_up() {
  local what missing=''
  command -v cargo >/dev/null 2>&1 || fail "there is no cargo on the PATH; get Rust from https://rustup.rs"
  for what in "$@"; do
    has "$what" || missing="$missing $what"
  done
  if [ -n "$missing" ]; then
    echo "    installing what this machine lacks:$missing"
    for what in $missing; do
      get "$what" || fail "could not install $what: install it yourself and start again"
    done
  fi
  cargo --version
}

has() {
  case "$1" in
    rustfmt) cargo fmt --version >/dev/null 2>&1 ;;
    clippy) cargo clippy --version >/dev/null 2>&1 ;;
    cargo-hack) cargo hack --version >/dev/null 2>&1 ;;
    cargo-mutants) cargo mutants --version >/dev/null 2>&1 ;;
    cc) command -v cc >/dev/null 2>&1 ;;
    # The feature `tls-native-tls` builds against it on Linux.
    openssl) [ "$(uname -s)" != Linux ] || pkg-config --exists openssl 2>/dev/null ;;
    redis) redis_program >/dev/null ;;
    valgrind) command -v valgrind >/dev/null 2>&1 ;;
    java) command -v javac >/dev/null 2>&1 && command -v mvn >/dev/null 2>&1 ;;
    python) python3 -c 'import ensurepip, venv' >/dev/null 2>&1 ;;
    # It may also be in the folder in which its installer puts it.
    go) PATH=$PATH:/usr/local/go/bin command -v go >/dev/null 2>&1 ;;
  esac
}

get() {
  local manager
  manager=$(package_manager)
  case "$1,$manager" in
    rustfmt,* | clippy,*)
      command -v rustup >/dev/null 2>&1 || fail "there is no rustup, which would install $1: install the package that has it"
      rustup component add "$1"
      ;;
    cargo-hack,* | cargo-mutants,*) cargo install --locked "$1" ;;
    cc,apt-get) install_packages apt-get gcc libc6-dev ;;
    cc,apk) install_packages apk gcc musl-dev ;;
    cc,dnf | cc,pacman) install_packages "$manager" gcc ;;
    cc,*) fail "there is no C compiler (cc), which Rust links with; on macOS: xcode-select --install" ;;
    openssl,apt-get) install_packages apt-get pkg-config libssl-dev ;;
    openssl,dnf) install_packages dnf pkgconf-pkg-config openssl-devel ;;
    openssl,apk) install_packages apk pkgconf openssl-dev ;;
    openssl,pacman) install_packages pacman pkgconf openssl ;;
    openssl,*) fail "feature tls-native-tls needs pkg-config and the headers of OpenSSL: install them and start again" ;;
    redis,*) redis_install ;;
    valgrind,*) install_packages "$manager" valgrind ;;
    java,apt-get) install_packages apt-get openjdk-17-jdk-headless maven ;;
    java,dnf) install_packages dnf java-17-openjdk-devel maven ;;
    java,apk) install_packages apk openjdk17 maven ;;
    java,pacman) install_packages pacman jdk17-openjdk maven ;;
    java,brew) install_packages brew openjdk@17 maven ;;
    python,apt-get) install_packages apt-get python3 python3-venv ;;
    python,dnf | python,apk) install_packages "$manager" python3 ;;
    python,pacman | python,brew) install_packages "$manager" python ;;
    go,apt-get) install_packages apt-get golang-go ca-certificates ;;
    go,dnf) install_packages dnf golang ;;
    go,apk | go,pacman | go,brew) install_packages "$manager" go ;;
  esac
}
