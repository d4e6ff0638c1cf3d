"""What every source shares: modes, raw files, HTTP, tables, article frames."""
