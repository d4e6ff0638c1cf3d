"""Invented headlines for the sample mode: templates and word lists, filled by a generator.

What belongs here: words. What does not: GDELT's formats (``gdelt``). Nothing here happened.

No headline is written twice, so the removal of syndicated copies keeps all of them. The order of
the words decides what is drawn: a word added in the middle of a list changes every sample file.
"""

from datetime import date

import numpy as np

OUTLETS: dict[str, tuple[str, ...]] = {
    "energy": ("gridnews.example", "poweroutlook.example", "energywatch.example"),
    "weather": ("skywatch.example", "coastforecast.example"),
    "finance": ("marketwire.example", "dollarpost.example", "tradesheet.example"),
    "crypto": ("blockreport.example", "coinledger.example"),
    "traffic": ("roadreport.example", "commutedesk.example"),
}

_TEMPLATES: dict[str, tuple[str, ...]] = {
    "energy": (
        "{state} demand to {move} as {cause}, operator expects {mw} MW at the {part} peak",
        "Outage at {plant} takes {mw} MW from the {state} grid during the {part}",
        "Rooftop solar in {state} passes {mw} MW, {part} demand {moved}",
        "{state} households asked to save power in the {part}: {cause}, reserve down to {mw} MW",
        "Interconnector limit of {mw} MW between {state} and its neighbour after {cause}",
    ),
    "weather": (
        "{city} to reach {degrees}C on {weekday} as {system} moves over {state}",
        "{system} brings {mm} mm of rain to {city}, {part} cooler by {drop}C",
        "{warning} for {city} and {state} coast: {degrees}C and winds of {wind} km/h by {part}",
    ),
    "finance": (
        "Australian dollar {moved} to {cents} US cents after {event}",
        "Aussie {moved} as {event}; traders see {cents} cents by {quarter}",
        "{event} leaves Australian dollar near {cents} US cents, {commodity} {moved}",
        "Reserve Bank watchers split: {event}, {commodity} {moved} {percent} per cent",
    ),
    "crypto": (
        "Bitcoin {moved} {percent} per cent after {crypto_event}",
        "Miners report {percent} per cent {crypto_change} as {crypto_event}",
        "{crypto_event}: bitcoin fees and volume {moved} {percent} per cent",
    ),
    "traffic": (
        "{road} delays of {minutes} minutes near {exit} after {incident}",
        "{incident} on {road} slows {part} commute by {minutes} minutes at {exit}",
        "Lane closures on {road} near {exit} this {weekday}, expect {minutes} minutes more",
    ),
}

_WORDS: dict[str, tuple[str, ...]] = {
    "state": ("New South Wales", "Queensland", "South Australia", "Tasmania", "Victoria"),
    "city": (
        "Sydney",
        "Brisbane",
        "Adelaide",
        "Hobart",
        "Melbourne",
        "Newcastle",
        "Cairns",
        "Geelong",
        "Launceston",
    ),
    "move": ("rise", "fall", "climb", "ease"),
    "moved": ("rises", "falls", "climbs", "slips", "jumps", "eases"),
    "cause": (
        "heat builds",
        "a cool change arrives",
        "a holiday starts",
        "two coal units stay offline",
        "winds drop",
    ),
    "part": ("morning", "afternoon", "evening", "overnight"),
    "plant": (
        "Redcliff power station",
        "Hollow Creek power station",
        "Bluegum gas plant",
        "North Ridge wind farm",
    ),
    "system": (
        "a slow high",
        "a cold front",
        "a coastal trough",
        "a tropical low",
        "a hot northerly flow",
    ),
    "warning": ("Heatwave warning", "Severe storm warning", "Fire danger warning", "Flood watch"),
    "event": (
        "central bank holds rates",
        "jobless rate surprises",
        "inflation slows",
        "trade surplus widens",
        "wages data disappoint",
        "iron ore exports recover",
        "US payrolls beat forecasts",
        "minutes hint at a pause",
    ),
    "commodity": ("iron ore", "gold", "coal", "copper", "natural gas"),
    "quarter": ("March", "June", "September", "December"),
    "crypto_event": (
        "an exchange outage",
        "a large fund buys",
        "regulators open a consultation",
        "difficulty adjusts upward",
        "wallet maker reports a breach",
        "options expire",
        "a payments firm adds support",
    ),
    "crypto_change": ("higher revenue", "lower revenue", "more hashrate", "less hashrate"),
    "road": (
        "Highway 101",
        "Interstate 880",
        "Interstate 280",
        "Highway 85",
        "Bay Bridge approach",
        "Highway 17",
    ),
    "exit": (
        "Mill Road",
        "Harbor Way",
        "Orchard Avenue",
        "Second Street",
        "Lakeview Drive",
        "Station Road",
    ),
    "incident": (
        "a three-car crash",
        "a stalled truck",
        "flooding",
        "a spilled load",
        "a signal fault",
        "a protest",
    ),
}
_NUMBERS: dict[str, tuple[int, int]] = {
    "mw": (120, 9_900),
    "mm": (2, 140),
    "drop": (3, 18),
    "wind": (35, 120),
    "minutes": (5, 95),
}
_WARM_MONTHS = frozenset({11, 12, 1, 2, 3})


class Headlines:
    """Write headlines from a generator, never the same twice."""

    def __init__(self, generator: np.random.Generator) -> None:
        self.generator = generator
        self._written: set[str] = set()

    def write(self, topic: str, day: date) -> str:
        """Return a new headline on ``topic`` that fits the season of ``day``."""
        templates = _TEMPLATES[topic]
        while True:
            headline = templates[self._draw(len(templates))].format_map(self._draw_words(day))
            headline = headline[0].upper() + headline[1:]
            if headline not in self._written:
                self._written.add(headline)
                return headline

    def _draw_words(self, day: date) -> dict[str, str]:
        # Every slot is drawn for every headline, so that a new template moves no other draw.
        words = {slot: choices[self._draw(len(choices))] for slot, choices in _WORDS.items()}
        for slot, (low, high) in _NUMBERS.items():
            words[slot] = str(int(self.generator.integers(low, high)))

        low_celsius = 24 if day.month in _WARM_MONTHS else 9
        words["degrees"] = str(low_celsius + self._draw(19))
        words["cents"] = f"{60 + 200 * self._draw(100) / 1000:.2f}"
        words["percent"] = f"{0.1 + self._draw(120) / 10:.1f}"
        words["weekday"] = f"{day:%A}"
        return words

    def _draw(self, count: int) -> int:
        return int(self.generator.integers(count))
