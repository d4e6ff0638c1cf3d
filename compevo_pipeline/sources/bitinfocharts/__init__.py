"""BitInfoCharts: daily Bitcoin metrics."""
