"""Small builders shared by the tests of the sources; no test lives here."""

from datetime import UTC, datetime

from compevo_pipeline.sources.common.base import Mode, RawFile

NOW = datetime(2026, 11, 1, 12, tzinfo=UTC)


def clock():
    return NOW


def raw(name, content, source="test", mode=Mode.ARCHIVE):
    body = content.encode() if isinstance(content, str) else content
    return RawFile(
        source=source, name=name, content=body, url=f"file:{name}", fetched_at=NOW, mode=mode
    )
