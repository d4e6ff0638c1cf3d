"""Asset checks: Great Expectations suites, freshness, availability and leakage."""
