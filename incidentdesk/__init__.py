"""Wiring of the project: settings, urls, Celery and ASGI. No rules.

Nothing is imported here, so that the front door starts without Django and Celery.
"""
