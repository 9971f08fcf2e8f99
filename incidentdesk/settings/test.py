"""Settings for tests: fast password hashing, no manifest for static files, short times."""

import os

os.environ.setdefault("INCIDENTDESK_TIMINGS", "short")

from incidentdesk.settings.base import *
from incidentdesk.settings.base import STORAGES

SECRET_KEY = "for-tests-only"  # noqa: S105
ALLOWED_HOSTS = ["*"]
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
STORAGES = {**STORAGES, "staticfiles": {"BACKEND": "django.contrib.staticfiles.storage.StaticFilesStorage"}}
AXES_ENABLED = False
WHITENOISE_AUTOREFRESH = True
WHITENOISE_USE_FINDERS = True
