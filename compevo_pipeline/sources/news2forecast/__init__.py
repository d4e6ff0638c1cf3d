"""The News2Forecast benchmark: published prompts, series and news."""
