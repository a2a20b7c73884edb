# shellcheck shell=bash
# Sourced: finds or installs a Redis server, and starts one for the script that sources this.
# Works with bash 3.2, which is what macOS has.
#
#   redis_start          sets and exports REDIS_URL, and REDIS_SERVER, the program it was started from
#   redis_start_masters COUNT
#                        so many more, in REDIS_URLS and REDIS_PIDS, separated by spaces
#
# Servers end with the script, on Ctrl-C too.

# shellcheck source=scripts/lib/packages.sh
. "$(dirname "${BASH_SOURCE[0]}")/packages.sh"

redis_program() {
  # Packages may put servers into folders that are not on the PATH of every user.
  local PATH="$PATH:/usr/sbin:/usr/local/sbin:/usr/local/bin:/opt/homebrew/bin"
  if [ -n "${REDIS_SERVER:-}" ]; then
    command -v "$REDIS_SERVER"
  else
    command -v redis-server || command -v valkey-server
  fi
}

redis_install() {
  local manager
  [ -z "${REDIS_SERVER:-}" ] || fail "REDIS_SERVER is $REDIS_SERVER, and there is no such program"
  manager=$(package_manager)
  case "$manager" in
    apt-get) install_packages apt-get redis-server || install_packages apt-get valkey-server ;;
    brew) install_packages brew redis ;;
    none) false ;;
    # Distributions are moving from Redis to Valkey; either will do.
    *) install_packages "$manager" redis || install_packages "$manager" valkey ;;
  esac || fail "could not install a Redis server; install redis-server or valkey-server yourself, or name one in REDIS_SERVER"
}

# Succeeds if the server on this port answers and is the process that we started: another server may have taken the port, and would answer
# just as well.
redis_answers() {
  local pid=$1 port=$2
  (
    exec 3<>"/dev/tcp/127.0.0.1/$port" || exit 1
    printf 'INFO server\r\n' >&3
    while IFS= read -r -t 2 line <&3; do
      [ "$line" != "process_id:$pid"$'\r' ] || exit 0
    done
    exit 1
  ) 2>/dev/null
}

# The last server that was started, and all of them.
redis_pid=
redis_pids=
redis_dir=

# Prints the servers that have not ended: the process id of one that has ended may belong to another process by now.
redis_alive() {
  local running pid
  running=" $(jobs -rp | tr '\n' ' ')"
  for pid in $redis_pids; do
    case "$running" in *" $pid "*) echo "$pid" ;; esac
  done
}

redis_stop() {
  local tries=0 pid
  [ -n "$redis_dir" ] || return 0
  for pid in $(redis_alive); do
    # A frozen server would never get the signal.
    kill "$pid" 2>/dev/null
    kill -CONT "$pid" 2>/dev/null
  done
  while [ -n "$(redis_alive)" ] && [ "$tries" -lt 50 ]; do
    tries=$((tries + 1))
    sleep 0.1
  done
  for pid in $(redis_alive); do
    kill -9 "$pid" 2>/dev/null
    wait "$pid" 2>/dev/null
  done
  rm -rf "$redis_dir"
  redis_pids='' redis_dir=''
  return 0
}

# Starts a server on one port; fails if the port is taken.
redis_try_port() {
  local port=$1 tries=0
  "$REDIS_SERVER" --port "$port" --bind 127.0.0.1 --save '' --appendonly no --daemonize no \
    --dir "$redis_dir" >"$redis_dir/log" 2>&1 </dev/null &
  redis_pid=$!
  redis_pids="$redis_pids $redis_pid"
  while kill -0 "$redis_pid" 2>/dev/null && [ "$tries" -lt 100 ]; do
    if redis_answers "$redis_pid" "$port"; then
      return 0
    fi
    tries=$((tries + 1))
    sleep 0.1
  done
  kill -9 "$redis_pid" 2>/dev/null
  wait "$redis_pid" 2>/dev/null
  return 1
}

# Sets redis_url and redis_pid to those of a new server.
redis_start_one() {
  local attempt port
  for attempt in 1 2 3 4 5; do
    port=$((20000 + RANDOM % 12000))
    if redis_try_port "$port"; then
      redis_url="redis://127.0.0.1:$port"
      return 0
    fi
  done
  cat "$redis_dir/log" >&2
  fail "$REDIS_SERVER did not start in $attempt attempts; its last words are above"
}

redis_prepare() {
  [ -z "$redis_dir" ] || return 0
  redis_program >/dev/null || redis_install
  REDIS_SERVER=$(redis_program) || fail "a Redis server was installed, but neither redis-server nor valkey-server is on the PATH"
  export REDIS_SERVER
  redis_dir=$(mktemp -d "${TMPDIR:-/tmp}/nestlock-redis.XXXXXX") || fail "cannot make a directory in ${TMPDIR:-/tmp}"
  # A signal ends the script through exit, so that the one trap on EXIT sees every end.
  trap redis_stop EXIT
  trap 'exit 129' HUP
  trap 'exit 130' INT
  trap 'exit 143' TERM
}

redis_start() {
  redis_prepare
  redis_start_one
  export REDIS_URL=$redis_url
}

redis_start_masters() {
  local count=$1
  redis_prepare
  REDIS_URLS='' REDIS_PIDS=''
  while [ "$count" -gt 0 ]; do
    redis_start_one
    REDIS_URLS="$REDIS_URLS $redis_url" REDIS_PIDS="$REDIS_PIDS $redis_pid"
    count=$((count - 1))
  done
  REDIS_URLS=${REDIS_URLS# } REDIS_PIDS=${REDIS_PIDS# }
  export REDIS_URLS REDIS_PIDS
}
