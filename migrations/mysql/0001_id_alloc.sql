-- The tags and their counters, the revisions that nodes poll, and the identity of the cluster. For MySQL 8 and MariaDB.
-- DDL commits by itself here, so every statement can be repeated: a migration that broke off is run again as a whole.

-- max_id is the last id given away: a grant of n gives (max_id, max_id + n]. The checks make sure that nothing moves it
-- past the limit or below the floor. The collation compares bytes: tags differ in case. Tags have no spaces, so that it
-- pads with them changes nothing.
CREATE TABLE IF NOT EXISTS id_alloc (
    biz_tag     VARCHAR(128) NOT NULL PRIMARY KEY,
    max_id      BIGINT       NOT NULL DEFAULT 0,
    step        BIGINT       NOT NULL,
    description VARCHAR(255) NOT NULL DEFAULT '',
    update_time DATETIME(3)  NOT NULL,
    engine      VARCHAR(16)  NOT NULL,
    ordering    VARCHAR(16)  NOT NULL DEFAULT 'node',
    min_step    BIGINT       NOT NULL,
    max_step    BIGINT       NOT NULL,
    id_limit    BIGINT       NOT NULL DEFAULT 9223372036854775807,
    qps         BIGINT       NOT NULL DEFAULT 0,
    burst       BIGINT       NOT NULL DEFAULT 0,
    critical    SMALLINT     NOT NULL DEFAULT 0,
    floor       BIGINT       NOT NULL DEFAULT 0,
    retired     SMALLINT     NOT NULL DEFAULT 0,
    revision    BIGINT       NOT NULL,
    grant_nonce BINARY(16)   NOT NULL DEFAULT 0x00000000000000000000000000000000,
    UNIQUE INDEX id_alloc_by_revision (revision),
    CHECK (CHAR_LENGTH(biz_tag) BETWEEN 1 AND 128),
    CHECK (max_id >= 0),
    CHECK (floor BETWEEN 0 AND max_id),
    CHECK (id_limit >= 1 AND id_limit >= max_id),
    CHECK (min_step >= 1 AND step >= min_step AND max_step >= step),
    CHECK (qps >= 0 AND burst >= 0),
    CHECK (LENGTH(description) <= 255),
    CHECK (engine IN ('segment', 'snowflake')),
    CHECK (ordering IN ('node', 'strict')),
    CHECK (critical IN (0, 1)),
    CHECK (retired IN (0, 1)),
    CHECK (revision >= 1)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- One row: the last revision given to a change of any tag.
CREATE TABLE IF NOT EXISTS id_alloc_revision (
    one      SMALLINT NOT NULL PRIMARY KEY,
    revision BIGINT   NOT NULL,
    CHECK (one = 1),
    CHECK (revision >= 0)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

INSERT IGNORE INTO id_alloc_revision (one, revision) VALUES (1, 0);

-- One row: which cluster this database belongs to, and what all of its nodes must agree on.
CREATE TABLE IF NOT EXISTS idgen_identity (
    one           SMALLINT     NOT NULL PRIMARY KEY,
    cluster       VARCHAR(64)  NOT NULL,
    registry      VARCHAR(16)  NOT NULL,
    datacenter_id BIGINT       NOT NULL,
    layout        VARCHAR(255) NOT NULL,
    CHECK (one = 1),
    CHECK (datacenter_id >= 0)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;
