"""The Celery application. Redis only wakes somebody up; what is due stands in rows (DESIGN rule 1)."""

import os

from celery import Celery

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "incidentdesk.settings.dev")

app = Celery("incidentdesk")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()
