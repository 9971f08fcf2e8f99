"""Wiring of the project: settings, urls, Celery and ASGI. No rules."""

from incidentdesk.celery import app as celery_app

__all__ = ["celery_app"]
