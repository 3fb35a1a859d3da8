/* Draws ids with hiredis: draw HOST PORT. Prints an `ok NAME VERSION PROTO` line for each protocol version. */
#include <hiredis/hiredis.h>
#include <stdio.h>
#include <stdlib.h>

#define COUNT 1000

static void fail(const char *what, const char *why) {
    fprintf(stderr, "hiredis: %s: %s\n", what, why);
    exit(1);
}

/* Reads one reply and requires `type`. */
static redisReply *next(redisContext *context, int type) {
    void *reply = NULL;
    if (redisGetReply(context, &reply) != REDIS_OK) fail("no reply", context->errstr);
    if (((redisReply *)reply)->type != type) fail("unexpected reply", ((redisReply *)reply)->str);
    return reply;
}

static void expect(const redisReply *reply, long long id) {
    if (reply->type != REDIS_REPLY_INTEGER || reply->integer != id) {
        fprintf(stderr, "hiredis: id %lld is %lld\n", id, reply->integer);
        exit(1);
    }
}

/* A fresh tag of one node counts without a gap: checking for 1, 2, 3 … is count, order and uniqueness in one. */
static void draw(redisContext *context, const char *name, int protocol) {
    long long id = 1;
    char tag[64];
    snprintf(tag, sizeof tag, "hiredis-%d-%s", protocol, name);
    for (int i = 0; i < COUNT; i++) {
        redisReply *reply = redisCommand(context, "%s %s", name, tag);
        if (reply == NULL) fail("no reply", context->errstr);
        expect(reply, id++);
        freeReplyObject(reply);
    }
    for (int i = 0; i < COUNT; i++) redisAppendCommand(context, "%s %s", name, tag);
    for (int i = 0; i < COUNT; i++) {
        redisReply *reply = next(context, REDIS_REPLY_INTEGER);
        expect(reply, id++);
        freeReplyObject(reply);
    }
    redisAppendCommand(context, "MULTI");
    for (int i = 0; i < COUNT; i++) redisAppendCommand(context, "%s %s", name, tag);
    redisAppendCommand(context, "EXEC");
    for (int i = 0; i < COUNT + 1; i++) freeReplyObject(next(context, REDIS_REPLY_STATUS));
    redisReply *all = next(context, REDIS_REPLY_ARRAY);
    if (all->elements != COUNT) fail("EXEC", "wrong number of replies");
    for (size_t i = 0; i < all->elements; i++) expect(all->element[i], id++);
    freeReplyObject(all);
}

static void run(const char *host, int port, int protocol) {
    redisContext *context = redisConnect(host, port);
    if (context == NULL || context->err) fail("connect", context ? context->errstr : "no memory");
    if (protocol == 3) {
        redisAppendCommand(context, "HELLO 3");
        freeReplyObject(next(context, REDIS_REPLY_MAP));
    }
    draw(context, "IDGET", protocol);
    draw(context, "INCR", protocol);
    redisFree(context);
    printf("ok hiredis %d.%d.%d resp%d\n", HIREDIS_MAJOR, HIREDIS_MINOR, HIREDIS_PATCH, protocol);
}

int main(int argc, char **argv) {
    if (argc != 3) fail("usage", "draw HOST PORT");
    run(argv[1], atoi(argv[2]), 2);
    run(argv[1], atoi(argv[2]), 3);
    return 0;
}
