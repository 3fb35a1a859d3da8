-- The tags and their counters, the revisions that nodes poll, and the identity of the cluster.
-- 1768187758 is "idgn": it tells our files from others.
PRAGMA application_id = 1768187758;

-- max_id is the last id given away: a grant of n gives (max_id, max_id + n]. STRICT and the checks make sure that no
-- overflow turns it into a floating-point number and that nothing moves it past the limit or below the floor.
CREATE TABLE id_alloc (
    biz_tag     TEXT    NOT NULL PRIMARY KEY CHECK (length(biz_tag) BETWEEN 1 AND 128),
    max_id      INTEGER NOT NULL DEFAULT 0 CHECK (max_id BETWEEN 0 AND 9223372036854775807),
    step        INTEGER NOT NULL CHECK (step >= 1),
    description TEXT    NOT NULL DEFAULT '' CHECK (length(CAST(description AS BLOB)) <= 255),
    update_time TEXT    NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now')),
    engine      TEXT    NOT NULL CHECK (engine IN ('segment', 'snowflake')),
    ordering    TEXT    NOT NULL DEFAULT 'node' CHECK (ordering IN ('node', 'strict')),
    min_step    INTEGER NOT NULL CHECK (min_step >= 1 AND min_step <= step),
    max_step    INTEGER NOT NULL CHECK (max_step >= step),
    id_limit    INTEGER NOT NULL DEFAULT 9223372036854775807 CHECK (id_limit >= 1 AND id_limit >= max_id),
    qps         INTEGER NOT NULL DEFAULT 0 CHECK (qps >= 0),
    burst       INTEGER NOT NULL DEFAULT 0 CHECK (burst >= 0),
    critical    INTEGER NOT NULL DEFAULT 0 CHECK (critical IN (0, 1)),
    floor       INTEGER NOT NULL DEFAULT 0 CHECK (floor BETWEEN 0 AND max_id),
    retired     INTEGER NOT NULL DEFAULT 0 CHECK (retired IN (0, 1)),
    revision    INTEGER NOT NULL CHECK (revision >= 1),
    grant_nonce BLOB    NOT NULL DEFAULT x'00000000000000000000000000000000' CHECK (length(grant_nonce) = 16)
) STRICT, WITHOUT ROWID;

CREATE UNIQUE INDEX id_alloc_by_revision ON id_alloc (revision);

-- One row: the last revision given to a change of any tag.
CREATE TABLE id_alloc_revision (
    one      INTEGER NOT NULL PRIMARY KEY CHECK (one = 1),
    revision INTEGER NOT NULL CHECK (revision >= 0)
) STRICT;

INSERT INTO id_alloc_revision (one, revision) VALUES (1, 0);

-- One row: which cluster this database belongs to, and what all of its nodes must agree on.
CREATE TABLE idgen_identity (
    one           INTEGER NOT NULL PRIMARY KEY CHECK (one = 1),
    cluster       TEXT    NOT NULL,
    registry      TEXT    NOT NULL,
    datacenter_id INTEGER NOT NULL CHECK (datacenter_id >= 0),
    layout        TEXT    NOT NULL
) STRICT;
