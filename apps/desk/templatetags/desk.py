"""Template tags of the pages: states, times in the reader's zone, figures with units."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from django import template
from django.templatetags.static import static
from django.utils import timezone
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from apps.desk import words
from recovery.figures import hours_in_words
from recovery.rules.categories import CATEGORIES

register = template.Library()

register.filter("duration", words.duration)
register.filter("number", words.number)
register.filter("byte_size", words.byte_size)
register.filter("plain", words.plain)
register.filter("failures", words.failures)
register.filter("hours", hours_in_words)


@register.simple_tag
def icon(name: str, tone: str = "") -> SafeString:
    """A symbol of the sprite. Decoration only: the word beside it says the same."""
    return format_html(
        '<svg class="icon{}" aria-hidden="true"><use href="{}#{}"></use></svg>',
        f" tone-{tone}" if tone else "",
        static("icons.svg"),
        name,
    )


@register.simple_tag
def state(kind: str, value: object, word: str = "") -> SafeString:
    """A state as shape, word and color, e.g. ``{% state "incident" incident.state %}``."""
    mark = words.mark_for(kind, value)
    return format_html(
        '<span class="state state--{}">{}{}</span>', mark.tone, icon(mark.icon), word or mark.word
    )


@register.filter
def word(value: object, kind: str) -> str:
    """Only the word of a state."""
    return words.mark_for(kind, value).word


@register.filter
def words_of(value: object, table: str) -> str:
    """A word of one of the tables: waiting, action, rung, remedy, resolution, blame, category."""
    tables = {
        "waiting": words.WAITING_WORDS,
        "action": words.ACTION_WORDS,
        "rung": words.RUNGS,
        "remedy": words.REMEDIES,
        "resolution": words.RESOLUTIONS,
        "blame": words.BLAMES,
        "category": CATEGORIES,
    }
    return tables[table].get(str(value), words.plain(value))


def zone_name(at: datetime | None = None) -> str:
    """Short name of the reader's zone, e.g. ``CET``; numeric ones are written as ``UTC-03``."""
    name = timezone.localtime(at or timezone.now()).tzname() or "UTC"
    return f"UTC{name}" if name[:1] in "+-" else name


@register.simple_tag
def zone() -> str:
    """The reader's zone, for table heads."""
    return zone_name()


def _absolute(at: datetime) -> str:
    local = timezone.localtime(at)
    return f"{local:%d %b %Y, %H:%M:%S} {zone_name(at)}"


def _machine(at: datetime) -> str:
    return at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


@register.simple_tag
def clock(at: datetime | None) -> SafeString | str:
    """A time of day in the reader's zone; with the date when it is not today."""
    if at is None:
        return "–"
    local = timezone.localtime(at)
    shown = f"{local:%H:%M:%S}" if local.date() == timezone.localdate() else f"{local:%d %b %H:%M:%S}"
    return format_html('<time datetime="{}" data-absolute="{}">{}</time>', _machine(at), _absolute(at), shown)


@register.simple_tag
def ago(at: datetime | None, word: str = "") -> SafeString | str:
    """How long ago, in one unit, with ``word`` behind it; the browser counts on.

    The full time stands beside it on hover and focus.
    """
    if at is None:
        return "–"
    seconds = (timezone.now() - at).total_seconds()
    said = words.coarse(seconds)
    return format_html(
        '<time datetime="{}" data-ago="{}" data-absolute="{}">{}</time>',
        _machine(at),
        word,
        _absolute(at),
        f"{said} {word}" if word and said != "now" else said,
    )


@register.simple_tag
def until(at: datetime | None, past: str = "now") -> SafeString | str:
    """Counts down to a time: ``in 12 s``, and ``past`` when it has come."""
    if at is None:
        return "–"
    seconds = (at - timezone.now()).total_seconds()
    return format_html(
        '<time datetime="{}" data-until="{}" data-absolute="{}">{}</time>',
        _machine(at),
        past,
        _absolute(at),
        f"in {words.coarse(seconds)}" if seconds >= 1 else past,
    )


@register.filter
def minus(later: datetime | None, earlier: datetime | None) -> float | None:
    """Seconds between two times; None when one of them is missing."""
    if later is None or earlier is None:
        return None
    return (later - earlier) / timedelta(seconds=1)


@register.filter
def get(mapping: Any, key: object) -> Any:
    """A value of a mapping by a key that is not a literal."""
    return mapping.get(key) if mapping else None


@register.simple_tag
def sprite() -> str:
    """Address of the sprite."""
    return str(static("icons.svg"))


@register.simple_tag
def now_clock() -> SafeString | str:
    """The time at which the page was made, with its zone: what a reader without scripts goes by."""
    return format_html("{} {}", clock(timezone.now()), zone_name())


@register.filter(name="words")
def split_words(text: str) -> list[str]:
    """Words of a literal, for a loop."""
    return text.split()


@register.filter
def same(value: object, other: object) -> str:
    """``true`` or ``false`` for an ARIA attribute."""
    return "true" if value == other else "false"


@register.simple_tag
def mark_icon(kind: str, value: object) -> SafeString:
    """The shape and color of a state, for legends that write the word themselves."""
    mark = words.mark_for(kind, value)
    return icon(mark.icon, mark.tone)


@register.filter
def unlocalized(value: float) -> str:
    """A number for an attribute: always with a point."""
    return f"{value:g}"


@register.filter
def millis(seconds: float | None) -> str:
    """Short times in milliseconds."""
    return "–" if seconds is None else f"{seconds * 1000:,.0f} ms" if seconds < 1 else words.duration(seconds)


@register.simple_tag(takes_context=True)
def hidden_params(context: template.Context) -> SafeString:
    """The rest of the address as hidden fields, so that a text filter keeps the chips and the tab."""
    query = context["request"].GET
    pairs = [
        (name, value)
        for name in query
        if name not in ("q", "after", "before", "held")
        for value in query.getlist(name)
    ]
    return format_html_join("", '<input type="hidden" name="{}" value="{}">', pairs)
