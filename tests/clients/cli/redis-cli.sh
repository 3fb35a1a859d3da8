#!/usr/bin/env bash
# Draws ids with redis-cli: redis-cli.sh HOST PORT. Prints one `ok NAME VERSION PROTO` line a protocol.
set -euo pipefail
HOST=$1 PORT=$2 COUNT=1000
VERSION=$(redis-cli --version | cut -d' ' -f2)

# The ids on standard input, one a line, must be FROM to FROM + COUNT - 1: count, order and uniqueness in one.
expect() {
    diff <(seq "$2" $(($2 + COUNT - 1))) - >/tmp/redis-cli.$$ || {
        echo "redis-cli $1: not $2 to $(($2 + COUNT - 1)):" >&2
        head -5 /tmp/redis-cli.$$ >&2
        exit 1
    }
    rm -f /tmp/redis-cli.$$
}

for proto in resp2 resp3; do
    cli=(redis-cli -e -h "$HOST" -p "$PORT")
    [ $proto = resp3 ] && cli+=(-3)
    for name in IDGET INCR; do
        tag=cli-$proto-$name
        "${cli[@]}" -r $COUNT $name $tag | expect "$proto $name" 1
        { echo MULTI; for ((i = 0; i < COUNT; i++)); do echo "$name $tag"; done; echo EXEC; } | "${cli[@]}" |
            grep -v -e '^OK$' -e '^QUEUED$' | expect "$proto $name in MULTI" $((COUNT + 1))
        # --pipe shows no replies: it counts them, and the next id tells how many were drawn.
        report=$(for ((i = 0; i < COUNT; i++)); do printf '%s %s\r\n' $name $tag; done |
            redis-cli -h "$HOST" -p "$PORT" --pipe | tail -1)
        [ "$report" = "errors: 0, replies: $COUNT" ] || { echo "redis-cli --pipe: $report" >&2; exit 1; }
        "${cli[@]}" -r $COUNT $name $tag | expect "$proto $name after --pipe" $((3 * COUNT + 1))
    done
    echo "ok redis-cli $VERSION $proto"
done
