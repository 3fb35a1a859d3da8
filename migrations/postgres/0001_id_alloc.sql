-- The tags and their counters, the revisions that nodes poll, and the identity of the cluster.

-- max_id is the last id given away: a grant of n gives (max_id, max_id + n]. BIGINT and the checks make sure that nothing
-- moves it past the limit or below the floor. Collation "C": two tags are the same only if all their bytes are. Truth is 0
-- or 1 and every number is a BIGINT, as drivers see them in the other dialects: one query serves all of them.
CREATE TABLE id_alloc (
    biz_tag     TEXT COLLATE "C" NOT NULL PRIMARY KEY CHECK (octet_length(biz_tag) BETWEEN 1 AND 128),
    max_id      BIGINT      NOT NULL DEFAULT 0 CHECK (max_id BETWEEN 0 AND 9223372036854775807),
    step        BIGINT      NOT NULL CHECK (step >= 1),
    description TEXT        NOT NULL DEFAULT '' CHECK (octet_length(description) <= 255),
    update_time TIMESTAMPTZ NOT NULL DEFAULT now(),
    engine      TEXT        NOT NULL CHECK (engine IN ('segment', 'snowflake')),
    ordering    TEXT        NOT NULL DEFAULT 'node' CHECK (ordering IN ('node', 'strict')),
    min_step    BIGINT      NOT NULL CHECK (min_step >= 1 AND min_step <= step),
    max_step    BIGINT      NOT NULL CHECK (max_step >= step),
    id_limit    BIGINT      NOT NULL DEFAULT 9223372036854775807 CHECK (id_limit >= 1 AND id_limit >= max_id),
    qps         BIGINT      NOT NULL DEFAULT 0 CHECK (qps >= 0),
    burst       BIGINT      NOT NULL DEFAULT 0 CHECK (burst >= 0),
    critical    BIGINT      NOT NULL DEFAULT 0 CHECK (critical IN (0, 1)),
    floor       BIGINT      NOT NULL DEFAULT 0 CHECK (floor BETWEEN 0 AND max_id),
    retired     BIGINT      NOT NULL DEFAULT 0 CHECK (retired IN (0, 1)),
    revision    BIGINT      NOT NULL CHECK (revision >= 1),
    grant_nonce BYTEA       NOT NULL DEFAULT decode('00000000000000000000000000000000', 'hex')
                            CHECK (octet_length(grant_nonce) = 16)
);

CREATE UNIQUE INDEX id_alloc_by_revision ON id_alloc (revision);

-- One row: the last revision given to a change of any tag.
CREATE TABLE id_alloc_revision (
    one      SMALLINT NOT NULL PRIMARY KEY CHECK (one = 1),
    revision BIGINT   NOT NULL CHECK (revision >= 0)
);

INSERT INTO id_alloc_revision (one, revision) VALUES (1, 0);

-- One row: which cluster this database belongs to, and what all of its nodes must agree on.
CREATE TABLE idgen_identity (
    one           SMALLINT NOT NULL PRIMARY KEY CHECK (one = 1),
    cluster       TEXT     NOT NULL,
    registry      TEXT     NOT NULL,
    datacenter_id BIGINT   NOT NULL CHECK (datacenter_id >= 0),
    layout        TEXT     NOT NULL
);
