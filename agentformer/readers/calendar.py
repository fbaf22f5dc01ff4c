"""Read calendars (`.ics`): the events, tasks and notes, each with its times in UTC if its time zone is known."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from agentformer.readers.encodings import decode
from agentformer.readers.formats import ReadOptions
from agentformer.readers.sections import document_of, page_of, parts_of
from agentformer.text.normalize import clean_plain
from agentformer.types import DocumentText

_FOLD = re.compile(r"\r?\n[ \t]")
_LINE = re.compile(r'([\w-]{1,60})((?:;(?:"[^"\n]*"|[^":\n])*)?):(.*)')
_PARAMETER = re.compile(r';([\w-]+)=(?:"([^"]*)"|([^;]*))')
_TIME = re.compile(r"(\d{4})(\d\d)(\d\d)(?:T(\d\d)(\d\d)(\d\d))?(Z?)")
_ESCAPED = re.compile(r"\\(.)")
_KINDS = {"VEVENT": "Event", "VTODO": "Task", "VJOURNAL": "Note"}
_SILENT = frozenset({"VCALENDAR", "VTIMEZONE", "STANDARD", "DAYLIGHT", "VALARM"})  # have no text of an entry
_TIMES = {"DTSTART": "Start", "DTEND": "End", "DUE": "Due", "RECURRENCE-ID": "Instead of"}
_TEXTS = {
    **{"LOCATION": "Location", "ORGANIZER": "Organizer", "ATTENDEE": "Attendee", "STATUS": "Status"},
    **{"RRULE": "Repeats", "DURATION": "Duration", "URL": "Link", "DESCRIPTION": "Description", "COMMENT": "Comment"},
}


def parse(data: bytes, options: ReadOptions) -> Iterator[DocumentText]:
    """Yield the document."""
    pages = (page_of(number, part) for number, part in enumerate(parts_of(clean_plain(events_text(decode(data)))), 1))
    yield document_of(options.media_type, pages, options.limits)


def events_text(source: str) -> str:
    """Return the entries of a calendar as paragraphs of lines such as "Start: 2026-05-19 07:00 UTC". A calendar without
    entries is returned as it is."""
    lines: list[str] = []
    inside: list[str] = []  # the components around the line, such as an alarm in an event
    for line in _FOLD.sub("", source).splitlines():
        found = _LINE.match(line)
        name = found[1].upper() if found else ""
        if found and name == "BEGIN":
            inside.append(found[3].strip().upper())
            lines += ["", ""] if inside[-1] not in _SILENT else []
        elif name == "END":
            inside = inside[:-1]
        elif found and inside and inside[-1] not in _SILENT:
            lines.append(_shown(name, found[2], found[3].strip(), _KINDS.get(inside[-1], "Title")))
        elif found and name == "METHOD" and found[3].strip().upper() == "CANCEL":
            lines.append("Cancelled:")
    text = "\n".join(line for line, former in zip(lines, ["", *lines], strict=False) if line or former).strip()
    return text or source


def _shown(name: str, parameters: str, value: str, kind: str) -> str:
    """Return a property of an entry as a line, or "" if it says nothing to a reader."""
    given = {found[1].upper(): found[2] or found[3] for found in _PARAMETER.finditer(parameters)}
    text = _ESCAPED.sub(lambda found: "\n" if found[1] in "nN" else found[1], value)
    if name == "FREEBUSY":
        return f"Busy: {_TIME.sub(lambda found: _time(found[0], ''), text)}"
    if name in _TIMES and text:
        whole_day = name == "DTEND" and re.fullmatch(r"\d{8}", text)  # the day after the last one (RFC 5545, 3.6.1)
        with suppress(ValueError, OverflowError):
            text = f"{datetime.strptime(text, '%Y%m%d') - timedelta(days=1):%Y%m%d}" if whole_day else text
        return f"{_TIMES[name]}: {_time(text, given.get('TZID', ''))}"
    if name in ("ORGANIZER", "ATTENDEE"):
        address = re.sub("(?i)^mailto:", "", text)
        text = f"{given['CN']} <{address}>" if given.get("CN", address) != address else address
    label = kind if name == "SUMMARY" else _TEXTS.get(name, "")
    return f"{label}: {text}" if label and text else ""


def _time(value: str, zone: str) -> str:
    """Return a date, a time in UTC, or a local time with the name of its time zone."""
    found = _TIME.fullmatch(value)
    if not found:
        return value
    if not found[4]:
        return f"{found[1]}-{found[2]}-{found[3]}"
    with suppress(ValueError, OverflowError, OSError, LookupError):
        if found[7] or zone:
            moment = datetime.strptime(value[:15], "%Y%m%dT%H%M%S").replace(tzinfo=UTC if found[7] else ZoneInfo(zone))
            return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M} UTC"
    return f"{found[1]}-{found[2]}-{found[3]} {found[4]}:{found[5]}{f' ({zone})' if zone else ''}"
