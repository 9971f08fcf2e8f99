"""Settings for production behind TLS: everything that must be set is read without a default."""

from incidentdesk import env
from incidentdesk.settings.base import *

SECRET_KEY = env.text("SECRET_KEY")
if not SECRET_KEY:
    raise RuntimeError(
        "SECRET_KEY is not set: give the web, worker and watch processes the same long random text"
    )
SECURE_SSL_REDIRECT = env.flag("SECURE_SSL_REDIRECT", True)
SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https")
SECURE_HSTS_SECONDS = 31_536_000
SESSION_COOKIE_SECURE = True
CSRF_COOKIE_SECURE = True
