"""Alerts: what is reported to an operator, once a day for each fault, and how it is sent.

What belongs here: one sentence per fault, the record of what was sent where, and the way to a
program or through Apprise to mail, a chat or a webhook. What does not: looking for faults
(``defs.alerts``), where alerts go (``COMPEVO_ALERTS``).

Every alert is in the log. A destination that does not take it is tried again by the next call. A
home that cannot be written is a fault to report: the record is then kept in Dagster's.
"""

import logging
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from pathlib import Path

from compevo_core.errors import SourceTransient
from compevo_core.runtime import files
from compevo_pipeline.config.settings import Settings, locate_dagster_home
from compevo_pipeline.sources.common.ledger import Entry, EntryState

LONGEST_TEXT = 600  # characters of an alert; longer ones are cut in the middle
KEPT_DAYS = 2  # how many days an alert is offered to a destination that has not accepted it
NIGHTS = 3  # how many nights in a row a source fails before it is reported
_ASKED_LATELY = timedelta(days=2)
_COMMAND = "command:"
_TITLE = "CompEvo"
_DIGITS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """A fault and a sentence about it: what, where, what to do."""

    fault: str  # identifies the fault from day to day
    text: str  # the sentence


def tell(settings: Settings, alerts: Iterable[Alert], day: date, log: logging.Logger) -> int:
    """Send the alerts that were not sent on this day, and what an earlier call could not send.

    Return the number of new ones; ``day`` is on the market's clock. The next call tries again where
    none was taken; SourceTransient if no destination takes an alert.
    """
    folder, faults = settings.layout(settings.mode).alerts, list(alerts)
    try:
        return _send_new(folder, settings, faults, day, log)
    except (ConnectionError, TimeoutError):
        raise
    except OSError as error:
        spare = locate_dagster_home() / "alerts"
        disk = Alert(fault="disk", text=f"{folder}: {files.describe_storage_error(error)}.")
        return _send_new(spare, settings, [disk, *faults], day, log)


def _send_new(
    folder: Path, settings: Settings, alerts: Iterable[Alert], day: date, log: logging.Logger
) -> int:
    count = 0
    with files.file_lock(folder / ".lock", exclusive=True):
        for alert in alerts:
            path = folder / f"{day}-{files.hash_text(alert.fault)[:_DIGITS]}.json"
            if path.exists():
                continue
            text = " ".join(alert.text.split())
            if len(text) > LONGEST_TEXT:  # the end states what to do
                half = LONGEST_TEXT // 2
                text = f"{text[: half - 5]} ... {text[-half:]}"
            log.error(text)
            files.write_json(path, {"text": text, "told": []})
            count += 1

        for path in folder.glob("*.json"):
            if path.name < f"{day - timedelta(days=KEPT_DAYS)}":
                path.unlink()
        destinations = settings.alerts.get_secret_value().split()
        # A destination that took nothing is not tried again now.
        silent: set[int] = set()
        for path in sorted(folder.glob("*.json")) if destinations else ():
            record = files.read_json(path, "remove it: the alert is sent again")
            for number, destination in enumerate(destinations, start=1):
                name = files.hash_text(destination)[:_DIGITS]
                if number in silent or name in record["told"]:
                    continue
                if _send(destination, record["text"]):
                    record["told"].append(name)
                    files.write_json(path, record)
                else:
                    silent.add(number)
    if not silent:
        return count
    # By number: the address holds passwords.
    problem = (
        f"COMPEVO_ALERTS: destination {', '.join(map(str, sorted(silent)))} of {len(destinations)} "
        "took no alert; check that Apprise knows its address and that it answers: it is tried again"
    )
    if len(silent) == len(destinations):
        raise SourceTransient(problem)
    log.warning(problem)
    return count


def find_failing(entries: Iterable[Entry], now: datetime) -> dict[str, str]:
    """Return the sources whose last answer was a failure, each with a file and why.

    A file that was not asked for in two days is history.
    """
    failing = {}
    for entry in entries:
        # Stored data stays if asking for its next version fails.
        has_failed = entry.state is EntryState.FAILED or (
            entry.tries > 0 and entry.state in (EntryState.FETCHED, EntryState.STORED)
        )
        if has_failed and now - entry.asked_at < _ASKED_LATELY:
            failing[entry.source] = f"{entry.name}: {entry.note}"
    return failing


def find_answering(entries: Iterable[Entry], now: datetime) -> set[str]:
    """Return the sources with a file that came, or had not changed, in the last two days."""
    return {
        entry.source
        for entry in entries
        if (entry.state is EntryState.FETCHED or entry.is_stored)
        and entry.tries == 0
        and now - entry.asked_at < _ASKED_LATELY
    }


def _send(destination: str, text: str) -> bool:
    """Send one alert to one destination; return whether it was taken."""
    if destination.startswith(_COMMAND):
        program = destination.removeprefix(_COMMAND)
        try:
            done = subprocess.run(  # noqa: S603 -- the operator's own program
                [program], input=text, text=True, timeout=30, check=False
            )
        except (OSError, subprocess.TimeoutExpired):
            return False
        return done.returncode == 0

    import apprise  # only if an alert is sent

    # Its own messages hold whole addresses.
    logging.getLogger("apprise").setLevel(logging.CRITICAL + 1)
    service = apprise.Apprise(asset=apprise.AppriseAsset(app_id=_TITLE, async_mode=False))
    return service.add(destination) and bool(
        service.notify(
            body=text,
            title=_TITLE,
            notify_type=apprise.NotifyType.FAILURE,
            body_format=apprise.NotifyFormat.TEXT,
        )
    )
