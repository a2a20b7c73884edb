# shellcheck shell=bash
# Sourced: builds the drivers of other lock libraries, in target/peers.
# Works with bash 3.2, which is what macOS has.
#
#   peers_build PROFILE  builds the drivers that this machine can build, and names the others; sets peers, the arguments of `compare`

peers=()

# peer_skip NAME WHY
peer_skip() {
  printf 'left out: %s: %s\n' "$1" "$2" >&2
}

# peer_tool NAME TOOL: succeeds if the tool is there; otherwise names it as missing.
peer_tool() {
  command -v "$2" >/dev/null 2>&1 || {
    peer_skip "$1" "there is no $2 on the PATH"
    return 1
  }
}

# peer_built NAME COMMAND...: succeeds if the driver could be built; otherwise shows the output of the command.
peer_built() {
  local name=$1 log
  shift
  log=target/peers/$name.log
  "$@" >"$log" 2>&1 </dev/null || {
    tail -20 "$log" >&2
    peer_skip "$name" "it can't be built; the end of $log is above"
    return 1
  }
}

peer_go() {
  (cd benches/peers/redsync && go build -mod=readonly -trimpath -o ../../../target/peers/redsync/driver .)
}

peers_build() {
  local profile=$1 target=target/peers folder built
  # The folder in which the installer of Go puts it.
  PATH=$PATH:/usr/local/go/bin
  mkdir -p "$target"
  folder=$profile
  [ "$folder" != dev ] || folder=debug
  built=${CARGO_TARGET_DIR:-target}/$folder/driver
  peers=(--peer "$built floor" --peer "$built nestlock")
  set -- cargo build --release --locked --manifest-path benches/peers/rslock/Cargo.toml --target-dir "$target/rslock"
  if peer_built rslock "$@"; then
    peers+=(--peer "$target/rslock/release/rslock-driver")
  fi
  if peer_tool redsync go && peer_built redsync peer_go; then
    peers+=(--peer "$target/redsync/driver")
  fi
  if peer_tool Redisson java && peer_tool Redisson mvn &&
    peer_built Redisson mvn -q -B -f benches/peers/redisson/pom.xml package; then
    peers+=(--peer "java -cp $target/redisson/driver.jar:$target/redisson/lib/* Driver")
  fi
}
