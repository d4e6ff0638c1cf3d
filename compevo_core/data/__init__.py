"""Series, calendars, news, splits and windows: everything that is known before a model sees it."""
