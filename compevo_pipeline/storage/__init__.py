"""Series, frames, news and run folders on disk."""
