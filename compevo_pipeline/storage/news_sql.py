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

READ_NAMED_ARTICLES = """
SELECT articles.* FROM articles SEMI JOIN named USING (article_id)
ORDER BY available_at, article_id
"""
"""The articles whose ids the frame ``named`` lists."""

COUNT_ARTICLES_BY_MONTH = """
SELECT date_trunc('month', available_at) AS month, count(*) AS articles
FROM articles GROUP BY ALL ORDER BY ALL
"""

READ_NEWEST_ARTICLES = """
SELECT * FROM articles ORDER BY available_at DESC, article_id LIMIT $rows
"""
