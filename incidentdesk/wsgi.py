"""Django as a WSGI application; the ASGI dispatcher runs it in threads."""

import os

from django.core.wsgi import get_wsgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "incidentdesk.settings.dev")

import incidentdesk.celery  # noqa: F401  the app that wakes workers

application = get_wsgi_application()
