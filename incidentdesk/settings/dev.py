"""Settings for `./desk demo` and `./desk up` on one machine: loopback only."""

from incidentdesk import env
from incidentdesk.settings.base import *
from incidentdesk.settings.base import ALLOWED_HOSTS, STATE_DIR

SECRET_KEY = env.text("SECRET_KEY")
if not SECRET_KEY:
    from incidentdesk.settings.secret import kept_secret

    SECRET_KEY = kept_secret(STATE_DIR / "secret_key")
ALLOWED_HOSTS = [*ALLOWED_HOSTS, "localhost", "127.0.0.1", "[::1]"]
SESSION_COOKIE_NAME = "incidentdesk_session"
CSRF_COOKIE_NAME = "incidentdesk_csrf"
