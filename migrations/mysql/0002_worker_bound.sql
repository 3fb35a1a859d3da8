-- The first timestamp (Unix milliseconds) that each worker id may not use yet, and who reserved the time below it.
-- `init` creates the rows once, in the transaction that records the identity; a missing row stays missing. `hi` only grows.
CREATE TABLE IF NOT EXISTS worker_bound (
    dc          BIGINT       NOT NULL,
    w           BIGINT       NOT NULL,
    hi          BIGINT       NOT NULL,
    incarnation VARCHAR(32)  NOT NULL,
    n           BIGINT       NOT NULL,
    wall_ms     BIGINT       NOT NULL,
    host        VARCHAR(255) NOT NULL,
    released    SMALLINT     NOT NULL,
    PRIMARY KEY (dc, w),
    CHECK (dc >= 0 AND w >= 0 AND hi >= 0 AND n >= 0 AND wall_ms >= 0),
    CHECK (CHAR_LENGTH(incarnation) = 32),
    CHECK (released IN (0, 1))
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;
