"""Tables in, tables out: the library's own forecaster for pandas and polars frames."""
