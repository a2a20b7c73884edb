# shellcheck shell=bash
# Sourced: puts the server and the client of a benchmark on cores of their own, if the system can do that.
# Works with bash 3.2, which is what macOS has.
#
#   cores_pick PID...    pins these processes to the first core that this script may use; exports BENCH_PINNED, BENCH_CORES
#                        and, if that worked, BENCH_PINNED_CORES: the servers' and the client's
#   on_client COMMAND... runs the command on the last one

client_core=

# The cores that this script may use are listed as `0-3,8`. The first and the last of them are used, if they differ.
cores_pick() {
  local list first last pid
  export BENCH_PINNED='nothing: server and client share all cores'
  # Counted before pinning, since a pinned client sees only one.
  BENCH_CORES=$(getconf _NPROCESSORS_ONLN) && export BENCH_CORES
  command -v taskset >/dev/null 2>&1 || return 0
  list=$(taskset -cp $$ 2>/dev/null) || return 0
  list=${list##*: }
  first=${list%%[-,]*}
  last=${list##*[-,]}
  [ "$first" != "$last" ] || return 0
  for pid in "$@"; do
    taskset -acp "$first" "$pid" >/dev/null 2>&1 || return 0
  done
  client_core=$last
  BENCH_PINNED="servers to core $first, client to core $last"
  export BENCH_PINNED_CORES="$first $last"
}

on_client() {
  if [ -n "$client_core" ]; then
    taskset -c "$client_core" "$@"
  else
    "$@"
  fi
}
