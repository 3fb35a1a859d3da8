#!/usr/bin/env bash
# Draws ids with redis-benchmark, which stops at the first error: redis-benchmark.sh HOST PORT.
set -euo pipefail
HOST=$1 PORT=$2 COUNT=100000
VERSION=$(redis-benchmark --version | cut -d' ' -f2)

# `redis-benchmark ARGS` must end well, and the next id of TAG must tell that at least COUNT were drawn.
draw() {
    local tag=$1 report next
    shift
    report=$(redis-benchmark -h "$HOST" -p "$PORT" -n $COUNT -c 8 -P 16 -q "$@" 2>&1) || {
        echo "redis-benchmark $*: $report" >&2
        exit 1
    }
    grep -q 'requests per second' <<<"$report" || { echo "redis-benchmark $*: $report" >&2; exit 1; }
    next=$(redis-cli -e -h "$HOST" -p "$PORT" INCR "$tag")
    [ "$next" -gt "$COUNT" ] || { echo "redis-benchmark $*: the next id is $next" >&2; exit 1; }
}

draw bench-resp2 IDGET bench-resp2
draw bench-resp3 -3 IDGET bench-resp3
draw 'counter:__rand_int__' -t incr
echo "ok redis-benchmark $VERSION resp2"
echo "ok redis-benchmark $VERSION resp3"
