"""Filters and fields of the API whose refusals name what may be sent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import django_filters
from django import forms
from rest_framework import serializers

_WORDS = {"true": True, "1": True, "false": False, "0": False}


class _YesNoField(forms.Field):
    """``true`` or ``false``; Django's own reads every other word as "not asked", and so gives all rows."""

    def to_python(self, value: Any) -> bool | None:
        """None when it is not asked."""
        if value in (None, ""):
            return None
        word = str(value).lower()
        if word not in _WORDS:
            raise forms.ValidationError(f'"{value}" is neither true nor false.', code="invalid")
        return _WORDS[word]


class YesNoFilter(django_filters.BooleanFilter):  # type: ignore[misc]
    """A filter by a claim, ``?is_open=true``; another word is refused."""

    field_class = _YesNoField


class OneOfField(serializers.ChoiceField):
    """A choice; the refusal of another word names what there is to choose."""

    def __init__(self, choices: Sequence[str], **options: Any) -> None:
        words = ", ".join(choices)
        options["error_messages"] = {"invalid_choice": f'"{{input}}" is none of {words}.'}
        super().__init__(choices=choices, **options)
