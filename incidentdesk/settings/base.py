"""Settings shared by all environments. What differs stands in dev, test and prod."""

from pathlib import Path

from django.utils.csp import CSP

from incidentdesk import env
from incidentdesk.settings import timings

BASE_DIR = Path(__file__).resolve().parents[2]
STATE_DIR = Path(env.text("INCIDENTDESK_STATE", str(BASE_DIR / ".desk")))

DEBUG = False
AGENT_HOST = "agents.incidentdesk.invalid"  # stands for every name by which agents reach the desk (asgi.py)
ALLOWED_HOSTS = [*env.words("ALLOWED_HOSTS"), AGENT_HOST]
CSRF_TRUSTED_ORIGINS = env.words("CSRF_TRUSTED_ORIGINS")
ROOT_URLCONF = "incidentdesk.urls"
WSGI_APPLICATION = "incidentdesk.wsgi.application"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

INSTALLED_APPS = [
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "django.contrib.postgres",
    "rest_framework",
    "django_filters",
    "drf_spectacular",
    "axes",
    "apps.access",
    "apps.nodes",
    "apps.jobs",
    "apps.incidents",
    "apps.desk",
]

MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "django.middleware.csp.ContentSecurityPolicyMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "axes.middleware.AxesMiddleware",
    "apps.desk.middleware.TimeZoneMiddleware",
]

AUTHENTICATION_BACKENDS = [
    "axes.backends.AxesStandaloneBackend",
    "django.contrib.auth.backends.ModelBackend",
]
AUTH_USER_MODEL = "access.User"
LOGIN_URL = "desk:login"
LOGIN_REDIRECT_URL = "desk:overview"
LOGOUT_REDIRECT_URL = "desk:login"
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": "django.contrib.auth.password_validation.UserAttributeSimilarityValidator"},
    {"NAME": "django.contrib.auth.password_validation.MinimumLengthValidator"},
    {"NAME": "django.contrib.auth.password_validation.CommonPasswordValidator"},
]
AXES_FAILURE_LIMIT = 10
AXES_COOLOFF_TIME = 0.25  # hours
AXES_LOCKOUT_PARAMETERS = [["username", "ip_address"]]
AXES_RESET_ON_SUCCESS = True

TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [BASE_DIR / "templates"],
        "APP_DIRS": False,
        "OPTIONS": {
            "loaders": [
                (
                    "django.template.loaders.cached.Loader",
                    [
                        "django.template.loaders.filesystem.Loader",
                        "django.template.loaders.app_directories.Loader",
                    ],
                )
            ],
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
                "apps.desk.context.chrome",
            ],
        },
    }
]

DATABASES = {"default": env.database()}
DATABASES["default"]["CONN_MAX_AGE"] = 60
DATABASES["default"]["CONN_HEALTH_CHECKS"] = True
DATABASES["default"].setdefault("OPTIONS", {})
REDIS_URL = env.text("REDIS_URL")

LANGUAGE_CODE = "en-us"
USE_I18N = False
USE_TZ = True
TIME_ZONE = "UTC"

STATIC_URL = "/static/"
STATIC_ROOT = STATE_DIR / "static"
STATICFILES_DIRS = [BASE_DIR / "static"]
STORAGES = {
    "default": {"BACKEND": "django.core.files.storage.FileSystemStorage"},
    "staticfiles": {"BACKEND": "whitenoise.storage.CompressedManifestStaticFilesStorage"},
}

SECURE_CSP = {
    "default-src": [CSP.NONE],
    "script-src": [CSP.SELF],
    "style-src": [CSP.SELF],
    "img-src": [CSP.SELF, "data:"],
    "connect-src": [CSP.SELF],
    "font-src": [CSP.SELF],
    "form-action": [CSP.SELF],
    "frame-ancestors": [CSP.NONE],
    "base-uri": [CSP.NONE],
}
X_FRAME_OPTIONS = "DENY"
SECURE_CONTENT_TYPE_NOSNIFF = True
SECURE_REFERRER_POLICY = "same-origin"
SESSION_COOKIE_HTTPONLY = True
SESSION_COOKIE_SAMESITE = "Lax"
CSRF_COOKIE_SAMESITE = "Lax"
DATA_UPLOAD_MAX_MEMORY_SIZE = 1024 * 1024

REST_FRAMEWORK = {
    "DEFAULT_AUTHENTICATION_CLASSES": [
        "apps.access.api.authentication.TokenAuthentication",
        "rest_framework.authentication.SessionAuthentication",
    ],
    "DEFAULT_PERMISSION_CLASSES": ["rest_framework.permissions.IsAuthenticated"],
    "DEFAULT_RENDERER_CLASSES": ["rest_framework.renderers.JSONRenderer"],
    "DEFAULT_PARSER_CLASSES": ["rest_framework.parsers.JSONParser"],
    "DEFAULT_SCHEMA_CLASS": "apps.access.api.schema.DeskSchema",
    "DEFAULT_PAGINATION_CLASS": "apps.access.api.pagination.KeysetPagination",
    "DEFAULT_FILTER_BACKENDS": ["django_filters.rest_framework.DjangoFilterBackend"],
    "EXCEPTION_HANDLER": "apps.access.api.errors.handle_error",
    "PAGE_SIZE": 50,
    "UNAUTHENTICATED_USER": None,
}
API_DESCRIPTION = """\
Signals, jobs, incidents and nodes of training clusters.

* **Who asks.** Programs send `Authorization: Bearer idk_…`, a token of one tenant with the scopes that are named with
  each operation, perhaps of one cluster or one job only. Logged-in people use their session, and send the CSRF token
  with what they change. What another tenant has is answered as if it were not there.
* **What is stored.** A 2xx of a report means that it is committed. Reports have a key: the same again is known and
  changes nothing, another body under a known key is a 409. Other writes take the header `Idempotency-Key`,
  which is kept for a day.
* **Errors** are `{"code", "detail"}`, wrong input has `fields` too. 429 and 503 say in `Retry-After` when to try again.
* **Lists** come in pages: follow `next` until it is null. Times are ISO 8601 in UTC.
* A report is evidence. Of what programs tell, only the end of a pod can count as a failure, and only once.

Worker agents do not use this API; they have a protocol of their own below `/agent/v1/`.
"""
SPECTACULAR_SETTINGS = {
    "TITLE": "IncidentDesk",
    "DESCRIPTION": API_DESCRIPTION,
    "VERSION": "1",
    "POSTPROCESSING_HOOKS": [
        "drf_spectacular.hooks.postprocess_schema_enums",
        "apps.access.api.schema.describe_errors",
    ],
    "SERVE_INCLUDE_SCHEMA": False,
    "ENUM_NAME_OVERRIDES": {  # fields of the same name have other words in other places
        "Phase": "apps.jobs.api.serializers.PHASES",
        "CheckpointState": "apps.jobs.api.serializers.CHECKPOINT_STATES",
        "ToldCheckpointState": "apps.incidents.api.serializers.TOLD_CHECKPOINT_STATES",
        "IncidentState": "apps.incidents.api.serializers.INCIDENT_STATES",
        "ActionState": "apps.incidents.api.serializers.ACTION_STATES",
        "NodeState": "apps.incidents.api.serializers.NODE_STATES",
    },
}

# Celery: early ack, no results, no retries; timers are rows that the tick finds (DESIGN rule 1).
CELERY_BROKER_URL = REDIS_URL.replace("unix://", "redis+socket://", 1) if REDIS_URL else "memory://"
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
CELERY_BROKER_CONNECTION_MAX_RETRIES = None
CELERY_BROKER_TRANSPORT_OPTIONS = {
    "visibility_timeout": 3600,
    "socket_timeout": 5,
    "socket_connect_timeout": 5,
    # With Redis away a wake-up must fail at once: the tick finds what it would have told (measured 6 s without).
    "max_retries": 1,
    "interval_start": 0,
    "interval_step": 0,
    "interval_max": 0,
}
CELERY_TASK_IGNORE_RESULT = True
CELERY_TASK_ACKS_LATE = False
CELERY_TASK_SERIALIZER = "json"
CELERY_ACCEPT_CONTENT = ["json"]
CELERY_WORKER_PREFETCH_MULTIPLIER = 1
CELERY_WORKER_HIJACK_ROOT_LOGGER = False
CELERY_TASK_CREATE_MISSING_QUEUES = True
CELERY_TASK_DEFAULT_QUEUE = "import"
CELERY_TASK_ROUTES = {
    "apps.incidents.tasks.decide_subject": {"queue": "decide"},
    "apps.incidents.tasks.run_action": {"queue": "act"},
    "apps.incidents.tasks.tick": {"queue": "import"},
    "apps.incidents.tasks.recount_guards": {"queue": "import"},
    "apps.incidents.tasks.sweep": {"queue": "import"},
}
CELERY_TASK_PUBLISH_RETRY = False
CELERY_TIMEZONE = "UTC"
# name: task, period in seconds; why that period
CELERY_BEAT_SCHEDULE = {
    # due rows must not wait longer than a person notices
    "tick": {"task": "apps.incidents.tasks.tick", "schedule": 1.0, "options": {"expires": 5}},
    # a counter that drifted must not hold anything back, or let it through, for long
    "recount_guards": {
        "task": "apps.incidents.tasks.recount_guards",
        "schedule": 60.0,
        "options": {"expires": 60},
    },
    # old feed rows and sessions; nothing depends on when
    "sweep": {"task": "apps.incidents.tasks.sweep", "schedule": 300.0, "options": {"expires": 300}},
}

TIMINGS = timings.load()
DEFAULT_MAX_RETRY = 10
# Labels of nodes that say what fails together, the first one that is there. Pool and rack are read by the watch.
GUARD_LABELS = {
    "power_unit": ("incidentdesk.io/power-unit",),
    "switch": ("incidentdesk.io/switch", "topology.kubernetes.io/switch"),
}
KUBECONFIG = env.text("INCIDENTDESK_KUBECONFIG")
SIM_ENDPOINT = env.text("INCIDENTDESK_SIM_ENDPOINT")
METRICS_ARE_OPEN = bool(SIM_ENDPOINT)  # on loopback, without a token: the demo's are nobody's secret
PUBLIC_URL = env.text("INCIDENTDESK_PUBLIC_URL")
LOG_LINK_TEMPLATE = env.text("INCIDENTDESK_LOG_LINK")
GPU_PRICES = env.text("INCIDENTDESK_GPU_PRICES")  # JSON by GPU type; none given, no money is shown
RULES_FILE = env.text("INCIDENTDESK_RULES")  # the operator's own rules over the built-in ones, a TOML file
TIMELINE_LOG = env.text(
    "INCIDENTDESK_TIMELINE_LOG"
)  # a file, or "-" for standard output: timeline as JSON lines
FAULT_POINTS = env.text("INCIDENTDESK_FAULT_POINTS")  # crash tests only: directory with armed points

LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"line": {"format": "{asctime} {levelname} {name} {message}", "style": "{"}},
    "handlers": {"console": {"class": "logging.StreamHandler", "formatter": "line"}},
    "root": {"handlers": ["console"], "level": env.text("LOG_LEVEL", "INFO")},
    "loggers": {
        "django.db.backends": {"level": "WARNING"},
        "celery.worker.strategy": {"level": "WARNING"},
        "celery.app.trace": {"level": "WARNING"},
        "celery.beat": {"level": "WARNING"},
        "axes": {"level": "WARNING"},
    },
}
