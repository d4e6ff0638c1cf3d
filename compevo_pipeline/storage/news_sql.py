"""The SQL of the news store: the only SQL of this project.

What belongs here: tables and statements. What does not: running them (``storage.news_store``),
opening the database (``storage.duckdb_file``).

``incoming`` is the frame of an upsert with the text of each title's key in ``title_text``,
registered as a view. Times are UTC without a zone, so that reading them needs no time-zone
extension.

No column is indexed: an index of ten million ids takes most of a gigabyte. 64 bits of a hash stand
for each id and each title, and a scan of them, 8 bytes a row, finds the few that are asked for.
"""

CREATE_TABLES = """
CREATE TABLE IF NOT EXISTS news_articles (
    id_key UBIGINT NOT NULL,
    title_key UBIGINT NOT NULL,
    publisher VARCHAR NOT NULL,
    article_id VARCHAR NOT NULL,
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

FIND_TABLE = "SELECT 1 FROM news_articles LIMIT 0"

FIND_KNOWN = """
CREATE OR REPLACE TEMP TABLE known AS
SELECT stored.rowid AS stored_row, given.article_id, given.available_at < stored.available_at
    AS is_earlier
FROM news_articles stored
JOIN (SELECT *, md5_number_lower(article_id) AS id_key FROM incoming) given USING (id_key)
"""
"""The articles of an upsert that are stored already, and whether they were available earlier."""

COUNT_KNOWN = "SELECT count(*), count(*) FILTER (is_earlier) FROM known"

DELETE_LATER_VERSIONS = """
DELETE FROM news_articles WHERE rowid IN (SELECT stored_row FROM known WHERE is_earlier)
"""

INSERT_ARTICLES = """
INSERT INTO news_articles BY NAME
SELECT
    md5_number_lower(article_id) AS id_key,
    md5_number_lower(title_text) AS title_key,
    regexp_extract(source, '^[^:]*:([^/]*)', 1) AS publisher,
    incoming.* EXCLUDE (title_text)
FROM incoming
WHERE article_id NOT IN (SELECT article_id FROM known WHERE NOT is_earlier)
"""
"""New articles, and those whose later version was deleted."""

READ_ARTICLES = """
SELECT * EXCLUDE (id_key, title_key, publisher) FROM news_articles
WHERE ($since IS NULL OR available_at >= $since) AND ($until IS NULL OR available_at < $until)
ORDER BY available_at, article_id
"""

READ_FIRST_PRINTED = """
WITH published AS NOT MATERIALIZED (
    SELECT * FROM news_articles
    WHERE CASE WHEN $publisher = '' THEN NOT starts_with(publisher, $own)
        ELSE publisher = $publisher END
), within AS (
    SELECT * FROM published WHERE available_at >= $since AND available_at < $until
), printed_before AS (
    SELECT title_key FROM published SEMI JOIN within USING (title_key) WHERE available_at < $since
)
SELECT * EXCLUDE (id_key, title_key, publisher) FROM within ANTI JOIN printed_before
USING (title_key)
QUALIFY row_number() OVER (PARTITION BY title_key ORDER BY available_at, article_id) = 1
ORDER BY available_at, article_id
"""
"""Of a syndicated title, the article of a publisher that was available first at all.

Publishers are chosen as ``data.news.select_articles`` does.
"""

COUNT_TITLES = """
SELECT count(DISTINCT title_key) FROM news_articles
WHERE CASE WHEN $publisher = '' THEN NOT starts_with(publisher, $own)
    ELSE publisher = $publisher END
"""

HASH_CONTENT = """
SELECT
    count(*) AS articles,
    coalesce(sum(md5_number_lower(concat_ws(' ', id_key, epoch_us(available_at)))), 0) AS digest
FROM news_articles WHERE $publisher = '' OR publisher = $publisher
"""
"""An article is replaced by a version that was available earlier, and by nothing else.

A sum does not depend on the order of the rows, and takes no memory for them.
"""

COUNT_DAYS = """
SELECT
    publisher AS "group",
    CAST(available_at AS DATE) AS day,
    count(*) AS articles,
    bool_or(starts_with(source, 'live:')) AS is_live
FROM news_articles GROUP BY ALL ORDER BY ALL
"""

READ_NAMED_ARTICLES = """
SELECT * EXCLUDE (id_key, title_key, publisher) FROM news_articles
SEMI JOIN (SELECT md5_number_lower(article_id) AS id_key FROM named) USING (id_key)
ORDER BY available_at, article_id
"""
"""The articles whose ids the frame ``named`` lists."""

READ_REPEATED_ARTICLES = """
SELECT * EXCLUDE (id_key, title_key, publisher) FROM news_articles
SEMI JOIN (SELECT id_key FROM news_articles GROUP BY id_key HAVING count(*) > 1) USING (id_key)
ORDER BY available_at, article_id
"""

COUNT_ARTICLES_BY_MONTH = """
SELECT date_trunc('month', available_at) AS month, count(*) AS articles
FROM news_articles GROUP BY ALL ORDER BY ALL
"""

READ_NEWEST_ARTICLES = """
SELECT * EXCLUDE (id_key, title_key, publisher) FROM news_articles
ORDER BY available_at DESC, article_id LIMIT $rows
"""

# The table of earlier versions, with an index of ids and without keys.

FIND_EARLIER_TABLE = "SELECT 1 FROM duckdb_tables() WHERE table_name = 'articles'"

LIST_EARLIER_MONTHS = """
SELECT DISTINCT date_trunc('month', available_at) AS month FROM articles ORDER BY month
"""

READ_EARLIER_MONTH = """
SELECT * FROM articles WHERE date_trunc('month', available_at) = $month
ORDER BY available_at, article_id
"""

DROP_EARLIER_TABLE = "DROP TABLE articles"
