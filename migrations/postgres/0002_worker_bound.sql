-- The first timestamp (Unix milliseconds) that each worker id may not use yet, and who reserved the time below it.
-- `init` creates the rows once, in the transaction that records the identity; a missing row stays missing. `hi` only grows.
CREATE TABLE worker_bound (
    dc          BIGINT NOT NULL CHECK (dc >= 0),
    w           BIGINT NOT NULL CHECK (w >= 0),
    hi          BIGINT NOT NULL CHECK (hi >= 0),
    incarnation TEXT   NOT NULL CHECK (octet_length(incarnation) = 32),
    n           BIGINT NOT NULL CHECK (n >= 0),
    wall_ms     BIGINT NOT NULL CHECK (wall_ms >= 0),
    host        TEXT   NOT NULL CHECK (char_length(host) <= 255),
    released    BIGINT NOT NULL CHECK (released IN (0, 1)),
    PRIMARY KEY (dc, w)
);
