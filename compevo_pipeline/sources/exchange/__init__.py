"""Exchange rates: ECB and RBA reference rates, and the benchmark's tables."""
