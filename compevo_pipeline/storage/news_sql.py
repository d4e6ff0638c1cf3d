"""The SQL of the news store: the only SQL of this project.

What belongs here: tables and statements. What does not: running them (``storage.news_store``),
opening the database (``storage.duckdb_file``).

``incoming`` is the frame of an upsert, registered as a view. Times are UTC without a zone, so that
reading them needs no time-zone extension.
"""

CREATE_TABLES = """
CREATE TABLE IF NOT EXISTS articles (
    article_id VARCHAR PRIMARY KEY,
    url VARCHAR NOT NULL,
    title VARCHAR NOT NULL,
    body VARCHAR,
    domain VARCHAR,
    language VARCHAR,
    country VARCHAR,
    published_at TIMESTAMP,
    seen_at TIMESTAMP,
    available_at TIMESTAMP NOT NULL,
    fetched_at TIMESTAMP NOT NULL,
    source VARCHAR NOT NULL
);
CREATE TABLE IF NOT EXISTS embeddings (
    article_id VARCHAR NOT NULL,
    model VARCHAR NOT NULL,
    vector FLOAT[] NOT NULL,
    PRIMARY KEY (article_id, model)
);
"""

COUNT_ARTICLES = """
SELECT
    count(*) FILTER (stored.article_id IS NULL),
    count(*) FILTER (incoming.available_at < stored.available_at)
FROM incoming LEFT JOIN articles stored USING (article_id)
"""
"""Articles that an upsert adds, and those it changes."""

UPSERT_ARTICLES = """
INSERT INTO articles BY NAME SELECT * FROM incoming
ON CONFLICT (article_id) DO UPDATE SET
    url = excluded.url,
    title = excluded.title,
    body = excluded.body,
    domain = excluded.domain,
    language = excluded.language,
    country = excluded.country,
    published_at = excluded.published_at,
    seen_at = excluded.seen_at,
    available_at = excluded.available_at,
    fetched_at = excluded.fetched_at,
    source = excluded.source
WHERE excluded.available_at < articles.available_at
"""

DELETE_STALE_EMBEDDINGS = """
DELETE FROM embeddings WHERE article_id IN (
    SELECT incoming.article_id
    FROM incoming JOIN articles stored USING (article_id)
    WHERE incoming.available_at < stored.available_at
        AND (
            incoming.title IS DISTINCT FROM stored.title
            OR incoming.body IS DISTINCT FROM stored.body
        )
)
"""
"""Drops the embeddings of articles whose text the upsert is about to replace."""

READ_ARTICLES = """
SELECT * FROM articles
WHERE ($since IS NULL OR available_at >= $since) AND ($until IS NULL OR available_at < $until)
ORDER BY available_at, article_id
"""

COUNT_DAYS = """
SELECT
    regexp_extract(source, '^[^:]*:([^/]*)', 1) AS "group",
    CAST(available_at AS DATE) AS day,
    bool_or(starts_with(source, 'live:')) AS is_live
FROM articles GROUP BY ALL ORDER BY ALL
"""

FIND_UNKNOWN_ARTICLES = """
SELECT incoming.article_id FROM incoming ANTI JOIN articles USING (article_id) ORDER BY 1
"""

# All vectors of a model have one length, so any row states it.
READ_DIMENSION = "SELECT len(vector) FROM embeddings WHERE model = $model LIMIT 1"

COUNT_EMBEDDINGS = """
SELECT
    count(*) FILTER (stored.article_id IS NULL),
    count(*) FILTER (stored.article_id IS NOT NULL AND stored.vector <> incoming.vector)
FROM incoming LEFT JOIN embeddings stored
    ON stored.article_id = incoming.article_id AND stored.model = incoming.model
"""
"""Embeddings that an upsert adds, and those it changes."""

UPSERT_EMBEDDINGS = """
INSERT INTO embeddings BY NAME SELECT * FROM incoming
ON CONFLICT (article_id, model) DO UPDATE SET vector = excluded.vector
WHERE embeddings.vector IS DISTINCT FROM excluded.vector
"""

READ_EMBEDDINGS = """
SELECT article_id, vector FROM embeddings WHERE model = $model ORDER BY article_id
"""

READ_MISSING_EMBEDDINGS = """
SELECT article_id, title, body FROM articles
WHERE article_id NOT IN (SELECT article_id FROM embeddings WHERE model = $model)
ORDER BY article_id
"""
