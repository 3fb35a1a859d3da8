"""Draws ids with redis-py: draw.py HOST PORT. Prints one `ok NAME VERSION PROTO` line a protocol."""

import sys

import redis

COUNT = 1000
HOST, PORT = sys.argv[1], int(sys.argv[2])


def draw(client, name, tag):
    """COUNT ids one by one, COUNT pipelined, COUNT in MULTI, by the command `name`."""

    def ask(target):
        return target.incr(tag) if name == "INCR" else target.execute_command(name, tag)

    ids = [ask(client) for _ in range(COUNT)]
    for transaction in (False, True):
        pipeline = client.pipeline(transaction=transaction)
        for _ in range(COUNT):
            ask(pipeline)
        ids += pipeline.execute()
    return ids


def main():
    # The first row is what a newcomer writes: no option at all.
    for proto, options in (("default", {}), ("resp2", {"protocol": 2}), ("resp3", {"protocol": 3})):
        client = redis.Redis(host=HOST, port=PORT, **options)
        for name in ("IDGET", "INCR"):
            tag = f"python-{redis.__version__}-{proto}-{name}"
            ids = draw(client, name, tag)
            # A fresh tag of one node counts without a gap, so this is count, order and uniqueness in one.
            if ids != list(range(1, 3 * COUNT + 1)):
                sys.exit(f"redis-py {redis.__version__} {proto} {name}: not 1 to {3 * COUNT}: {ids[:5]} … {ids[-5:]}")
        client.close()
        print(f"ok redis-py {redis.__version__} {proto}")


main()
