"""Addresses of the REST API below /api/v1/."""

from django.urls import URLPattern

urlpatterns: list[URLPattern] = []
